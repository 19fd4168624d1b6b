"""From offline to online: a dataset, joined by what the agent itself experiences."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn
from torchrl.envs.utils import ExplorationType, set_exploration_type

from composerl.data.buffer import OfflineBuffer
from composerl.data.dataset import Dataset
from composerl.spaces import Spaces, open_gym

__all__ = ["MixedBuffer"]

_FIELDS = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")


class MixedBuffer:
    """Batches from a dataset, and from the episodes that :meth:`collect` plays, in a fixed share.

    An episode joins when it is over, so that its Monte Carlo returns are known. Until the first
    one has, batches come from the dataset alone.

    The state of an environment cannot be saved. So every checkpoint (``state_dict``) ends the
    episode under way, as truncated, and the next step starts another, seeded by the number of
    steps so far: a run that goes on and one that is resumed see the same.

    Args:
        offline: the dataset; its reward scale and Monte Carlo discount apply to new episodes too.
        env: gymnasium id or factory.
        offline_fraction: share of each batch that comes from the dataset, in [0, 1].
        capacity: transitions of its own that it keeps; the oldest episodes go first.
        seed: of the environments.
    """

    def __init__(
        self,
        offline: OfflineBuffer,
        env: Any,
        *,
        offline_fraction: float = 0.5,
        capacity: int = 1_000_000,
        seed: int = 0,
    ) -> None:
        if not 0 <= offline_fraction <= 1:
            raise ValueError(f"offline_fraction must be in [0, 1], got {offline_fraction}")
        self.offline = offline
        self.collected = 0
        self._env_id = env
        self._spaces = Spaces.of(env).require_box("MixedBuffer")
        self._fraction = offline_fraction
        self._capacity = capacity
        self._seed = seed
        self._env: gym.Env | None = None
        self._obs: np.ndarray | None = None
        self._episode: dict[str, list[Any]] = {field: [] for field in _FIELDS}
        self._episodes: list[Dataset] = []
        self._online: OfflineBuffer | None = None
        self._last_return: float | None = None

    def collect(self, actor: nn.Module) -> dict[str, float]:
        """One step of the environment by a sample of the policy; returns metrics."""
        if self._env is None:
            self._env = open_gym(self._env_id)
        if self._obs is None:
            state = np.random.SeedSequence([self._seed, self.collected]).generate_state(1)
            self._obs, _ = self._env.reset(seed=int(state[0]))
        action = self._act(actor)
        obs, reward, terminated, truncated, _ = self._env.step(action)
        row = (self._obs, action, reward, obs, terminated, truncated and not terminated)
        for field, value in zip(_FIELDS, row, strict=True):
            self._episode[field].append(value)
        self._obs = np.asarray(obs)
        self.collected += 1
        if terminated or truncated:
            self._last_return = float(np.sum(self._episode["rewards"]))
            self._close_episode()
        metrics = {"collect/steps": float(self.collected)}
        if self._last_return is not None:
            metrics["collect/return"] = self._last_return
        return metrics

    def sample(self) -> TensorDictBase:
        """A batch of the dataset's batch size."""
        size = self.offline.batch_size
        mine = 0 if self._online is None else size - round(size * self._fraction)
        if mine == 0:
            return self.offline.sample()
        if mine == size:
            return self._online.sample(size)
        return torch.cat([self.offline.sample(size - mine), self._online.sample(mine)])

    def state_dict(self) -> dict[str, Any]:
        """The dataset's fingerprint and the collected episodes; ends the one under way."""
        self._close_episode()
        return self.offline.state_dict() | {
            "collected": self.collected,
            "last_return": self._last_return,
            "episodes": [
                {field: torch.from_numpy(np.array(getattr(episode, field))) for field in _FIELDS}
                for episode in self._episodes
            ],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it, from a run that was offline only too."""
        state = dict(state_dict)
        episodes = state.pop("episodes", [])
        self.collected = state.pop("collected", 0)
        self._last_return = state.pop("last_return", None)
        self.offline.load_state_dict(state)
        self._obs = None
        self._episode = {field: [] for field in _FIELDS}
        self._episodes = [
            Dataset(**{field: tensor.cpu().numpy() for field, tensor in episode.items()})
            for episode in episodes
        ]
        self._rebuild()

    def _act(self, actor: nn.Module) -> np.ndarray:
        obs = torch.from_numpy(np.asarray(self._obs, dtype=self._spaces.obs_dtype)).unsqueeze(0)
        device = next(actor.parameters()).device
        with set_exploration_type(ExplorationType.RANDOM), torch.no_grad():
            data = actor(TensorDict({"observation": obs.to(device)}, [1]))
        action = data["action"].squeeze(0).cpu().numpy()
        return np.clip(action, self._spaces.low, self._spaces.high).astype(np.float32)

    def _close_episode(self) -> None:
        if self._episode["rewards"]:
            if not self._episode["terminals"][-1]:
                self._episode["timeouts"][-1] = True
            seen = self._spaces.obs_dtype
            kinds = (seen, "float32", "float32", seen, bool, bool)
            arrays = {
                field: np.asarray(self._episode[field], dtype=kind)
                for field, kind in zip(_FIELDS, kinds, strict=True)
            }
            self._episodes.append(Dataset(**arrays, source="collected"))
            while sum(map(len, self._episodes)) > self._capacity and len(self._episodes) > 1:
                self._episodes.pop(0)
            self._rebuild()
        self._obs = None
        self._episode = {field: [] for field in _FIELDS}

    def _rebuild(self) -> None:
        if self._episodes:
            joined = {
                field: np.concatenate([getattr(e, field) for e in self._episodes])
                for field in _FIELDS
            }
            self._online = self.offline.like(Dataset(**joined, source="collected"))
