"""``composerl.plot``: learning curves of runs, as a figure."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from composerl._files import replace_file
from composerl.analysis.curves import check_picture, draw, panels_of
from composerl.analysis.groups import group_runs
from composerl.analysis.runs import find_runs
from composerl.bookkeeping.console import say

__all__ = ["plot"]


def plot(
    runs: str | Path | Sequence[str | Path],
    path: str | Path | None = None,
    *,
    x: str = "steps",
    key: str = "eval/return",
    group_by: str = "settings",
) -> Any:
    """Learning curves: of each group of runs the interquartile mean, and its 95 % interval.

    What the runs may hide (a seed that is there twice, few of them, unequal lengths) is told in
    lines on stderr.

    Args:
        runs: one or several run directories, or directories with runs in them.
        path: a picture to write as well; png, svg or pdf.
        x: ``steps``, ``updates``, or ``time`` (seconds of training).
        key: metric to show, as metrics.jsonl calls it.
        group_by: ``settings`` (runs that differ in their seed alone), ``recipe``, ``run``, or the
            name of a flag.

    Returns: a matplotlib figure, which a notebook shows.
    """
    check_picture(path)
    groups = group_runs(find_runs([runs] if isinstance(runs, (str, Path)) else runs), group_by)
    figure = draw(panels_of(groups, key, x), key=key, x=x)
    for note in (note for group in groups for note in group.notes):
        say(f"note: {note}")
    if path is not None:
        replace_file(Path(path), figure.savefig)
    return figure
