"""Replay of sequences, for models with memory: records of several environments, cut in slices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

__all__ = ["SequenceReplay"]

#: What a record has, and the type it is stored in (None: as it comes).
RECORD = {
    "observation": None,
    "action": None,
    "reward": torch.float32,
    "first": torch.bool,
    "terminal": torch.bool,
}


class SequenceReplay:
    """The newest records of a :class:`~composerl.data.RecordCollector`, sampled as slices.

    A record is what an environment shows at time t and how it came there: ``observation``, the
    ``action`` taken before it, the ``reward`` for that, ``first`` (the episode starts here:
    action and reward are 0) and ``terminal``. A slice is ``1 + length`` successive records of one
    environment, drawn uniformly: one for context and ``length`` to train on. It may cross the end
    of an episode, which the next record's ``first`` tells, but never leads from the newest record
    to the oldest. ``first`` is only ever true where an episode starts: a slice that starts in the
    middle of one is to go on from a latent state, not from zeros.

    For that, a model may leave its latents with the records (``latents``, :meth:`write_latents`):
    samples then have them, zeros until then, and ``known``, whether they have been written.

    TorchRL's ``SliceSampler`` takes about ten times as long and, by default, marks each slice's
    start as an episode's. Records stay in main memory, uint8 as uint8: a million of 64 x 64 grey
    pixels take 4.1 GB, less while there are fewer. A checkpoint (``state_dict``) holds the
    content, not the capacity.

    Args:
        capacity: records kept, over all environments; rounded down to a multiple of their number.
        batch_size: slices of a sample.
        length: records of a slice, without its context.

    Keyword Args:
        latents: shape of each latent of a record, by name: kept as float16, or with the type if
            given as ``(shape, dtype)``; ``torch.uint8`` holds one-hot classes exactly.
        device: where the samples go.
    """

    def __init__(
        self,
        capacity: int,
        batch_size: int,
        length: int,
        *,
        latents: Mapping[str, Any] | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        for name, value in (("batch_size", batch_size), ("length", length)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if capacity < 1 + length:
            raise ValueError(
                f"capacity must be at least 1 + length = {1 + length}, a slice and its context, "
                f"got {capacity}"
            )
        self.capacity = capacity
        self.batch_size = batch_size
        self.length = length
        self._latents = {name: _shape_and_type(name, v) for name, v in (latents or {}).items()}
        self._device = torch.device(device)
        self._tables: dict[str, Tensor] = {}  # (time * environments, ...), a ring
        self._lanes = 1
        self._filled = self._cursor = 0  # in records of each environment
        self._ahead = torch.arange(1 + length)

    def __len__(self) -> int:
        return self._filled * self._lanes

    def extend(self, records: TensorDictBase) -> None:
        """Store records ``(environments, time)``, which go on from those stored before."""
        if records.ndim != 2:
            raise ValueError(
                f"records must have shape (environments, time), got {tuple(records.shape)}"
            )
        lanes, steps = records.shape
        columns = {key: self._column(records, key, dtype) for key, dtype in RECORD.items()}
        if not self._tables:
            self._allocate(columns, lanes)
        elif lanes != self._lanes:
            raise ValueError(
                f"records of {self._lanes} environments were stored before, got {lanes}"
            )
        if steps > self._room:
            raise ValueError(
                f"{steps} records of each environment do not fit into {self._room} "
                f"(capacity {self.capacity}, {lanes} environments)"
            )
        for key, column in columns.items():
            table = self._tables[key]
            if column.shape[2:] != table.shape[1:] or column.dtype != table.dtype:
                raise ValueError(
                    f"records' {key} has shape {tuple(column.shape[2:])} and type {column.dtype}, "
                    f"but {tuple(table.shape[1:])} and {table.dtype} were stored before"
                )
        # Where the ring ends, the rest goes to its start.
        ahead = min(steps, self._room - self._cursor)
        parts = [(slice(0, ahead), self._cursor * lanes)]
        if ahead < steps:
            parts.append((slice(ahead, steps), 0))
        for part, row in parts:
            rows = slice(row, row + (part.stop - part.start) * lanes)
            for key, column in columns.items():
                # A step's environments lie side by side, so that the filled rows come first.
                self._tables[key][rows] = column[:, part].transpose(0, 1).flatten(0, 1)
            for name in (*self._latents, "known") if self._latents else ():
                self._tables[name][rows] = 0
        self._cursor = (self._cursor + steps) % self._room
        self._filled = min(self._filled + steps, self._room)

    def sample(self) -> TensorDict:
        """Slices ``(batch_size, 1 + length)`` of records, with their ``index``."""
        starts = self._filled - self.length
        if starts < 1:
            raise RuntimeError(
                f"there are {self._filled} records of each environment, and a slice takes "
                f"{1 + self.length} (length {self.length} and one for context): collect more first"
            )
        drawn = torch.randint(0, starts * self._lanes, (self.batch_size, 1))
        start = torch.div(drawn, self._lanes, rounding_mode="floor")
        oldest = self._cursor if self._filled == self._room else 0
        step = (oldest + start + self._ahead) % self._room
        index = step * self._lanes + drawn % self._lanes
        rows = index.flatten()
        found = {
            key: table.index_select(0, rows).view(*index.shape, *table.shape[1:])
            for key, table in self._tables.items()
        }
        # The public constructor checks every entry again.
        batch = TensorDict._new_unsafe(found | {"index": index}, index.shape)
        return batch if self._device.type == "cpu" else batch.to(self._device)

    def write_latents(self, batch: TensorDictBase) -> None:
        """Leave the latents that a loss has written into a sample with its records.

        Not with the context: its latents may have come from zeros, and better ones do when the
        record is further inside a slice. To be called before records are added, which may take
        the place of those sampled.
        """
        if not self._latents:
            raise ValueError("the replay was made without latents: it has no place for them")
        index = batch["index"][:, 1:].cpu()
        shape = (*batch.shape[:1], self.length)
        for name, (row_shape, dtype) in self._latents.items():
            values = batch[name][:, 1:]
            if values.shape != (*shape, *row_shape):
                raise ValueError(
                    f"latent {name} must have shape {(shape[0], 1 + shape[1], *row_shape)}, "
                    f"got {tuple(batch[name].shape)}"
                )
            # Slices may share records: one after the other, as several threads would mix them.
            for rows, slice_ in zip(index, values.detach().to("cpu", dtype), strict=True):
                self._tables[name][rows] = slice_
        self._tables["known"][index.flatten()] = True

    def state_dict(self) -> dict[str, Any]:
        """The content."""
        rows = len(self)
        return {
            "lanes": self._lanes,
            "filled": self._filled,
            "cursor": self._cursor,
            "tables": {key: table[:rows] for key, table in self._tables.items()},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; capacity and latents must be the same."""
        tables, lanes, filled = (state_dict[key] for key in ("tables", "lanes", "filled"))
        room = self.capacity // lanes
        if filled > room or (filled < room and state_dict["cursor"] != filled):
            raise ValueError(
                f"the replay of the checkpoint has {filled * lanes} records and another capacity "
                f"than {self.capacity}: use the same"
            )
        self._tables, self._lanes, self._filled = {}, lanes, filled
        self._cursor = state_dict["cursor"]
        if not tables:
            return
        self._allocate({key: tables[key].unsqueeze(0) for key in RECORD}, lanes)
        saved, own = _row_shapes(tables), _row_shapes(self._tables)
        if saved != own:
            raise ValueError(
                f"the replay of the checkpoint holds {saved}, this one {own}: use the same latents"
            )
        for key, table in self._tables.items():
            table[: filled * lanes] = tables[key]

    # ---- inside ----------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        """Records that each environment has a place for."""
        return self.capacity // self._lanes

    def _column(self, records: TensorDictBase, key: str, dtype: torch.dtype | None) -> Tensor:
        column = records.get(key, None)
        if column is None:
            raise ValueError(f"records lack {key!r}: expected {list(RECORD)}")
        if dtype is not None and column.ndim != 2:
            raise ValueError(
                f"records' {key} must have shape (environments, time), got {tuple(column.shape)}"
            )
        return column.detach().to(device="cpu", dtype=dtype)

    def _allocate(self, columns: Mapping[str, Tensor], lanes: int) -> None:
        if self.capacity // lanes < 1 + self.length:
            raise ValueError(
                f"capacity must be at least {lanes} environments x (1 + length) = "
                f"{lanes * (1 + self.length)}, got {self.capacity}"
            )
        self._lanes = lanes
        rows = self.capacity // lanes * lanes
        # Not zeros: memory that nothing was written to is not taken from the system.
        self._tables = {
            key: torch.empty((rows, *column.shape[2:]), dtype=column.dtype)
            for key, column in columns.items()
        }
        for name, (shape, dtype) in self._latents.items():
            self._tables[name] = torch.empty((rows, *shape), dtype=dtype)
        if self._latents:
            self._tables["known"] = torch.zeros(rows, dtype=torch.bool)


def _row_shapes(tables: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(table.shape[1:]) for key, table in tables.items()}


def _shape_and_type(name: str, value: Any) -> tuple[tuple[int, ...], torch.dtype]:
    if name in RECORD or name in ("known", "index"):
        raise ValueError(f"latents must not be named {name!r}, which a sample has already")
    shape, dtype = value if isinstance(value[-1], torch.dtype) else (value, torch.float16)
    return tuple(shape), dtype
