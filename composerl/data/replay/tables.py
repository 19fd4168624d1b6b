"""Columns of transitions, packed so that drawing rows takes few gathers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from tensordict import TensorDict
from torch import Tensor

__all__ = ["Home", "Tables", "layout"]

Home = tuple[bool, str]
"""Where a column stands in a batch: whether under ``next``, and its key."""


class Tables:
    """One table per type of number, with the columns of that type side by side.

    Rows are drawn from all over memory, so that a sample costs what its gathers cost: two tables
    take half as long as seven columns.

    Args:
        tables: the numbers, all with the same number of rows.
        homes: for each table, the widths of its columns if they are several, and their homes.
    """

    def __init__(self, tables: list[Tensor], homes: list[tuple[list[int], list[Home]]]) -> None:
        self.tables = tables
        self.homes = homes

    @classmethod
    def of(cls, columns: Mapping[Home, Tensor], *, apart: bool = False) -> Tables:
        """Pack columns; with ``apart`` those under ``next`` get tables of their own."""
        columns = dict(columns)
        groups: dict[object, list[Home]] = {}
        for home, column in columns.items():
            # Images, and flat integer actions, have no side to be joined at.
            kind = (column.dtype, apart and home[0]) if column.ndim == 2 else home
            groups.setdefault(kind, []).append(home)
        tables, homes = [], []
        for group in groups.values():
            parts = [columns.pop(home) for home in group]
            tables.append(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))
            homes.append(([part.shape[1] for part in parts] if len(parts) > 1 else [], group))
        return cls(tables, homes)

    def __len__(self) -> int:
        return len(self.tables[0])

    @property
    def device(self) -> torch.device:
        """Where the numbers live."""
        return self.tables[0].device

    def columns(self, tables: list[Tensor] | None = None) -> dict[Home, Tensor]:
        """Each column as a view, of these tables or of others that look like them."""
        found = {}
        for table, (widths, group) in zip(tables or self.tables, self.homes, strict=True):
            parts = torch.split_with_sizes(table, widths, 1) if widths else (table,)
            found.update(zip(group, parts, strict=True))
        return found

    def content(self) -> TensorDict:
        """All rows, as views."""
        return layout(self.columns(), torch.Size([len(self)]))

    def rows(self, index: Tensor, next_index: Tensor | None = None) -> dict[Home, Tensor]:
        """The columns' rows at ``index``; those of the next step at ``next_index`` if given."""
        drawn = []
        for table, (_, group) in zip(self.tables, self.homes, strict=True):
            at = index if next_index is None or not group[0][0] else next_index
            drawn.append(table.index_select(0, at))
        return self.columns(drawn)


def layout(columns: Mapping[Home, Tensor], shape: torch.Size, **root: Tensor) -> TensorDict:
    """Columns, and further entries, as a TensorDict in TorchRL's layout."""
    following: dict[str, Tensor] = {}
    for (is_next, key), column in columns.items():
        (following if is_next else root)[key] = column
    # The public constructor checks every entry again, for as long as all the rest takes.
    root["next"] = TensorDict._new_unsafe(following, shape)
    return TensorDict._new_unsafe(root, shape)
