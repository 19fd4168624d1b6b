"""Several steps of reward before the bootstrap, looked up when a row is sampled."""

from typing import Any

import torch
from tensordict import NestedKey
from torch import Tensor
from torchrl.data import TensorStorage
from torchrl.data.replay_buffers import SampleUnit

from composerl.data.replay.storage import PackedStorage, newest_row
from composerl.data.replay.tables import path_of

__all__ = ["NStep"]

_EPISODE = ("collector", "traj_ids")


class NStep(SampleUnit):
    r"""A sampled row looks ahead: TorchRL's ``sample_unit=`` of a replay buffer.

    Its reward becomes :math:`\sum_{k<m} \gamma^k r_k`, its next state that of m steps later, and
    ``steps_to_next_obs`` is m, which a TorchRL value estimator raises gamma to. m is n, or less
    where the episode ends or the newest stored step is reached. Which rows are of one episode
    tell the collector's ``traj_ids``; without them, ``done`` tells where it ends.

    TorchRL's ``MultiStepTransform`` does that when rows are written. It holds rows back until n
    more have come, loses those that it holds when a run is resumed (they are not in its
    ``state_dict``), and joins what it holds with the next batch even if the collector was reset in
    between. Here rows are stored as they came: nothing is held back, a checkpoint is the
    storage's, and one buffer can be sampled with any n.

    Args:
        n: steps that a sampled row spans, at most.
        gamma: discount of the rewards within those steps; the loss's own.
        num_envs: environments that take turns in the storage, row by row: that of batches
            ``(environments, 1)`` which are stored by ``extend(batch.reshape(-1))``.
    """

    def __init__(self, n: int, gamma: float, num_envs: int = 1) -> None:
        for name, value in (("n", n), ("num_envs", num_envs)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], got {gamma}")
        self.n = n
        self.gamma = gamma
        self.num_envs = num_envs
        self._ahead = num_envs * torch.arange(n)  # rows
        self._discounts = gamma ** torch.arange(n)

    def expand(
        self, index: Tensor, info: dict[Any, Any], storage: TensorStorage
    ) -> tuple[Tensor, dict[Any, Any]]:
        """The same rows, with what follows them ``n`` steps later as their ``next``."""
        if self.n == 1:
            return index, info
        ahead, discounts = self._ahead.to(index.device), self._discounts.to(index.device)
        start, rows = index.unsqueeze(1), len(storage)
        path = (start + ahead) % rows
        # Beyond the newest row the ring holds the oldest ones.
        later = (newest_row(storage) - start) % rows
        alive = _same_episode(storage, path) & (ahead <= later)
        count = alive.sum(1)
        last = path.gather(1, count.unsqueeze(1) - 1).squeeze(1)
        rewards = _column(storage, ("next", "reward"))[:, 0][path]
        total = (rewards * alive * discounts).sum(1, keepdim=True)
        steps = count.unsqueeze(1)
        if isinstance(storage, PackedStorage):
            columns = storage.next_columns(last)
            columns |= {("next", "reward"): total, ("steps_to_next_obs",): steps}
            storage.put_instead(index, columns)
            return index, info
        # What is in `info` takes the place of what the storage has for the row.
        following = storage.get(last).get("next").set("reward", total)
        found = {("next", *path_of(key)): value for key, value in following.items(True, True)}
        return index, {**info, **found, "steps_to_next_obs": steps}


def _column(storage: TensorStorage, key: NestedKey) -> Any:
    """A column as a view, or None."""
    if isinstance(storage, PackedStorage):
        return storage.column(key)
    return storage.get(slice(None)).get(key, None)


def _same_episode(storage: TensorStorage, path: Tensor) -> Tensor:
    """Which rows of each path are still of the first one's episode."""
    episodes = _column(storage, _EPISODE)
    if episodes is not None:
        seen = episodes.reshape(-1)[path]
        return seen == seen[:, :1]
    done = _column(storage, ("next", "done"))[:, 0][path].long()
    return done.cumsum(1) == done
