"""Several steps of reward before the bootstrap, looked up when a row is sampled."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrl.data import TensorStorage
from torchrl.data.replay_buffers import SampleUnit

from composerl.data.replay.storage import PackedStorage, newest_row
from composerl.data.replay.tables import path_of

__all__ = ["NStep"]

_EPISODE, _REWARD = ("collector", "traj_ids"), ("next", "reward")


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
        self._ahead = num_envs * np.arange(n)[:, None]  # rows
        self._discounts = (gamma ** torch.arange(n)).numpy()[:, None]

    def expand(
        self, index: Tensor, info: dict[Any, Any], storage: TensorStorage
    ) -> tuple[Tensor, dict[Any, Any]]:
        """The same rows, with what follows them ``n`` steps later as their ``next``."""
        if self.n == 1:
            return index, info
        ahead: Any = self._ahead
        discounts: Any = self._discounts
        # So few numbers take numpy a third of the time: tensors are for other devices only.
        array: Any = Tensor.numpy
        tensor: Any = torch.from_numpy
        if index.device.type != "cpu":
            array = tensor = _same
            ahead, discounts = (torch.from_numpy(x).to(index.device) for x in (ahead, discounts))
        packed = isinstance(storage, PackedStorage)
        column = storage.column if packed else storage.get(slice(None)).get
        start, rows = array(index), len(storage)
        path = start + ahead
        path %= rows
        # Beyond the newest row the ring holds the oldest ones.
        alive = ahead <= (newest_row(storage) - start) % rows
        if (episodes := column(_EPISODE)) is not None:
            seen = array(episodes).reshape(-1)[path]
            alive &= seen == seen[0]
        else:
            done = array(column(("next", "done")))[:, 0][path]
            alive &= done.cumsum(0) == done
        count = alive.sum(0)
        rewards = array(column(_REWARD))[:, 0][path] * alive * discounts
        total, steps = tensor(rewards.sum(0)[:, None]), tensor(count[:, None])
        last = tensor((start + (count - 1) * self.num_envs) % rows)
        if packed:
            columns = storage.next_columns(last)
            columns |= {_REWARD: total, ("steps_to_next_obs",): steps}
            storage.put_instead(index, columns)
            return index, info
        # What is in `info` takes the place of what the storage has for the row.
        following = storage.get(last).get("next").set("reward", total)
        found = {("next", *path_of(key)): value for key, value in following.items(True, True)}
        return index, {**info, **found, "steps_to_next_obs": steps}


def _same(x: Any) -> Any:
    return x
