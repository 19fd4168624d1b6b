"""A storage of the latest rounds of something, however many rows each brought."""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase

from composerl.data.replay.storage import PackedStorage

__all__ = ["LatestStorage"]


class LatestStorage(PackedStorage):
    """The rows of the last ``keep`` calls of ``extend``, however many each brought.

    For imagined data, which age as the model and the policy move on: a ring of a fixed size would
    keep more rounds when rollouts are short. An index that ``extend`` returns is of no use
    afterwards, as rows move up.

    Args:
        keep: calls whose rows are kept.

    Keyword Args:
        device: where the rows live.
    """

    def __init__(self, keep: int, *, device: str | torch.device = "cpu") -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        super().__init__(torch.iinfo(torch.int64).max, device=device)
        self._keep = keep
        self._sizes: list[int] = []

    def set(self, cursor: Any, data: TensorDictBase, *, set_cursor: bool = True) -> None:
        """Append a round; drops the oldest beyond ``keep``."""
        if not set_cursor:  # storage[index] = rows
            super().set(cursor, data, set_cursor=False)
            return
        if not data.ndim:
            data = data.unsqueeze(0)
        if data.ndim != 1 or not len(data):
            raise ValueError(f"rows of shape (rows,) are needed, got {tuple(data.shape)}")
        fresh = PackedStorage(len(data), device=self._place)
        fresh.set(torch.arange(len(data)), data)
        gone = self._sizes[: max(0, len(self._sizes) + 1 - self._keep)]
        self._sizes = [*self._sizes[len(gone) :], len(data)]
        new = fresh._tables
        if len(self):
            pairs = zip(self._tables, new, strict=True)
            new = [torch.cat([old[sum(gone) :], added]) for old, added in pairs]
        self._adopt(new, fresh._layout)
        self._len = len(new[0])
        self._bump_mutation_revision()

    def state_dict(self) -> dict[str, Any]:
        """The rows, and how many each round has."""
        return super().state_dict() | {"sizes": list(self._sizes)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._sizes = list(state_dict["sizes"])
        if self._sizes:
            tables = [table.to(self._place) for table in state_dict["tables"]]
            self._adopt(tables, state_dict["layout"])
        self._len = sum(self._sizes)
        self._bump_mutation_revision()

    def _empty(self) -> None:
        super()._empty()
        self._sizes = []
