"""A TorchRL collector without the cost of one TensorDict per step."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from composerl.data.collect.finished import Finished
from composerl.data.collect.inside import Asking, Inside, asks_at_steps, look_inside
from composerl.data.collect.live import Live, Steps, for_gym
from composerl.envs.masks import MASK

__all__ = ["LocalCollector"]


class LocalCollector(Collector):
    """A :class:`~composerl.data.VectorCollector` in this process: it is described there."""

    _iterator: Any  # of TorchRL: that of next()
    _remembers = False  # the state of a policy, from step to step
    _first = 0  # how many environments other processes step before these
    _unseen: Sequence[bool] = ()  # whose observation is in no record yet, where there are records
    _rest_unseen = True  # the same of all that other processes step

    def __init__(
        self,
        create_env_fn: EnvBase | Callable[[], EnvBase],
        policy: nn.Module | Callable[[TensorDictBase], TensorDictBase] | None = None,
        *,
        frames_per_batch: int,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        # A policy with memory needs the environment to carry its state, the others nothing.
        carry = bool(getattr(policy, "recurrent", False)) and not self._remembers
        kwargs.setdefault("auto_register_policy_transforms", carry)
        super().__init__(create_env_fn, policy, frames_per_batch=frames_per_batch, **kwargs)
        self._seed = seed
        self._restart = seed is not None  # new episodes before the next batch
        self._live: Live | None = None
        self._finished = Finished()
        self._asking = Asking(self.policy, self._wrapped_policy, self.env)
        stateful = getattr(self.policy, "recurrent", False) and not self._remembers
        needs_more = stateful or asks_at_steps(kwargs) or not self._asking.needs_no_more
        self._inside = Inside([], [], []) if needs_more else look_inside(self.env)
        self._envs = self._inside.envs
        self._in_place = self.return_same_td and self._use_buffers
        self._batch: TensorDictBase | None = None
        if self.fast:
            # Every batch is a new one: TorchRL's iterator need not copy it, nor look for private
            # entries where none can be.
            self.return_same_td |= self.replay_buffer is None
            self._exclude_private_keys = self._asking.explore is None or self.postproc is not None

    @property
    def fast(self) -> bool:
        """Whether rollouts are made without a TensorDict per step."""
        return bool(self._envs)

    def metrics(self) -> dict[str, float]:
        """Mean return and length of the latest finished episodes, and how many there were.

        On the fast way returns are sums of the environment's own rewards, whatever transforms
        make of them; on TorchRL's, of the rewards in the batches.
        """
        return self._finished.metrics()

    # ---- TorchRL's interface -----------------------------------------------------------------

    def rollout(self) -> TensorDictBase:
        """One batch."""
        if self._restart:
            self._start_episodes()
        if not self.fast:
            batch = super().rollout()
            if batch is not None:
                self._live = self._live or Live(np.zeros(max(1, self.n_env)))
                self._finished.count(batch, self._live)
            return batch
        if self.pre_collect_hook is not None:
            self.pre_collect_hook()
        with torch.no_grad(), set_exploration_type(self.exploration_type):
            batch = self._one_batch()
        if self.storing_device is not None:
            batch = batch.to(self.storing_device)
        if self._in_place:
            self._batch = batch = batch if self._batch is None else self._batch.update_(batch)
        return batch

    def next(self) -> Any:
        """The next batch; None after the last."""
        if not self.fast or self.storing_device is not None:
            return super().next()
        # TorchRL's makes a copy that has no device, as these batches have none.
        if self._iterator is None:
            self._iterator = iter(self)
        return next(self._iterator, None)

    def reset(self, index: Any = None, **kwargs: Any) -> None:
        """Start new episodes, in all environments or in some; their seeds go on."""
        if self._live is None or not self.fast:
            super().reset(index, **kwargs)
            self._live = None
            return
        if kwargs:
            raise TypeError(f"a reset between batches takes no options, got {list(kwargs)}")
        chosen = torch.zeros(self.env.batch_size, dtype=torch.bool)
        chosen[... if index is None else index] = True
        for i in chosen.reshape(-1).nonzero()[:, 0].tolist():
            self._begin(self._live, i)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the environments, and start new episodes by it."""
        following = super().set_seed(seed, static_seed)
        if self._seed is not None and self.fast:
            self._seed, self._live, self._restart = seed, None, True
        else:
            self.reset()
        return following

    def state_dict(self) -> dict[str, Any]:
        """TorchRL's, the episodes finished lately, and what leads to where those under way are."""
        live = self._live if self.fast and self._seed is not None else None
        if live is None:
            self._restart = self._seed is not None
        return dict(super().state_dict()) | {
            "finished": self._finished.state_dict(),
            "live": None if live is None else live.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any], **kwargs: Any) -> None:
        """Restore what :meth:`state_dict` returned."""
        # A policy without weights has no state, which TorchRL's load asks for nevertheless.
        kwargs.setdefault("strict", "policy_state_dict" in state_dict)
        super().load_state_dict(state_dict, **kwargs)
        if "traj_pool" in state_dict and self._seed is not None:
            # TorchRL has handed out ids for the episodes of the carrier, which end unplayed.
            self._traj_pool.load_state_dict(state_dict["traj_pool"])
        self._finished.load_state_dict(state_dict["finished"])
        saved = state_dict["live"] if self.fast else None
        self._live = None
        if saved is not None and self._seed is not None:
            self._lead_to(saved)
        elif self.fast and self._seed is None:
            self.reset()  # what the environments were left at is not what was stored
        self._restart = self._seed is not None and self._live is None

    def _lead_to(self, saved: dict[str, Any]) -> list[int]:
        """Play the episodes of a state again; returns the environments that came out elsewhere."""
        assert self._seed is not None
        self._live = live = Live.from_state_dict(saved, self._carried_masks(), self._first)
        failed = live.play_again(self._envs, self._seed, self._inside.see)
        for i in failed:
            self._begin(live, i)
        return failed

    def _memory(self) -> dict[str, Any]:
        """What the policy remembers of the episodes under way."""
        return {}

    def _recall(self, memory: dict[str, Any]) -> None:
        """Set what :meth:`_memory` returned."""

    # ---- the fast rollout --------------------------------------------------------------------

    def _one_batch(self) -> TensorDictBase:
        return self._rollout()

    def _rollout(self) -> TensorDict:
        live = self._live = self._live or self._from_carrier()
        envs, space, number = self._envs, self._envs[0].action_space, self.frames_per_batch
        steps = Steps(live, self._inside, number)
        next_obs, reward = steps.next_obs, steps.reward
        exploring = self.exploration_type == ExplorationType.RANDOM
        at_random = self._should_use_random_frames()
        begun = []  # episodes, by environment and step
        for t in range(number):
            steps.obs[:, t] = live.obs
            if steps.masks is not None:
                steps.masks[:, t] = live.masks
            said = self._asking.act(live.obs, live.masks, exploring=exploring, at_random=at_random)
            steps.said.append(said)
            actions = for_gym(said["action"], space)
            over = []
            for i, env in enumerate(envs):
                next_obs[i, t], gained, ended, cut, info = live.step(env, i, actions[i])
                reward[i, t, 0] = gained
                if ended or cut:
                    steps.terminated[i, t, 0], steps.truncated[i, t, 0] = ended, cut
                    over.append((i, info))
            live.obs[:] = self._inside.see(next_obs[:, t])
            if steps.next_masks is not None:
                steps.next_masks[:, t] = live.masks
            for i, info in over:
                self._finished.add(live, i, t, info)
                live.obs[i] = self._inside.see(live.start(envs[i], i, self._seed))
                begun.append((i, t + 1))
        if begun and self.track_traj_ids:
            ids = self._traj_pool.get_traj_and_increment(len(begun)).tolist()
            for (i, t), number in zip(begun, ids, strict=True):
                steps.ids[i, t:] = live.ids[i] = number
        if self.set_truncated:
            steps.truncated[:, -1] = True
        return steps.tensordict(ids=self.track_traj_ids, single=not self.env.batch_size)

    def _from_carrier(self) -> Live:
        """The state that TorchRL's constructor or reset has left."""
        obs = self._carrier.get("observation")
        ids = self._carrier.get(("collector", "traj_ids"), None)
        return Live(
            obs.reshape(-1, *obs.shape[len(self.env.batch_size) :]).cpu().numpy().copy(),
            None if ids is None else ids.reshape(-1).cpu().numpy().copy(),
            self._carried_masks(),
            self._first,
        )

    def _carried_masks(self) -> np.ndarray | None:
        masks = self._carrier.get(MASK, None)
        return None if masks is None else masks.reshape(-1, masks.shape[-1]).cpu().numpy().copy()

    def _start_episodes(self) -> None:
        self._restart = False
        if not self.fast:
            state = np.random.SeedSequence([self._seed, self._frames]).generate_state(1)
            self.set_seed(int(state[0] >> 1))
            return
        self._live = self._from_carrier()
        for i in range(len(self._envs)):
            self._begin(self._live, i)

    def _begin(self, live: Live, i: int) -> None:
        """Start the next episode of environment i."""
        self._name_episode(live, i)
        live.obs[i] = self._inside.see(live.start(self._envs[i], i, self._seed))

    def _name_episode(self, live: Live, i: int) -> None:
        if self.track_traj_ids:
            live.ids[i] = self._traj_pool.get_traj_and_increment().item()
