"""Columns packed into tables, one per type of number, and how to take them apart again."""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, unravel_key
from torch import Tensor

from composerl._private import unchecked_tensordict

__all__ = ["Column", "Layout", "nested", "pack", "path_of", "split"]

Column = tuple[str, ...]
"""The key of a column, as a path: ``("next", "reward")``."""

Layout = list[tuple[list[int], list[Column]]]
"""Of each table the widths of its columns, if they are several, and their keys."""


def pack(columns: Mapping[Column, Tensor]) -> tuple[list[Tensor], Layout]:
    """Columns of one type side by side; see :class:`~composerl.data.PackedStorage` for why."""
    groups: dict[Any, list[Column]] = {}
    for column, value in columns.items():
        # Images, and rows of single numbers, have no side to be joined at.
        groups.setdefault(value.dtype if value.ndim == 2 else column, []).append(column)
    tables, layout = [], []
    for names in groups.values():
        parts = [columns[name] for name in names]
        tables.append(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))
        layout.append(([part.shape[1] for part in parts] if len(parts) > 1 else [], names))
    return tables, layout


def split(tables: list[Tensor], layout: Layout) -> dict[Column, Tensor]:
    """Each column as a view of its table."""
    found: dict[Column, Tensor] = {}
    for table, (widths, names) in zip(tables, layout, strict=True):
        parts = torch.split_with_sizes(table, widths, 1) if widths else (table,)
        found.update(zip(names, parts, strict=True))
    return found


def nested(columns: Mapping[Column, Tensor], shape: torch.Size) -> TensorDict:
    """Columns as a TensorDict, each under its path."""
    root: dict[str, Any] = {}
    for path, value in columns.items():
        place = root
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = value
    return _tensordict(root, shape)


def _tensordict(values: Mapping[str, Any], shape: torch.Size) -> TensorDict:
    return unchecked_tensordict(
        {k: _tensordict(v, shape) if isinstance(v, dict) else v for k, v in values.items()}, shape
    )


def path_of(key: Any) -> Column:
    """A TensorDict's key as a path."""
    key = unravel_key(key)
    return key if isinstance(key, tuple) else (key,)
