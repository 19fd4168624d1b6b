"""Learning curves: runs in groups, aggregated over seeds, drawn with matplotlib."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from composerl.analysis.figure import new_figure
from composerl.analysis.groups import Group
from composerl.analysis.runs import PastRun
from composerl.analysis.stats import bootstrap_interval, iqm
from composerl.errors import printable

__all__ = [
    "AXES",
    "COLOURS",
    "LABELS",
    "PICTURES",
    "Curve",
    "check_picture",
    "curve_of",
    "draw",
    "legend_of",
    "panels_of",
    "require_matplotlib",
]

#: Colours that people with colour blindness can tell apart (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D00")
COLUMNS = 3
LARGEST = 1e300  # the span of an axis has to be a number, too
#: What curves can be drawn over, and what is counted there.
AXES = {"steps": "steps", "updates": "updates", "time": "seconds"}
#: What a picture's name may end in.
PICTURES = (".png", ".svg", ".pdf")
LABELS = {"eval/return": "return of evaluation", "eval/length": "length of evaluated episodes"}


@dataclass(frozen=True)
class Curve:
    """A group of runs: each one's points and, where all have them, what they have in common.

    ``middle``, ``low`` and ``high`` are NaN where a run has no finite value; of a single run there
    is no ``low`` and ``high``.
    """

    name: str
    runs: list[tuple[np.ndarray, np.ndarray]]
    x: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray
    unit: str = "steps"


def curve_of(name: str, runs: Sequence[PastRun], key: str, x: str = "steps") -> Curve:
    """The interquartile mean over runs and its 95 % bootstrap interval, at every known ``x``.

    Runs that were measured at different places are interpolated between them. The aggregate ends
    where the first of the runs ends: it always is over all of them.
    """
    if x not in AXES:
        raise ValueError(f"x must be one of {', '.join(AXES)}, got {x!r}")
    lines = [_line(run, key, x) for run in runs]
    start, end = max(xs[0] for xs, _ in lines), min(xs[-1] for xs, _ in lines)
    grid = np.unique(np.concatenate([xs for xs, _ in lines]))
    grid = grid[(grid >= start) & (grid <= end)]
    unit = _same({run.unit for run in runs}, "steps") if x == "steps" else AXES[x]
    nothing = np.full(len(grid), np.nan)
    if not len(grid):  # no two of them overlap
        return Curve(name, lines, grid, nothing, nothing, nothing, unit)
    values = np.stack([np.interp(grid, xs, ys) for xs, ys in lines])
    if len(lines) == 1:
        return Curve(name, lines, grid, values[0], nothing, nothing, unit)
    known = np.isfinite(values).all(0)
    middle, low, high = nothing.copy(), nothing.copy(), nothing.copy()
    if known.any():
        middle[known] = iqm(values[:, known], axis=0)
        low[known], high[known] = bootstrap_interval(values[:, known])
    return Curve(name, lines, grid, middle, low, high, unit)


def _line(run: PastRun, key: str, x: str) -> tuple[np.ndarray, np.ndarray]:
    """A run's values of ``key``, and before them where on the axis they are."""
    if x != "updates":
        xs, ys = run.series(key, {"steps": "step", "time": "time/seconds"}[x])
        for what, numbers in ((key, ys), (AXES[x], xs)):
            if (large := np.abs(numbers[np.isfinite(numbers)])).max(initial=0) > LARGEST:
                raise ValueError(f"{run.directory}: {what} of {large.max():g} cannot be drawn")
        return xs, ys
    # Rows of evaluations may lie between those that count updates, of which there is none at first.
    (steps, values), (known, updates) = run.series(key), run.series("train/updates")
    return np.interp(steps, [0, *known], [0, *updates]), values


def require_matplotlib() -> None:
    """Say early that matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise ValueError("plots need matplotlib, not installed: pip install 'composerl[plot]'")


def check_picture(path: str | Path | None) -> None:
    """Refuse a name that is no picture's, before any work: it may be one more run."""
    if path is not None and Path(path).suffix.lower() not in PICTURES:
        raise ValueError(
            f"path is the picture to write and must end in {' or '.join(PICTURES)}, got {path}; "
            "several runs are one list"
        )


def panels_of(groups: Sequence[Group], key: str, x: str = "steps") -> dict[str, list[Curve]]:
    """The curves of groups by environment: returns of different ones share no axis."""
    panels: dict[str, list[Curve]] = {}
    for group in groups:
        panels.setdefault(group.env, []).append(curve_of(group.name, group.runs, key, x))
    return panels


def legend_of(curves: Iterable[Curve]) -> str:
    """What the lines of these curves are, in a sentence."""
    sizes = {len(curve.runs) for curve in curves}
    if sizes == {1}:
        return "Each line is a single run."
    alone = " (of a group with one run, that run)" if 1 in sizes else ""
    return (
        f"Thick lines: interquartile mean over the runs of a group{alone}; bands: its 95 % "
        "bootstrap interval; thin lines: single runs."
    )


def draw(
    panels: Mapping[str, Sequence[Curve]], *, key: str, x: str, size: tuple[float, float] = (7, 4)
) -> Any:
    """A matplotlib figure, each panel of this size with its name above.

    An aggregate is a line with a band, single runs are thin behind it.
    """
    require_matplotlib()
    columns = min(max(len(panels), 1), COLUMNS)
    rows = max(math.ceil(len(panels) / columns), 1)
    figure = new_figure(figsize=(size[0] * columns, size[1] * rows), dpi=150, layout="constrained")
    places = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in places[len(panels) :]:
        axes.remove()
    for axes, (title, curves) in zip(places, panels.items(), strict=False):
        for i, curve in enumerate(curves):
            _draw_curve(axes, curve, i)
        axes.set_title(printable(title), loc="left", fontsize=11, parse_math=False)
        unit = _same({curve.unit for curve in curves}, AXES[x])
        axes.set_xlabel(printable(unit), parse_math=False)
        axes.set_ylabel(LABELS.get(key, key), parse_math=False)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_formatter(_thousands)
        if len(curves) <= len(COLOURS):
            legend = axes.legend(frameon=False, fontsize=9)
        else:  # a legend of many hides the curves
            legend = axes.legend(frameon=False, fontsize=6, loc="upper left", bbox_to_anchor=(1, 1))
        for text in legend.get_texts():
            text.set_parse_math(False)  # names come from files, and may hold a $
    return figure


def _draw_curve(axes: Any, curve: Curve, number: int) -> None:
    colour = COLOURS[number % len(COLOURS)]
    style = ("-", "--", ":")[number // len(COLOURS) % 3]
    count = len(curve.runs)
    if count > 1:
        for xs, ys in curve.runs:
            axes.plot(xs, ys, color=colour, linewidth=0.6, alpha=0.35)
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
    apart = "" if len(curve.x) else ", no common steps"
    label = f"{curve.name} ({count} runs{apart})" if count > 1 else curve.name
    label = printable(label)  # matplotlib repeats on the terminal what it has no glyph for
    dot = "o" if len(curve.x) < 2 else None  # a line needs two points to be seen
    axes.plot(curve.x, curve.middle, style, color=colour, linewidth=2, label=label, marker=dot)


def _same(words: set[str], otherwise: str) -> str:
    return words.pop() if len(words) == 1 else otherwise


def _thousands(value: float, _: int) -> str:
    for size, sign in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{sign}"
    return f"{value:g}"
