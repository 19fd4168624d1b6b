"""A TorchRL collector without the cost of one TensorDict per step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.collectors import Collector
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from composerl.data.collect.live import Live, for_gym, gym_environments

__all__ = ["VectorCollector"]

RECENT = 20


class VectorCollector(Collector):
    """TorchRL's ``Collector``, stepping gymnasium environments with preallocated buffers.

    Iteration, arguments and batches (``(environments, time)``, TorchRL's layout) are those of
    ``torchrl.collectors.Collector``, and the transitions are the same for the same seeds and
    actions. Where the environment is one made by :func:`composerl.envs.make_env` (a gymnasium
    environment, or a ``SyncVectorEnv`` of them), a rollout writes numpy buffers and builds one
    TensorDict per batch, five times as fast; any other environment or transform, and options
    that need a TensorDict at each step, take TorchRL's own way.

    A policy that has ``explore(observation) -> action`` on plain tensors, as those of
    :mod:`composerl.modules` do, is called by that, and only its action is stored. Other policies
    are called with a TensorDict and all that they write is stored.

    The state of an environment cannot be saved. With a ``seed``, every episode has a seed of its
    own, and a checkpoint (``state_dict``) holds, for the episodes under way, that seed and the
    actions so far: loading it plays them again, which leads to the same state. An environment
    that does not lead there is noticed by its observation, and starts a new episode. In TorchRL's
    way episodes are not played again: every checkpoint starts new ones, seeded by the number of
    frames so far, whether the run goes on or is resumed.

    Args:
        create_env_fn: the environment, or a function that makes it.
        policy: what acts; None acts at random.

    Keyword Args:
        frames_per_batch: environment steps of a batch, over all environments together.
        seed: of the episodes; None leaves them to the environment's own seeding.
        init_random_frames: so many steps at the start act at random.
        total_frames: end of the iteration; -1 goes on for ever.
        kwargs: of TorchRL's ``Collector``.
    """

    def __init__(
        self,
        create_env_fn: EnvBase | Callable[[], EnvBase],
        policy: nn.Module | Callable[[TensorDictBase], TensorDictBase] | None = None,
        *,
        frames_per_batch: int,
        seed: int | None = None,
        init_random_frames: int = 0,
        total_frames: int = -1,
        **kwargs: Any,
    ) -> None:
        # Off: it would wrap the environment in a transform, which our policies do not need.
        kwargs.setdefault("auto_register_policy_transforms", False)
        super().__init__(
            create_env_fn,
            policy,
            frames_per_batch=frames_per_batch,
            init_random_frames=init_random_frames,
            total_frames=total_frames,
            **kwargs,
        )
        self._seed = seed
        self._restart = seed is not None  # new episodes before the next batch
        self._explore = getattr(policy, "explore", None)
        parameters = policy.parameters() if isinstance(policy, nn.Module) else iter(())
        self._policy_home = next((p.device for p in parameters), torch.device("cpu"))
        self._envs = gym_environments(self.env) if _plain(kwargs) else None
        self._live: Live | None = None
        self.recent: deque[tuple[float, int]] = deque(maxlen=RECENT)
        self.episodes = 0
        if self._envs is not None and self._explore is None:
            keys = getattr(self._wrapped_policy, "in_keys", ["observation"])
            if list(keys) != ["observation"]:
                self._envs = None

    @property
    def fast(self) -> bool:
        """Whether rollouts are made without a TensorDict per step."""
        return self._envs is not None

    def metrics(self) -> dict[str, float]:
        """Mean return and length of the latest finished episodes, and how many there were."""
        found = {"collect/episodes": float(self.episodes)}
        if self.recent:
            returns, lengths = zip(*self.recent, strict=True)
            found["collect/return"] = float(np.mean(returns))
            found["collect/length"] = float(np.mean(lengths))
        return found

    # ---- TorchRL's interface -----------------------------------------------------------------

    def iterator(self) -> Iterator[TensorDictBase]:
        """Batches until ``total_frames``."""
        if self._envs is None:
            yield from super().iterator()
            return
        while self._frames < self.total_frames:
            self._iter += 1
            batch = self.rollout()
            self._increment_frames(batch.numel())
            # TorchRL's iterator also copies the batch, whose buffers are new at each time here.
            yield batch if self.postproc is None else self.postproc(batch)

    def rollout(self) -> TensorDictBase:
        """One batch."""
        if self._restart:
            self._start_episodes()
        if self._envs is None:
            batch = super().rollout()
            if batch is not None:
                self._count_episodes(batch)
            return batch
        with torch.no_grad(), set_exploration_type(self.exploration_type):
            return self._rollout()

    def reset(self, index: Any = None, **kwargs: Any) -> None:
        """Start new episodes, in all environments or in some."""
        if self._live is not None and self._envs is not None:
            if self._seed is not None:  # their own seeds go on
                chosen = torch.zeros(self.env.batch_size, dtype=torch.bool)
                chosen[... if index is None else index] = True
                for i in chosen.reshape(-1).nonzero()[:, 0].tolist():
                    self._live.obs[i] = self._begin(self._live, i)
                return
            shape = self.env.batch_size
            obs = torch.from_numpy(self._live.obs).reshape(*shape, *self._live.obs.shape[1:])
            self._carrier.set("observation", obs)
            self._carrier.set(("collector", "traj_ids"), torch.tensor(self._live.ids).view(shape))
        super().reset(index, **kwargs)
        self._live = None

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the environments, and start new episodes by it."""
        following = super().set_seed(seed, static_seed)
        if self._seed is not None and self._envs is not None:
            self._seed, self._live, self._restart = seed, None, True
        else:
            self.reset()
        return following

    def state_dict(self) -> dict[str, Any]:
        """TorchRL's, the episodes finished lately, and what leads to where those under way are."""
        live = self._live
        replayable = self._seed is not None and self._envs is not None and live is not None
        if not replayable:
            self._restart = self._seed is not None
        return dict(super().state_dict()) | {
            "recent": [list(pair) for pair in self.recent],
            "episodes": self.episodes,
            "live": live.state_dict() if replayable else None,
        }

    def load_state_dict(self, state_dict: dict[str, Any], **kwargs: Any) -> None:
        """Restore what :meth:`state_dict` returned."""
        # A policy without weights has no state, which TorchRL's load asks for nevertheless.
        kwargs.setdefault("strict", "policy_state_dict" in state_dict)
        super().load_state_dict(state_dict, **kwargs)
        if "traj_pool" in state_dict and self._seed is not None:
            # TorchRL has handed out ids for the episodes of the carrier, which end unplayed.
            self._traj_pool.load_state_dict(state_dict["traj_pool"])
        self.recent = deque((tuple(pair) for pair in state_dict["recent"]), maxlen=RECENT)
        self.episodes = state_dict["episodes"]
        saved = state_dict["live"] if self._envs is not None else None
        self._live = None
        if saved is not None:
            self._live = Live.from_state_dict(saved)
            for i in self._live.play_again(self._envs, self._seed):
                self._live.ids[i] = self._new_id(self._live, i)
        elif self._envs is not None and self._seed is None:
            self.reset()  # what the environments were left at is not what was stored
        self._restart = self._seed is not None and self._live is None

    # ---- the fast rollout --------------------------------------------------------------------

    def _rollout(self) -> TensorDict:
        live = self._live = self._live or self._from_carrier()
        envs, steps = self._envs, self.frames_per_batch
        number, shape = len(envs), live.obs.shape[1:]
        obs = np.empty((number, steps, *shape), live.obs.dtype)
        next_obs = np.empty_like(obs)
        reward = np.empty((number, steps, 1), np.float32)
        terminated = np.zeros((number, steps, 1), bool)
        truncated = np.zeros((number, steps, 1), bool)
        ids = np.empty((number, steps), np.int64)
        written: list[dict[str, Tensor]] = []
        for t in range(steps):
            obs[:, t] = live.obs
            ids[:, t] = live.ids
            written.append(self._act(live.obs))
            actions = for_gym(written[-1]["action"], envs[0].action_space)
            for i, env in enumerate(envs):
                seen, gained, ended, cut, _ = env.step(actions[i])
                next_obs[i, t] = seen
                reward[i, t, 0] = gained
                live.returns[i] += float(gained)
                live.lengths[i] += 1
                live.actions[i].append(actions[i])
                if ended or cut:
                    terminated[i, t, 0], truncated[i, t, 0] = ended, cut
                    seen = self._next_episode(live, i)
                live.obs[i] = seen
        single = not self.env.batch_size
        shape = torch.Size([steps] if single else [number, steps])

        def tensor(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array[0] if single else array)

        ends = {"terminated": tensor(terminated), "truncated": tensor(truncated)}
        ends["done"] = ends["terminated"] | ends["truncated"]
        root = {key: torch.zeros_like(value) for key, value in ends.items()}
        time = 0 if single else 1
        for key in written[0]:
            root[key] = torch.stack([step[key] for step in written], time)
        root["observation"] = tensor(obs)
        if self.track_traj_ids:
            root["collector"] = TensorDict._new_unsafe({"traj_ids": tensor(ids)}, shape)
        following = {"observation": tensor(next_obs), "reward": tensor(reward), **ends}
        root["next"] = TensorDict._new_unsafe(following, shape)
        # The public constructor checks every entry again: for a short batch, as long as all else.
        return TensorDict._new_unsafe(root, shape)

    def _act(self, obs: np.ndarray) -> dict[str, Tensor]:
        """What the policy writes for the environments' observations, on the CPU."""
        if self._should_use_random_frames():
            return {"action": self.env.action_spec.rand()}
        observation = torch.from_numpy(obs if self.env.batch_size else obs[0])
        if self._explore is not None and self.exploration_type == ExplorationType.RANDOM:
            batch = observation if self.env.batch_size else observation.unsqueeze(0)
            action = self._explore(batch.to(self._policy_home)).cpu()
            return {"action": action if self.env.batch_size else action.squeeze(0)}
        data = TensorDict({"observation": observation.clone()}, self.env.batch_size)
        out = self._wrapped_policy(data.to(self._policy_home)).cpu()
        return {key: value for key, value in out.items() if key != "observation"}

    def _from_carrier(self) -> Live:
        """The state that TorchRL's constructor or reset has left."""
        number = len(self._envs)
        obs = self._carrier.get("observation")
        ids = self._carrier.get(("collector", "traj_ids"), None)
        return Live(
            obs.reshape(number, *obs.shape[len(self.env.batch_size) :]).cpu().numpy().copy(),
            np.zeros(number, np.int64) if ids is None else ids.reshape(-1).cpu().numpy().copy(),
        )

    def _start_episodes(self) -> None:
        self._restart = False
        if self._envs is None:
            state = np.random.SeedSequence([self._seed, self._frames]).generate_state(1)
            self.set_seed(int(state[0] >> 1))
            return
        number = len(self._envs)
        carried = self._carrier.get("observation")
        shape = carried.shape[len(self.env.batch_size) :]
        obs = np.empty((number, *shape), carried.cpu().numpy().dtype)
        ids = self._traj_pool.get_traj_and_increment(number).numpy().copy()
        self._live = Live(obs, ids)
        for i in range(number):
            obs[i] = self._live.start(self._envs[i], i, self._seed)

    def _next_episode(self, live: Live, i: int) -> Any:
        self.recent.append((live.returns[i], live.lengths[i]))
        self.episodes += 1
        return self._begin(live, i)

    def _begin(self, live: Live, i: int) -> Any:
        live.returns[i], live.lengths[i] = 0.0, 0
        live.ids[i] = self._new_id(live, i)
        return live.start(self._envs[i], i, self._seed)

    def _new_id(self, live: Live, i: int) -> int:
        return (
            self._traj_pool.get_traj_and_increment().item() if self.track_traj_ids else live.ids[i]
        )

    def _count_episodes(self, batch: TensorDictBase) -> None:
        """Returns and lengths of the episodes in a batch of TorchRL's own rollout."""
        number = max(1, self.n_env)
        if self._live is None:
            self._live = Live(np.zeros((number, 0)), np.zeros(number, np.int64))
        reward = batch["next", "reward"].reshape(number, -1).tolist()
        done = batch["next", "done"].reshape(number, -1).tolist()
        for i, (gains, ends) in enumerate(zip(reward, done, strict=True)):
            for gained, end in zip(gains, ends, strict=True):
                self._live.returns[i] += gained
                self._live.lengths[i] += 1
                if end:
                    self.recent.append((self._live.returns[i], self._live.lengths[i]))
                    self.episodes += 1
                    self._live.returns[i], self._live.lengths[i] = 0.0, 0


#: Options of TorchRL's collector that ask for nothing at a step; others do, unless off.
_HARMLESS = {"exploration_type", "postproc", "track_traj_ids", "trust_policy"}


def _plain(options: dict[str, Any]) -> bool:
    def off(value: Any) -> bool:  # an empty replay buffer is not off, although it has no length
        return value is None or (isinstance(value, (bool, int, float, dict)) and not value)

    return all(name in _HARMLESS or off(value) for name, value in options.items())
