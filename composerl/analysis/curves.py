"""Learning curves: runs in groups, aggregated over seeds, drawn with matplotlib."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from composerl.analysis.runs import PastRun
from composerl.analysis.stats import bootstrap_interval, iqm

__all__ = ["Curve", "curve_of", "draw", "group_runs", "panels_of", "require_matplotlib"]

#: Colours that people with colour blindness can tell apart (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D00")
AXES = {"steps": ("step", "steps"), "time": ("time/seconds", "seconds")}
LABELS = {"eval/return": "return of evaluation", "eval/length": "length of evaluated episodes"}


@dataclass(frozen=True)
class Curve:
    """A group of runs: each one's points and, where all have them, what they have in common."""

    name: str
    runs: list[tuple[np.ndarray, np.ndarray]]
    x: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray


def group_runs(runs: Sequence[PastRun], by: str) -> dict[str, list[PastRun]]:
    """Runs by ``recipe``, ``env``, ``run`` (each alone) or the value of a flag."""
    groups: dict[str, list[PastRun]] = {}
    for run in runs:
        if by == "recipe":
            name = run.recipe
        elif by == "run":
            name = str(run.directory)
        elif by in run.config:
            name = f"{by} {json.dumps(run.config[by])}"
        else:
            raise ValueError(
                f"--group-by {by}: expected recipe, run or a flag of {run.directory}, which "
                f"has {', '.join(run.config)}"
            )
        groups.setdefault(name, []).append(run)
    return groups


def curve_of(name: str, runs: Sequence[PastRun], key: str, x: str = "steps") -> Curve:
    """The interquartile mean and its 95 % bootstrap interval over runs, at every known ``x``.

    Runs that were measured at different places are interpolated between them. The aggregate ends
    where the first of the runs ends: it always is over all of them.
    """
    if x not in AXES:
        raise ValueError(f"x must be one of {', '.join(AXES)}, got {x!r}")
    lines = []
    for run in runs:
        points = np.asarray(run.series(key, AXES[x][0]), np.float64)
        lines.append((points[0], points[1]))
    start, end = max(xs[0] for xs, _ in lines), min(xs[-1] for xs, _ in lines)
    grid = np.unique(np.concatenate([xs for xs, _ in lines]))
    grid = grid[(grid >= start) & (grid <= end)]
    if not len(grid):  # no two of them overlap
        return Curve(name, lines, grid, grid, grid, grid)
    values = np.stack([np.interp(grid, xs, ys) for xs, ys in lines])
    low, high = bootstrap_interval(values)
    return Curve(name, lines, grid, iqm(values, axis=0), low, high)


def require_matplotlib() -> None:
    """Say early that matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise ValueError("plots need matplotlib, not installed: pip install 'composerl[plot]'")


def panels_of(
    groups: Mapping[str, Sequence[PastRun]], key: str, x: str = "steps"
) -> dict[str, list[Curve]]:
    """The curves of groups by environment: returns of different ones share no axis."""
    panels: dict[str, list[Curve]] = {}
    for name, runs in groups.items():
        for env in dict.fromkeys(run.env for run in runs):
            members = [run for run in runs if run.env == env]
            panels.setdefault(str(env), []).append(curve_of(name, members, key, x))
    return panels


def draw(
    panels: Mapping[str, Sequence[Curve]], *, key: str, x: str, size: tuple[float, float] = (7, 4)
) -> Any:
    """A matplotlib figure, each panel of this size with its name above.

    An aggregate is a line with a band, single runs are thin behind it.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    count = max(len(panels), 1)
    figure = Figure(figsize=(size[0] * count, size[1]), dpi=150, layout="constrained")
    for axes, (title, curves) in zip(
        figure.subplots(1, count, squeeze=False)[0], panels.items(), strict=True
    ):
        for i, curve in enumerate(curves):
            _draw_curve(axes, curve, i)
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_xlabel(AXES[x][1])
        axes.set_ylabel(LABELS.get(key, key))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_formatter(_thousands)
        axes.legend(frameon=False, fontsize=9)
    return figure


def _draw_curve(axes: Any, curve: Curve, number: int) -> None:
    colour = COLOURS[number % len(COLOURS)]
    style = ("-", "--", ":")[number // len(COLOURS) % 3]
    count = len(curve.runs)
    if count > 1:
        for xs, ys in curve.runs:
            axes.plot(xs, ys, color=colour, linewidth=0.6, alpha=0.35)
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
    label = f"{curve.name} ({count} runs)" if count > 1 else curve.name
    dot = "o" if len(curve.x) < 2 else None  # a line needs two points to be seen
    axes.plot(curve.x, curve.middle, style, color=colour, linewidth=2, label=label, marker=dot)


def _thousands(value: float, _: int) -> str:
    for size, sign in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{sign}"
    return f"{value:g}"
