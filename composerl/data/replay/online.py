"""From offline to online: a dataset, joined by what the agent itself experiences."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from composerl.data.collect.vector import VectorCollector
from composerl.data.offline.buffer import OfflineBuffer
from composerl.data.offline.dataset import Dataset
from composerl.envs import make_env
from composerl.envs.spaces import Spaces

__all__ = ["MixedBuffer"]

#: Columns of a dataset, and where the collector's batches have them.
_COLUMNS = {
    "observations": "observation",
    "actions": "action",
    "rewards": ("next", "reward"),
    "next_observations": ("next", "observation"),
    "terminals": ("next", "terminated"),
    "timeouts": ("next", "truncated"),
}


class MixedBuffer:
    """Batches from a dataset, and from the episodes that :meth:`collect` plays, in a fixed share.

    An episode joins when it is over, so that its Monte Carlo returns are known. Until the first
    one has, batches come from the dataset alone.

    A checkpoint (``state_dict``) holds the episodes, the part of the one under way, and what its
    :class:`~composerl.data.VectorCollector` needs to play that part again.

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
        Spaces.of(env).require_box("MixedBuffer")
        self._fraction = offline_fraction
        self._capacity = capacity
        self._seed = seed
        self._collector: VectorCollector | None = None
        self._saved: dict[str, Any] | None = None  # of a collector that is yet to be made
        self._episode: list[dict[str, Tensor]] = []  # the one under way, step by step
        self._episodes: list[Dataset] = []
        self._online: OfflineBuffer | None = None

    def collect(self, actor: nn.Module) -> dict[str, float]:
        """One step of the environment by a sample of the policy; returns metrics."""
        if self._collector is None:
            self._collector = VectorCollector(
                make_env(self._env_id), actor, frames_per_batch=1, seed=self._seed
            )
            if self._saved is not None:
                self._collector.load_state_dict(self._saved)
        step = self._collector.next()
        if self._episode and not torch.equal(
            self._episode[-1]["next_observations"], step["observation"].squeeze(0)
        ):
            # The environment could not be brought back to where it was: the episode ends there.
            self._episode[-1]["timeouts"] = ~self._episode[-1]["terminals"]
            self._close_episode()
        self._episode.append({name: step[key].squeeze(0) for name, key in _COLUMNS.items()})
        self.collected += 1
        if step["next", "done"].item():
            self._close_episode()
        return {"collect/steps": float(self.collected), **self._collector.metrics()}

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
        """The dataset's fingerprint, the episodes, and what the collector needs to go on."""
        collector = self._saved
        if self._collector is not None:
            collector = self._collector.state_dict()
            # Whoever trains the policy restores it; by the time of the next step it may be newer.
            collector.pop("policy_state_dict", None)
        return self.offline.state_dict() | {
            "collected": self.collected,
            "collector": collector,
            "episode": list(self._episode),
            "episodes": [
                {name: torch.from_numpy(np.array(getattr(episode, name))) for name in _COLUMNS}
                for episode in self._episodes
            ],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it, from a run that was offline only too."""
        state = dict(state_dict)
        episodes = state.pop("episodes", [])
        self.collected = state.pop("collected", 0)
        self._saved, self._collector = state.pop("collector", None), None
        self._episode = list(state.pop("episode", []))
        self.offline.load_state_dict(state)
        self._episodes = [
            Dataset(**{name: tensor.cpu().numpy() for name, tensor in episode.items()})
            for episode in episodes
        ]
        self._rebuild()

    def _close_episode(self) -> None:
        joined = {
            name: torch.stack([step[name] for step in self._episode]).numpy() for name in _COLUMNS
        }
        for name in ("rewards", "terminals", "timeouts"):
            joined[name] = joined[name].squeeze(-1)
        joined["timeouts"] &= ~joined["terminals"]
        self._episodes.append(Dataset(**joined, source="collected"))
        self._episode = []
        while sum(map(len, self._episodes)) > self._capacity and len(self._episodes) > 1:
            self._episodes.pop(0)
        self._rebuild()

    def _rebuild(self) -> None:
        if self._episodes:
            joined = {
                field: np.concatenate([getattr(e, field) for e in self._episodes])
                for field in _COLUMNS
            }
            self._online = self.offline.like(Dataset(**joined, source="collected"))
