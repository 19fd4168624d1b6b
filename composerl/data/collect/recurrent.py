"""The collector of a policy with memory: a record for everything that an environment shows."""

from collections.abc import Callable, Iterable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, RandomPolicy

from composerl._private import unchecked_tensordict
from composerl.data.collect.inside import apply
from composerl.data.collect.live import Live, for_gym
from composerl.data.collect.vector import VectorCollector

__all__ = ["RecordCollector"]


class RecordCollector(VectorCollector):
    """Steps environments with a recurrent policy; gives records for a ``SequenceSampler``.

    A record holds the ``observation`` at time t, the ``action`` taken before it, the ``reward``
    received on arriving there, ``first`` (an episode starts here: action and reward are 0) and
    ``terminal`` (it ended here by itself; an end by a time limit is not terminal). So an episode
    of L actions has L + 1 records, its last observation among them. An environment that reports
    ``life_loss`` in a step's info (see :func:`composerl.envs.games.open_game`) makes that record
    terminal while the episode goes on.

    All environments give one record at a time: where an episode has ended, the next record is the
    first of the next one, for which no action is taken. Records are what the collector counts
    (``frames_per_batch``, ``init_random_frames``, a run's steps).

    The policy is a TensorDictModule with ``recurrent``, ``initial(batch)`` and, on plain tensors,
    ``explore(observation, state, first) -> (action, state)`` (and ``greedy``, for another
    ``exploration_type``). It sees each record once, in order, when the next one is asked for, so
    that it acts by its newest weights. While actions are random it is not asked; it then takes
    over from its initial state, also in the middle of an episode. TorchRL's own collector gives
    the same records in a :class:`~composerl.data.RecordEnv`, but takes longer.

    Seeds, metrics, checkpoints and workers are those of :class:`~composerl.data.VectorCollector`:
    loading a ``state_dict`` plays the episodes under way again, and gives the policy its state
    back. Workers give the numbers of one process if a batch has one record of each environment;
    with more, none knows when the episodes of all others have ended at once, where one process
    would not ask the policy.

    Arguments are those of :class:`~composerl.data.VectorCollector`, over an environment of
    :func:`composerl.envs.make_env`; ``frames_per_batch`` is one record of each environment by
    default. With ``latents``, names of parts of the policy's state, each record has those that
    the policy had before it, after the record before, and ``known``: whether it had been asked.
    A :class:`~composerl.data.Latents` keeps them.
    """

    _remembers = True
    _state: dict[str, Tensor] | None  # None: the policy has seen nothing
    _unseen: list[bool]

    def __init__(
        self,
        create_env_fn: EnvBase | Callable[[], EnvBase],
        policy: nn.Module | None = None,
        *,
        frames_per_batch: int | None = None,
        latents: Iterable[str] = (),
        **kwargs: Any,
    ) -> None:
        if policy is not None and not (
            getattr(policy, "recurrent", False) and getattr(policy, "out_keys", None)
        ):
            raise TypeError(
                "policy must be a TensorDictModule with memory (recurrent = True), got a "
                f"{type(policy).__name__}: others are for a VectorCollector"
            )
        env = create_env_fn if isinstance(create_env_fn, EnvBase) else create_env_fn()
        kwargs.setdefault("track_traj_ids", False)
        frames = frames_per_batch or max(1, env.batch_size.numel())
        # Else TorchRL would try the policy once, and the environment holds no state for it.
        kwargs |= {"use_buffers": False, "trust_policy": True}
        self._latents = tuple(latents)
        self._options = {"latents": self._latents}
        super().__init__(env, policy, frames_per_batch=frames, **kwargs)
        if not self.fast:
            raise ValueError(
                "create_env_fn must be an environment of composerl.envs.make_env over gymnasium "
                f"ones, with simple transforms at most, got {env}"
            )
        self.env.action_spec.rand()  # TorchRL drew one when it knew no policy: as in older runs
        self._forget()

    def reset(self, index: Any = None, **kwargs: Any) -> None:
        """Start new episodes in all environments."""
        if index is not None:
            raise ValueError("a RecordCollector starts episodes in all environments, not in some")
        super().reset(**kwargs)
        self._forget()

    def state_dict(self) -> dict[str, Any]:
        """That of the episodes, and the policy's state in them."""
        return super().state_dict() | self._memory()

    def load_state_dict(self, state_dict: dict[str, Any], **kwargs: Any) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._recall(state_dict)
        own = {k: v for k, v in state_dict.items() if k not in ("recurrent", "unseen")}
        super().load_state_dict(own, **kwargs)

    # ---- inside ----------------------------------------------------------------------------

    def _memory(self) -> dict[str, Any]:
        state, of_these = self._state, self._asking.of_these
        if state is not None:
            state = {key: of_these(value).cpu() for key, value in state.items()}
        return {"recurrent": state, "unseen": list(self._unseen)}

    def _recall(self, memory: dict[str, Any]) -> None:
        state, self._unseen = memory["recurrent"], list(memory["unseen"])
        if state is not None:
            device, among_all = self._asking.device, self._asking.among_all
            state = {key: among_all(value.to(device)) for key, value in state.items()}
        self._state = state

    def _rollout(self) -> TensorDict:
        if self._live is None:
            self._live = self._from_carrier()
            self._forget()
        live, envs, space = self._live, self._envs, self._envs[0].action_space
        shape = (len(envs), self.frames_per_batch)
        dtype = np.int64 if isinstance(space, gym.spaces.Discrete) else np.float32
        obs = np.empty((*shape, *live.obs.shape[1:]), live.obs.dtype)
        action = np.zeros((*shape, *(space.shape or ())), dtype)
        reward = np.zeros(shape, np.float32)
        first, terminal = np.zeros(shape, bool), np.zeros(shape, bool)
        minds = []
        for t in range(shape[1]):
            # Not asked when all episodes only start: nothing would come of its answer.
            if not (self._rest_unseen and all(self._unseen)):
                choice = self._choose(live)
                moves, chosen = for_gym(choice, space), choice.numpy()
            if self._latents:
                minds.append(self._mind())
            over = []
            for i, env in enumerate(envs):
                if self._unseen[i]:
                    first[i, t], self._unseen[i] = True, False
                    continue
                seen, gained, ended, cut, info = live.step(env, i, moves[i])
                live.obs[i] = self._inside.see(seen)
                reward[i, t], action[i, t] = gained, chosen[i]
                terminal[i, t] = ended or info.get("life_loss", False)
                if ended or cut:
                    over.append((i, info))
            obs[:, t] = live.obs
            self._rest_unseen = not any(self._asking.elsewhere)  # so far as can be known here
            for i, info in over:
                self._finished.add(live, i, t, info)
                self._begin(live, i)
        arrays = {"observation": obs, "action": action, "reward": reward, "first": first,
                  "terminal": terminal}  # fmt: skip
        records = {key: torch.from_numpy(array) for key, array in arrays.items()}
        gains = apply(self._inside.reward, records["reward"])
        records["reward"] = gains.masked_fill(records["first"], 0.0)
        for name in (*self._latents, *(["known"] if self._latents else [])):
            records[name] = torch.stack([mind[name] for mind in minds], 1)
        return unchecked_tensordict(records, torch.Size(shape))

    def _choose(self, live: Live) -> Tensor:
        """Actions ``(environments, ...)`` for the observations; the policy remembers them."""
        if isinstance(self.policy, RandomPolicy) or self._should_use_random_frames():
            self._state = None
            action = self._asking.random_action()
            return action if self.env.batch_size else action.unsqueeze(0)
        asking = self._asking
        first = torch.tensor([length == 0 for length in live.lengths], device=asking.device)
        first = asking.among_all(first)
        if self._state is None:
            self._state = self.policy.initial(len(first))
            first.fill_(True)
        # A copy, as the policy may keep it and the array is written to.
        seen = asking.among_all(torch.tensor(live.obs, device=asking.device))
        random = self.exploration_type == ExplorationType.RANDOM
        act = self.policy.explore if random else self.policy.greedy
        action, self._state = act(seen, self._state, first)
        return asking.of_these(action.cpu())

    def _mind(self) -> dict[str, Tensor]:
        """The policy's state ``(environments, ...)`` before the record that is to come."""
        number, asked = len(self._envs), self._state is not None
        state = self._state or self.policy.initial(number)
        found = {name: state[name].cpu() for name in self._latents}
        if asked:
            found = {name: self._asking.of_these(rows) for name, rows in found.items()}
        return {**found, "known": torch.full((number,), asked)}

    def _start_episodes(self) -> None:
        self._forget()
        super()._start_episodes()

    def _begin(self, live: Live, i: int) -> None:
        super()._begin(live, i)
        self._unseen[i] = True

    def _forget(self) -> None:
        """All that the environments show now is new, and the policy has seen none of it."""
        self._state = None
        self._unseen = [True] * len(self._envs)
