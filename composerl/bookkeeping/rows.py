"""What a row of metrics says: the means of what was logged since the row before it."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from composerl._schema import short

__all__ = ["Diverged", "Rows"]

#: So many logged updates are kept as tensors before they are read: asking each for its number would
#: make a GPU wait at every update.
PENDING = 256


class Diverged(RuntimeError):
    """A loss is no finite number."""


class Rows:
    """Gathers metrics between rows; its state is part of a checkpoint.

    Tensors, as an update returns them, are averaged over all that were logged since the last row.
    Plain numbers (an epsilon, the size of a buffer, a collector's running means) are the state of
    the moment: a row has the latest.
    """

    def __init__(self) -> None:
        self._pending: list[tuple[int, dict[str, Any]]] = []
        self._sums: dict[str, list[float]] = {}
        self._latest: dict[str, float] = {}

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Note metrics of a step, under ``train/`` unless a name has a ``/`` already."""
        self._pending.append((step, dict(metrics.items())))
        if len(self._pending) >= PENDING:
            self.read()

    def read(self) -> None:
        """Read what was logged; a loss that is no finite number raises :class:`Diverged`."""
        pending, self._pending = self._pending, []
        logged = [item for _, metrics in pending for item in metrics.items()]
        tensors = [_one(key, value) for key, value in logged if isinstance(value, Tensor)]
        numbers = iter(_numbers(tensors))
        for step, metrics in pending:
            for key, value in metrics.items():
                mean = isinstance(value, Tensor)
                number = next(numbers) if mean else _number(key, value)
                if not isfinite(number) and key.rpartition("/")[2].startswith("loss"):
                    raise Diverged(f"{_name(key)} is {number} at step {step}")
                if not mean:
                    self._latest[key] = number
                    continue
                # One after the other: the same sum, wherever a checkpoint comes in between.
                total = self._sums.setdefault(key, [0.0, 0])
                total[0] += number
                total[1] += 1

    def take(self) -> dict[str, float]:
        """The row, after which a new one begins."""
        self.read()
        row = {_name(key): total / count for key, (total, count) in self._sums.items()}
        row |= {_name(key): number for key, number in self._latest.items()}
        self._sums, self._latest = {}, {}
        return row

    def state_dict(self) -> dict[str, Any]:
        """Sums and counts since the last row, and the latest of plain numbers."""
        self.read()
        return {
            "sums": {key: list(pair) for key, pair in self._sums.items()},
            "latest": dict(self._latest),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._pending = []
        self._sums = {key: list(pair) for key, pair in state["sums"].items()}
        self._latest = dict(state["latest"])


def _one(key: str, value: Tensor) -> Tensor:
    if value.numel() != 1:
        raise ValueError(
            f"run.log: {key!r} must be one number, got a tensor of shape {tuple(value.shape)}"
        )
    return value


def _number(key: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"run.log: {key!r} must be one number, got {short(value)}") from None


def _numbers(tensors: list[Tensor]) -> list[float]:
    """Of tensors with one element each; at once, as one by one takes ten times as long."""
    devices = [tensor.device for tensor in tensors]
    found = [0.0] * len(tensors)
    for device in dict.fromkeys(devices):
        places = [i for i, other in enumerate(devices) if other == device]
        ones = [t if t.ndim == 0 else t.reshape(()) for t in (tensors[i] for i in places)]
        for i, number in zip(places, torch.stack(ones).tolist(), strict=True):
            found[i] = float(number)
    return found


def _name(key: str) -> str:
    return key if "/" in key else f"train/{key}"
