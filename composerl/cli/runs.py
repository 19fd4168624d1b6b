"""``composerl plot``, ``report`` and ``compare``: what runs have come to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from composerl import analysis
from composerl._files import write_text
from composerl.cli.loading import interval, print_json

__all__ = ["compare", "plot", "report"]

GroupBy = Annotated[
    str,
    arg(
        help="What runs of a group have in common: settings (all but the seed), recipe, run, or "
        "the name of a flag."
    ),
]


def plot(
    runs: Positional[tuple[Path, ...]],
    *,
    out: Annotated[Path, arg(aliases=["-o"])] = Path("curves.png"),
    x: Literal["steps", "updates", "time"] = "steps",
    key: str = "eval/return",
    group_by: GroupBy = "settings",
) -> None:
    """Learning curves of groups of runs that differ in their seeds.

    Of a group with several runs, the thick line is the interquartile mean over them, the band its
    95 % bootstrap interval, and the thin lines are the runs; a run alone is one line.

    Args:
        runs: Run directories, or directories with runs in them.
        out: Picture to write; png, svg or pdf.
        x: Horizontal axis: steps (updates offline, environment steps online), updates, or seconds.
        key: Metric to show, as metrics.jsonl calls it.
    """
    from composerl.analysis.curves import PICTURES
    from composerl.analysis.plotting import plot

    _check(runs, out, PICTURES)
    plot(runs, out, x=x, key=key, group_by=group_by)
    print(out)


def report(
    runs: Positional[tuple[Path, ...]],
    *,
    out: Annotated[Path, arg(aliases=["-o"])] = Path("report.html"),
    key: str = "eval/return",
    group_by: GroupBy = "settings",
) -> None:
    """One self-contained page: curves, final scores, what differs in the configuration, versions.

    Pictures and videos that a run left in its directory images/ are shown too.

    Args:
        runs: Run directories, or directories with runs in them.
        out: Page to write.
        key: Metric of the curves, as metrics.jsonl calls it.
    """
    from composerl.analysis.report import page_of

    _check(runs, out, (".html", ".htm"))
    write_text(out, page_of(analysis.find_runs(runs), key, group_by))
    print(out)


def compare(a: Positional[Path], b: Positional[Path], *, json: bool = False) -> None:
    """How probably A is better than B, from the final evaluations, and how sure that is.

    A and B are runs, or directories of runs that differ in their seeds. Of several runs each
    counts once, with its mean return; two single runs are compared by their episodes, which says
    nothing about other seeds. Of several environments, the same in A and B, each counts alike.

    Args:
        a: Run directory, or a directory with runs in it.
        b: The same.
        json: Print JSON instead of a table.
    """
    from composerl.analysis.comparison import compare
    from composerl.bookkeeping.console import print_table

    found = compare(a, b)
    if json:
        told = {"unit": found.unit, "probability": found.probability, "interval": found.interval}
        print_json({**told, "notes": found.notes, "sides": found.rows})
        return
    columns = ("run", found.unit, "interquartile mean", "95 % interval")
    for env in found.first.scores:
        rows = [
            (row["path"], len(row["scores"]), f"{row['iqm']:.2f}", interval(row["interval"]))
            for row in found.rows
            if row["env"] == env
        ]
        print_table(f"final return, {env}", columns, rows)
    print(found)


def _check(runs: tuple[Path, ...], out: Path, endings: tuple[str, ...]) -> None:
    """Refuse what cannot be written before any work."""
    if out.suffix.lower() not in endings:
        raise ValueError(f"--out {out} must end in {' or '.join(endings)}")
    if out.is_dir():
        raise IsADirectoryError(f"--out {out} is a directory, expected a file to write")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"--out {out}: there is no directory {out.parent}")
    if not runs:
        raise ValueError("give one run directory or more")
