"""The replay buffer of online learning: uniform or prioritized, one step or several."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer, TensorStorage
from torchrl.data.replay_buffers.samplers import RandomSampler

from composerl.data.replay.prioritized import PrioritizedSampler
from composerl.data.replay.tables import Home, Tables, layout

__all__ = ["ReplayBuffer"]

_NOT_STORED = ("done", "terminated", "truncated", "collector", "index")


class ReplayBuffer(TensorDictReplayBuffer):
    r"""Transitions of a collector, the newest ``capacity`` of them.

    With ``n_step`` larger than 1 a sampled row looks ahead: its reward is
    :math:`\sum_{k<m} \gamma^k r_k`, its next state that of m steps later, and
    ``steps_to_next_obs`` is m, which a TorchRL value estimator raises gamma to. m is n, or less
    where the episode ends or the newest stored step is reached. Rows are stored as they came, so
    that the same buffer can be sampled with any n.

    With ``prioritized``, rows are drawn by :class:`~composerl.data.PrioritizedSampler`, batches
    have ``priority_weight``, and ``update_tensordict_priority(batch)`` takes the loss's
    ``td_error`` over.

    If an environment's next batch does not go on where its last one ended (the collector was
    reset), that last step is marked as truncated, so that no sampled row crosses the gap.

    A checkpoint (``state_dict``) holds the content, not the capacity.

    Args:
        capacity: transitions kept, rounded down to a multiple of the number of environments.
        batch_size: rows of a sample.

    Keyword Args:
        n_step: steps that a sampled row spans, at most.
        gamma: discount of the rewards within those steps; the loss's own.
        prioritized: draw by priority instead of uniformly.
        alpha: exponent of the priorities.
        beta: exponent of the importance weights.
        device: where the data live and the batches come from.
    """

    def __init__(
        self,
        capacity: int,
        batch_size: int,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        prioritized: bool = False,
        alpha: float = 0.6,
        beta: float = 0.4,
        device: str | torch.device = "cpu",
    ) -> None:
        for name, value in (("capacity", capacity), ("batch_size", batch_size), ("n_step", n_step)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], got {gamma}")
        sampler = PrioritizedSampler(capacity, alpha, beta) if prioritized else RandomSampler()
        # The real storage is made when the first batch tells what a row looks like.
        super().__init__(
            storage=LazyTensorStorage(capacity), sampler=sampler, batch_size=batch_size
        )
        self.n_step = n_step
        self.gamma = gamma
        self._capacity = capacity
        self._home_device = torch.device(device)
        self._tables: Tables | None = None
        self._stride = 1
        self._cursor = 0
        self._ahead: Tensor | None = None

    def extend(
        self, tensordicts: TensorDictBase, *, update_priority: bool | None = None
    ) -> torch.Tensor:
        """Store a batch ``(time,)`` or ``(environments, time)``; returns the rows it went to."""
        batch = tensordicts
        if batch.ndim not in (1, 2):
            raise ValueError(
                f"a batch of shape (time,) or (environments, time) is needed, got {batch.shape}"
            )
        stride = batch.shape[0] if batch.ndim == 2 else 1
        if self._tables is None:
            self._allocate(batch, stride)
        if stride != self._stride:
            raise ValueError(
                f"batches of {self._stride} environments were stored before, got one of {stride}"
            )
        number, capacity = batch.numel(), len(self._tables)
        if number > capacity:
            raise ValueError(f"a batch of {number} rows does not fit into {capacity}")
        if self.n_step > 1 and len(self):
            self._mark_gaps(batch)
        # The row of an environment's next step is always `stride` further on.
        for home, column in self._views.items():
            self._write(column, _rows(batch, home), number)
        self._storage._len = min(len(self._storage) + number, capacity)
        index = torch.arange(self._cursor, self._cursor + number) % capacity
        self._cursor = (self._cursor + number) % capacity
        self._writer._cursor = self._cursor
        self._writer._write_count += number
        if isinstance(self._sampler, PrioritizedSampler):
            self._sampler.extend(index)
            self._sampler.mark_update(index)
        return index

    def add(self, data: TensorDictBase) -> int:
        """Store one transition."""
        return int(self.extend(data.unsqueeze(0))[0])

    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        include_info: bool | None = None,
    ) -> TensorDictBase:
        """A batch of ``batch_size`` rows (that of the constructor by default), with ``index``."""
        size = self._batch_size if batch_size is None else batch_size
        index, info = self._draw(size)
        columns = self._tables.rows(index) if self.n_step == 1 else self._look_ahead(index)
        batch = layout(columns, index.shape, index=index, **info)
        if len(self._transform):
            batch = self._transform(batch)
        return (batch, info | {"index": index}) if return_info else batch

    def empty(self, *args: Any, **kwargs: Any) -> None:
        """Forget all rows, and where the next one goes."""
        super().empty(*args, **kwargs)
        self._cursor = 0

    def state_dict(self) -> dict[str, Any]:
        """The content."""
        rows = len(self)
        return {
            "rows": rows,
            "capacity": self._capacity,
            "stride": self._stride,
            "cursor": self._cursor,
            "written": self._writer._write_count,
            "tables": [table[:rows] for table in self._tables.tables] if rows else [],
            "homes": self._tables.homes if rows else [],
            "sampler": dict(self._sampler.state_dict()),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; the capacity must be the same."""
        rows = state_dict["rows"]
        if state_dict["capacity"] != self._capacity:
            raise ValueError(
                f"the buffer of the checkpoint has {rows} rows and a capacity of "
                f"{state_dict['capacity']}, this one takes {self._capacity}: use the same"
            )
        if rows:
            self._adopt(state_dict["tables"], state_dict["homes"], state_dict["stride"])
            for table, saved in zip(self._tables.tables, state_dict["tables"], strict=True):
                table[:rows] = saved
        self._storage._len = rows
        self._cursor = self._writer._cursor = state_dict["cursor"]
        self._writer._write_count = state_dict["written"]
        self._sampler.load_state_dict(state_dict["sampler"])

    # ---- inside ----------------------------------------------------------------------------

    def _allocate(self, batch: TensorDictBase, stride: int) -> None:
        homes: list[Home] = [(False, key) for key in batch.keys() if key not in _NOT_STORED]  # noqa: SIM118
        homes.remove((False, "next"))
        homes += [(True, key) for key in batch["next"].keys()]  # noqa: SIM118
        first = {home: _rows(batch, home)[:1] for home in homes}
        packed = Tables.of(first, apart=True)
        self._adopt(packed.tables, packed.homes, stride)

    def _adopt(
        self, like: list[Tensor], homes: list[tuple[list[int], list[Home]]], stride: int
    ) -> None:
        """Make the tables, with rows that look like those given, and TorchRL's storage of them."""
        capacity = self._capacity // stride * stride
        if not capacity:
            raise ValueError(
                f"capacity must be at least the number of environments, {stride}, "
                f"got {self._capacity}"
            )
        made = [
            torch.zeros((capacity, *t.shape[1:]), dtype=t.dtype, device=self._home_device)
            for t in like
        ]
        self._tables = Tables(made, homes)
        self._views = self._tables.columns()
        self._stride = stride
        length = len(self._storage)
        self._storage = TensorStorage(self._tables.content())
        self._storage._len = length
        self._writer.register_storage(self._storage)

    def _write(self, column: Tensor, values: Tensor, number: int) -> None:
        values = values.to(column.device)
        end = self._cursor + number
        capacity = len(self._tables)
        if end <= capacity:
            column[self._cursor : end] = values
        else:
            kept = capacity - self._cursor
            column[self._cursor :] = values[:kept]
            column[: end - capacity] = values[kept:]

    def _mark_gaps(self, batch: TensorDictBase) -> None:
        newest = slice((self._cursor or len(self._tables)) - self._stride, self._cursor or None)
        ended = self._views[True, "observation"][newest]
        begun = _rows(batch, (False, "observation"))[: self._stride].to(ended.device)
        gap = (ended != begun).flatten(1).any(1, keepdim=True)
        gap &= ~self._views[True, "done"][newest]
        if gap.any():
            self._views[True, "truncated"][newest] |= gap
            self._views[True, "done"][newest] |= gap

    def _draw(self, size: int) -> tuple[Tensor, dict[str, Tensor]]:
        rows = len(self)
        if not rows:
            raise RuntimeError("the replay buffer is empty: extend it before sampling")
        # Drawn on the CPU, so that a run sees the same batches on every device.
        if type(self._sampler) is RandomSampler:
            index, info = torch.randint(0, rows, (size,)), {}
        else:
            index, info = self._sampler.sample(self._storage, size)
            info = {key: value.to(self._home_device) for key, value in info.items()}
        return index.to(self._home_device), info

    def _look_ahead(self, index: Tensor) -> dict[Home, Tensor]:
        capacity, stride = len(self._tables), self._stride
        if self._ahead is None:
            self._ahead = torch.arange(self.n_step, device=self._home_device)
            self._discounts = self.gamma**self._ahead
        column = index.unsqueeze(1)
        path = (column + stride * self._ahead) % capacity
        # Steps of the same environment stored after this one: beyond the newest row the ring
        # holds the oldest ones.
        later = torch.div((self._cursor - 1 - column) % capacity, stride, rounding_mode="floor")
        done = self._views[True, "done"][:, 0][path].long()
        alive = (done.cumsum(1) == done) & (self._ahead <= later)
        count = alive.sum(1)
        rewards = self._views[True, "reward"][:, 0][path]
        last = path.gather(1, count.unsqueeze(1) - 1).squeeze(1)
        columns = self._tables.rows(index, last)
        columns[True, "reward"] = (rewards * alive * self._discounts).sum(1, keepdim=True)
        columns[False, "steps_to_next_obs"] = count.unsqueeze(1)
        return columns


def _rows(batch: TensorDictBase, home: Home) -> Tensor:
    """A column of the batch as rows: step by step, all environments of a step together."""
    values = batch.get(("next", home[1]) if home[0] else home[1])
    return values if batch.ndim == 1 else values.transpose(0, 1).flatten(0, 1)
