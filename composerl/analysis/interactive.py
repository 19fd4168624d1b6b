"""Curves as numbers, for the script of a report (report.js) to draw."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from composerl.analysis.curves import AXES, COLOURS, LABELS, Curve, panels_of
from composerl.analysis.groups import Group

__all__ = ["MOST", "axes_of", "charts_of", "styles_of"]

#: Points of a line on the page; of longer ones some are left out, evenly.
MOST = 500


def axes_of(groups: Sequence[Group]) -> list[str]:
    """What curves can be drawn over: runs of earlier versions did not count their updates."""
    counted = all("train/updates" in run.columns for group in groups for run in group.runs)
    return [axis for axis in AXES if axis != "updates" or counted]


def styles_of(groups: Sequence[Group]) -> dict[str, dict[str, str]]:
    """Colour and dashes of each group's line by its name, the same in all charts."""
    names = dict.fromkeys(group.name for group in groups)
    return {
        name: {
            "colour": COLOURS[i % len(COLOURS)],
            "line": ("solid", "dashed", "dotted")[i // len(COLOURS) % 3],
        }
        for i, name in enumerate(names)
    }


def charts_of(groups: Sequence[Group], key: str) -> list[dict[str, Any]]:
    """A chart for each environment, with its curves over each axis."""
    over = {axis: panels_of(groups, key, axis) for axis in axes_of(groups)}
    return [
        {
            "title": env,
            "label": LABELS.get(key, key),
            "axes": {axis: [_curve(curve) for curve in over[axis][env]] for axis in over},
        }
        for env in over["steps"]
    ]


def _curve(curve: Curve) -> dict[str, Any]:
    return {
        "group": curve.name,
        "unit": curve.unit,
        "runs": [[_numbers(xs), _numbers(ys)] for xs, ys in curve.runs],
        **{name: _numbers(getattr(curve, name)) for name in ("x", "middle", "low", "high")},
    }


def _numbers(values: np.ndarray) -> list[float | None]:
    """Rounded to what can be seen; JSON knows no NaN."""
    kept: Iterable[float] = values[_places(len(values))].tolist()
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in kept]


def _places(count: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(count, MOST)).round().astype(int))
