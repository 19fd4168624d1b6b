"""Checks of raw arrays, with messages that name the source, the key and the row."""

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["KEYS", "MINARI", "clean", "refuse"]

KEYS = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")

#: Minari's names of those that its files have.
MINARI = {key: key for key in KEYS[:3]} | {"terminals": "terminations", "timeouts": "truncations"}

Rows = np.ndarray | None
"""The row of the source that each row was, where rows were dropped."""


def clean(arrays: Mapping[str, np.ndarray], source: str, rows: Rows = None) -> dict[str, Any]:
    """The arrays in the types and shapes a ``Dataset`` holds, or an error; flags are copies."""
    cleaned = {key: _clean(array, key, source, rows) for key, array in arrays.items()}
    expected = len(cleaned["observations"])
    for key, array in cleaned.items():
        if len(array) != expected:
            raise ValueError(
                f"{source}: {key} has {len(array)} rows, but observations has {expected}"
            )
    return cleaned


def _clean(array: np.ndarray, key: str, source: str, rows: Rows) -> np.ndarray:
    array = np.asarray(array)
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"{source}: {key} has type {array.dtype}, expected plain numbers (object arrays are "
            "never unpickled)"
        )
    if array.ndim == 0:
        raise ValueError(f"{source}: {key} is a single number, expected one row per step")
    if not len(array):
        raise ValueError(f"{source}: {key} is empty, expected at least one row")
    if key in ("rewards", "terminals", "timeouts") and array.ndim > 1:
        if array.size != len(array):
            raise ValueError(f"{source}: {key} has shape {array.shape}, expected one per row")
        array = array.reshape(len(array))
    if key in ("terminals", "timeouts"):
        refuse((array != 0) & (array != 1), array, key, "expected 0 or 1", source, rows)
        return array.astype(bool)
    if key == "actions" and array.dtype.kind in "biu":
        if array.dtype == np.uint64:  # the only type of which int64 does not hold all
            refuse(array >= 1 << 63, array, key, "expected less than 2**63", source, rows)
        column = array.ndim == 2 and array.shape[1] == 1
        return (array[:, 0] if column else array).astype(np.int64, copy=False)
    if key == "actions" and array.ndim == 1:
        array = array[:, None]
    if key in ("observations", "next_observations") and array.dtype == np.uint8:
        return array
    with np.errstate(over="ignore"):  # what overflows float32 is refused as inf just below
        single = array.astype(np.float32, copy=False)
    refuse(~np.isfinite(single), array, key, "expected finite numbers", source, rows)
    return single


def refuse(
    wrong: np.ndarray, array: np.ndarray, key: str, expected: str, source: str, rows: Rows = None
) -> None:
    """Raise on the first wrong entry, with its row as the source counts it."""
    if wrong.any():
        at = np.unravel_index(int(wrong.argmax()), wrong.shape)
        row = at[0] if rows is None else rows[at[0]]
        place = f" at {tuple(int(i) for i in at[1:])}" if len(at) > 1 else ""
        raise ValueError(f"{source}: row {row} of {key} is {array[at]}{place}, {expected}")
