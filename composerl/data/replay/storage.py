"""A storage for TorchRL replay buffers that packs columns into tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.data import LazyTensorStorage, TensorStorage

from composerl.data.replay.tables import Column, Layout, nested, pack, path_of, split

__all__ = ["PackedStorage", "newest_row"]


class PackedStorage(LazyTensorStorage):
    """TorchRL's ``LazyTensorStorage``, with columns of one type side by side in one table.

    Rows are drawn from all over memory, so that a sample costs what its gathers cost, and two
    tables take half as long as seven columns: recipes/SPEED.md has a sample of a stock
    ``TensorDictReplayBuffer`` with this storage and with ``LazyTensorStorage``.

    Its content is a TensorDict, of views into the tables, so that TorchRL's samplers, sample units
    and writers find what they look for. Two things differ from ``LazyTensorStorage``: a checkpoint
    (``state_dict``) holds the content, not the capacity, and the keys of a row are those of the
    first rows that were ever written; further ones are ignored.

    Args:
        max_size: rows kept, the newest ones.

    Keyword Args:
        device: where the rows live and the samples come from. Random rows are drawn on the CPU
            whatever it is, so that a run sees the same batches on every device.
    """

    def __init__(self, max_size: int, *, device: str | torch.device = "cpu") -> None:
        if max_size < 1:
            raise ValueError(f"max_size must be at least 1, got {max_size}")
        super().__init__(int(max_size), device=device)
        self._place = torch.device(device)
        if self._place.type == "cpu":
            # Else TorchRL moves all entries of a sample to where they are: a fifth of its time.
            self.device = None
        self._tables: list[Tensor] = []
        self._layout: Layout = []
        self._with_next: list[int] = []  # tables that have a column of the next step
        self._columns: dict[Column, Tensor] = {}  # views of them
        self._instead: tuple[Tensor | None, Mapping[Column, Tensor]] = (None, {})

    # ---- TorchRL's interface -----------------------------------------------------------------

    def set(self, cursor: Any, data: TensorDictBase, *, set_cursor: bool = True) -> None:
        """Write rows."""
        if isinstance(data, list):
            data = torch.stack(data)
        if not data.ndim:
            data = data.unsqueeze(0)
        if data.ndim != 1:
            raise ValueError(
                f"rows must have shape (rows,), got {tuple(data.shape)}: extend the buffer by "
                "batch.reshape(-1)"
            )
        if not self.initialized:
            self._init(data[0])
        if len(data) > self.max_size:
            raise ValueError(f"a batch of {len(data)} rows does not fit into {self.max_size}")
        rows = self._places(cursor)
        first, last = int(rows[0]), int(rows[-1])
        # Rows that lie side by side are written faster.
        where = slice(first, last + 1) if _successive(rows, first, last) else rows
        values = {column: self._values(column, data) for column in self._columns}
        for column, value in values.items():
            self._columns[column][where] = value
        if set_cursor:
            self._set_last_cursor(last)
            self._len = min(len(self) + len(data), self.max_size)
        self._bump_mutation_revision()

    def get(self, index: Any) -> TensorDictBase:
        """The rows at an index."""
        if not isinstance(index, Tensor) or not index.ndim or index.dtype != torch.int64:
            return super().get(index)
        (rows, instead), self._instead = self._instead, (None, {})
        if rows is not index:
            return nested(self._gather(index, range(len(self._tables))), index.shape)
        needed = [
            i for i, (_, names) in enumerate(self._layout) if not instead.keys() >= set(names)
        ]
        return nested({**self._gather(index, needed), **instead}, index.shape)

    def column(self, key: NestedKey) -> Tensor | None:
        """All of a column, written or not, as a view; None if there is none of that key."""
        # Most keys are paths as they are, and to make sure of it takes longer than all the rest.
        return self._columns.get(key) if key in self._columns else self._columns.get(path_of(key))

    def next_columns(self, index: Tensor) -> dict[Column, Tensor]:
        """The columns under ``next`` of the rows at an index, without reading all of the rest."""
        found = self._gather(index, self._with_next)
        return {column: value for column, value in found.items() if column[0] == "next"}

    def put_instead(self, index: Tensor, columns: Mapping[Column, Tensor]) -> None:
        """What the next :meth:`get` of this very index gives in place of its own columns.

        For a sample unit, which a buffer asks right before it reads the rows: what it leaves in
        its ``info`` instead takes five times as long.
        """
        self._instead = (index, columns)

    def state_dict(self) -> dict[str, Any]:
        """The content, and which row is the newest."""
        rows = len(self)
        return {
            "rows": rows,
            "capacity": self.max_size,
            "newest": self._last_cursor_index if rows else None,
            "tables": [table[:rows] for table in self._tables] if rows else [],
            "layout": self._layout if rows else [],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; the capacity must be the same."""
        rows = state_dict["rows"]
        if state_dict["capacity"] != self.max_size:
            raise ValueError(
                f"the storage of the checkpoint has {rows} rows and a capacity of "
                f"{state_dict['capacity']}, this one takes {self.max_size}: use the same"
            )
        if rows:
            self._allocate(state_dict["tables"], state_dict["layout"])
            for table, saved in zip(self._tables, state_dict["tables"], strict=True):
                table[:rows] = saved
            self._set_last_cursor(state_dict["newest"])
        self._len = rows
        self._bump_mutation_revision()

    def _rand_given_ndim(self, batch_size: int) -> Tensor:
        return torch.randint(0, len(self), (batch_size,), generator=self._rng).to(self._place)

    # ---- inside ------------------------------------------------------------------------------

    def _init(self, data: TensorDictBase) -> None:
        """Make the tables for rows like this one."""
        keys = [key for key in data.keys(True, True) if key != "index"]  # a buffer writes that
        self._allocate(*pack({path_of(key): data.get(key).unsqueeze(0) for key in keys}))

    def _places(self, cursor: Any) -> Tensor:
        """The rows that an index of any kind means."""
        if isinstance(cursor, slice):
            cursor = range(*cursor.indices(len(self._tables[0])))
        rows = torch.as_tensor(cursor).reshape(-1)
        return rows.nonzero().squeeze(1) if rows.dtype == torch.bool else rows

    def _allocate(self, like: Sequence[Tensor], layout: Layout) -> None:
        # Not zeros: memory that nothing was written to is not taken from the system.
        shapes = [((self.max_size, *table.shape[1:]), table.dtype) for table in like]
        tables = [torch.empty(shape, dtype=t, device=self._place) for shape, t in shapes]
        self._adopt(tables, layout)

    def _adopt(self, tables: list[Tensor], layout: Layout) -> None:
        self._tables = tables
        self._layout = [(list(widths), [tuple(n) for n in names]) for widths, names in layout]
        self._columns = split(self._tables, self._layout)
        named = [[column[0] for column in names] for _, names in self._layout]
        self._with_next = [i for i, roots in enumerate(named) if "next" in roots]
        self._storage = nested(self._columns, torch.Size([len(tables[0])]))
        self.initialized = True

    def __getstate__(self) -> dict[str, Any]:
        # Not the views: a copy of them is not one of the copied tables.
        return super().__getstate__() | {"_columns": {}, "_storage": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._tables:
            self._adopt(self._tables, self._layout)

    def _gather(self, index: Tensor, tables: Sequence[int]) -> dict[Column, Tensor]:
        if not self.initialized:
            raise RuntimeError("the storage is empty: extend the buffer before sampling")
        rows = index.reshape(-1)
        drawn = [self._tables[i].index_select(0, rows) for i in tables]
        found = split(drawn, [self._layout[i] for i in tables])
        if index.ndim > 1:
            found = {column: value.unflatten(0, index.shape) for column, value in found.items()}
        return found

    def _values(self, column: Column, data: TensorDictBase) -> Tensor:
        value, like = data.get(column, None), self._columns[column]
        if value is None:
            raise ValueError(f"rows lack {column}, which those stored before have")
        if value.shape[1:] != like.shape[1:] or value.dtype != like.dtype:
            raise ValueError(
                f"{column} has shape {tuple(value.shape[1:])} and type {value.dtype}, but "
                f"{tuple(like.shape[1:])} and {like.dtype} were stored before"
            )
        return value.to(like.device)


def newest_row(storage: TensorStorage) -> int:
    """Which row of a storage was written last."""
    # None: it was loaded and not written since, and is TorchRL's own, which does not save it.
    newest = storage._last_cursor_index
    return len(storage) - 1 if newest is None else newest


def _successive(rows: Tensor, first: int, last: int) -> bool:
    if first < 0 or last - first != len(rows) - 1:
        return False
    return torch.equal(rows, torch.arange(first, last + 1, device=rows.device))
