"""What the recipes of a league come to over all of its tasks, on one scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from composerl._files import replace_file
from composerl.bookkeeping.console import print_table

__all__ = ["show_tasks"]


def show_tasks(
    place: Path, results: Sequence[Mapping[str, Any]], scale: Mapping[str, Sequence[float]]
) -> None:
    """Print a row for each recipe over its tasks; draw their performance profiles.

    Args:
        place: directory of the league.
        results: of each recipe and preset ``recipe``, ``env`` and ``returns`` by seed.
        scale: of each environment the returns that count as 0 and as 1; nothing is shown while one
            is missing, since returns of different tasks cannot be averaged.
    """
    if not scale:
        return
    if missing := sorted({str(result["env"]) for result in results} - set(scale)):
        print(f"note: no score over all tasks, as scale has no {', '.join(missing)}")
        return
    from composerl.analysis.stats import aggregate

    tasks: dict[str, list[list[float]]] = {}
    for result in results:
        low, high = scale[str(result["env"])]
        scores = [(value - low) / (high - low) for value in result["returns"].values()]
        tasks.setdefault(str(result["recipe"]), []).append(scores)
    rows = []
    for recipe, scores in tasks.items():
        told = aggregate(scores)
        cells = [f"{value:.3f} ({a:.3f} to {b:.3f})" for value, a, b in told.values()]
        rows.append((recipe, len(scores), *cells))
    columns = ("recipe", "tasks", "interquartile mean", "median", "mean", "optimality gap")
    print_table(f"{place}: scores over all tasks, 95 % intervals", columns, rows)
    if find_spec("matplotlib"):
        print(f"picture: {_draw(tasks, place / 'profiles.png')}")


def _draw(tasks: Mapping[str, list[list[float]]], path: Path) -> Path:
    """Performance profiles: the share of runs above each score."""
    import numpy as np
    from matplotlib.figure import Figure

    from composerl.analysis.curves import COLOURS
    from composerl.analysis.stats import performance_profile

    every = [score for scores in tasks.values() for task in scores for score in task]
    levels = np.linspace(min(0.0, *every), max(1.0, *every), 201)
    figure = Figure(figsize=(6, 4), dpi=150, layout="constrained")
    axes = figure.subplots()
    for (recipe, scores), colour in zip(tasks.items(), COLOURS * len(tasks), strict=False):
        shares, low, high = performance_profile(scores, levels)
        axes.plot(levels, shares, color=colour, label=recipe)
        axes.fill_between(levels, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.set_xlabel("score (0 and 1: the two ends of the scale)")
    axes.set_ylabel("share of runs above it")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    replace_file(path, figure.savefig)
    return path
