"""Replay buffers as datasets: what an online run has seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from composerl.data.offline.dataset import Dataset
from composerl.data.replay.tables import Column, split

__all__ = ["replay_dataset"]

_COLUMNS: dict[str, Column] = {
    "observations": ("observation",),
    "actions": ("action",),
    "rewards": ("next", "reward"),
    "next_observations": ("next", "observation"),
    "terminals": ("next", "terminated"),
    "timeouts": ("next", "truncated"),
}
_TRAJECTORY = ("collector", "traj_ids")


def replay_dataset(
    state: Mapping[str, Any],
    source: str,
    *,
    reward_scale: float = 1.0,
    reward_shift: float = 0.0,
) -> Dataset:
    """The transitions in the state of a buffer (``buffer.state_dict()``, as checkpoints hold it).

    Episodes are put together, also of several environments that were stepped in turns; the first
    may lack its beginning, where the buffer was full, and those under way their end, which counts
    as a timeout. Imagined rows are no data, nor is a dataset that was mixed in.

    Args:
        state: of a buffer with a :class:`~composerl.data.PackedStorage`, or of several.
        source: to name in messages.
        reward_scale: what the run multiplied its rewards by; it is undone.
        reward_shift: what it then added.
    """
    found = max(_storages(state), key=lambda storage: storage["rows"], default=None)
    if found is None:
        raise ValueError(
            f"{source} holds no replay buffer: its recipe keeps none, or no rows in a PackedStorage"
        )
    layout = [(widths, [tuple(name) for name in names]) for widths, names in found["layout"]]
    columns = split(found["tables"], layout)
    if missing := [".".join(path) for path in _COLUMNS.values() if path not in columns]:
        there = ", ".join(sorted(".".join(path) for path in columns))
        raise ValueError(
            f"{source}: the replay buffer holds no transitions, as {', '.join(missing)} is not in "
            f"it; it has {there}"
        )
    order = _order(found["rows"], found["newest"], columns.get(_TRAJECTORY))
    arrays = {key: columns[path].cpu().numpy()[order] for key, path in _COLUMNS.items()}
    for key in ("rewards", "terminals", "timeouts"):
        arrays[key] = arrays[key].reshape(len(order))
    arrays["rewards"] = ((arrays["rewards"] - reward_shift) / reward_scale).astype(np.float32)
    # Where what follows is not the next step, an episode was cut: by a full buffer, or right now.
    later, now = arrays["next_observations"][:-1], arrays["observations"][1:]
    arrays["timeouts"][:-1] |= (later != now).reshape(len(now), -1).any(1)
    return Dataset.from_arrays(arrays, source, find_leaks=False)


def _storages(state: Any) -> Iterator[Mapping[str, Any]]:
    """The states of storages, wherever they are, but for those of imagined rounds."""
    if not isinstance(state, Mapping):
        return
    if {"rows", "newest", "tables", "layout"} <= state.keys():
        if state["rows"] and "sizes" not in state:
            yield state
        return
    for part in state.values():
        yield from _storages(part)


def _order(rows: int, newest: int | None, trajectories: torch.Tensor | None) -> np.ndarray:
    """The rows from the oldest to the newest, each trajectory's together."""
    start = 0 if newest is None else (newest + 1) % rows
    order = np.roll(np.arange(rows), -start)
    if trajectories is None:
        return order
    ids = trajectories.cpu().numpy().reshape(rows)[order]
    _, first, which = np.unique(ids, return_index=True, return_inverse=True)
    # Trajectories in the order in which they began.
    return order[np.argsort(first[which], kind="stable")]
