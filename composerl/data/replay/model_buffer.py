"""Imagined transitions, and batches that mix them with real ones."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase

from composerl.data.replay.tables import Home, Tables, layout
from composerl.data.replay.transitions import ReplayBuffer

__all__ = ["ModelBuffer"]


class ModelBuffer:
    """The latest imagined rollouts; a sample has an exact share of real transitions.

    Imagined data age as the model and the policy move on, so that only the last ``keep`` calls of
    :meth:`extend` are kept, however many rows they brought. Before the first one, samples are all
    real. ``state_dict`` holds the imagined rows: track the real buffer beside it.

    Args:
        real: where the real rows are drawn from.

    Keyword Args:
        batch_size: rows of a sample.
        real_share: share of real rows in each sample, in [0, 1]: 5 % of 256 are 13 rows.
        keep: rollouts kept. The paper keeps about one epoch: 4, if there is one every 250 steps.
    """

    def __init__(
        self, real: ReplayBuffer, *, batch_size: int = 256, real_share: float = 0.05, keep: int = 4
    ) -> None:
        if not 0 <= real_share <= 1:
            raise ValueError(f"real_share must be in [0, 1], got {real_share}")
        for name, value in (("batch_size", batch_size), ("keep", keep)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.real = real
        self.batch_size = batch_size
        self.real_rows = round(real_share * batch_size)
        self._keep = keep
        self._sizes: list[int] = []
        self._tables: Tables | None = None

    def __len__(self) -> int:
        return sum(self._sizes)

    def extend(self, batch: TensorDictBase) -> None:
        """Store the transitions ``(rows,)`` of one rollout; drops the oldest beyond ``keep``."""
        if batch.ndim != 1 or not len(batch):
            raise ValueError(f"imagined rows of shape (rows,) are needed, got {tuple(batch.shape)}")
        columns: dict[Home, torch.Tensor] = {
            (False, key): batch.get(key)
            for key in batch.keys()  # noqa: SIM118
            if key != "next"
        }
        columns |= {(True, key): value for key, value in batch.get("next").items()}
        new = Tables.of(columns)
        old = self._sizes[: max(0, len(self._sizes) + 1 - self._keep)]
        self._sizes = [*self._sizes[len(old) :], len(batch)]
        if self._tables is not None:
            joined = zip(self._tables.tables, new.tables, strict=True)
            new = Tables([torch.cat([a[sum(old) :], b]) for a, b in joined], new.homes)
        self._tables = new

    def sample(self) -> TensorDictBase:
        """A batch: first the real rows, then the imagined ones."""
        if self._tables is None or self.real_rows == self.batch_size:
            return self.real.sample(self.batch_size)
        number = self.batch_size - self.real_rows
        # Drawn on the CPU, so that a run sees the same batches on every device.
        index = torch.randint(0, len(self), (number,)).to(self._tables.device)
        columns = self._tables.rows(index)
        if self.real_rows:
            real = self.real.sample(self.real_rows)
            # As dictionaries: a TensorDict takes as long to find an entry as to join two columns.
            found = (dict(real.items()), dict(real.get("next").items()))
            columns = {
                (following, key): torch.cat([found[following][key], column])
                for (following, key), column in columns.items()
            }
        return layout(columns, torch.Size([self.batch_size]))

    def state_dict(self) -> dict[str, Any]:
        """The imagined rows."""
        return {
            "sizes": list(self._sizes),
            "tables": [] if self._tables is None else list(self._tables.tables),
            "homes": [] if self._tables is None else self._tables.homes,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._sizes = list(state_dict["sizes"])
        self._tables = None
        if self._sizes:
            device = self.real._home_device
            tables = [table.to(device) for table in state_dict["tables"]]
            self._tables = Tables(tables, state_dict["homes"])
