"""``composerl plot``, ``report`` and ``compare``: what runs have come to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from composerl._files import replace_file, write_text
from composerl.analysis.runs import PastRun, find_runs
from composerl.cli.policies import interval, print_json

__all__ = ["compare", "plot", "report"]


def plot(
    runs: Positional[tuple[Path, ...]],
    *,
    out: Annotated[Path, arg(aliases=["-o"])] = Path("curves.png"),
    x: Literal["steps", "time"] = "steps",
    key: str = "eval/return",
    group_by: str = "recipe",
) -> None:
    """Learning curves: interquartile mean over the runs of a group, and its 95 % interval.

    The band is a bootstrap over runs; single runs are the thin lines.

    Args:
        runs: Run directories, or directories with runs in them.
        out: Picture to write; png, svg or pdf.
        x: Horizontal axis: steps, or seconds of training.
        key: Metric to show, as metrics.jsonl calls it.
        group_by: What runs of a group have in common: recipe, run, or the name of a flag.
    """
    from composerl.analysis.curves import draw, group_runs, panels_of

    groups = group_runs(_runs(runs, out, (".png", ".svg", ".pdf")), group_by)
    replace_file(out, draw(panels_of(groups, key, x), key=key, x=x).savefig)
    print(out)


def report(
    runs: Positional[tuple[Path, ...]],
    *,
    out: Annotated[Path, arg(aliases=["-o"])] = Path("report.html"),
    key: str = "eval/return",
    group_by: str = "recipe",
) -> None:
    """One self-contained page: curves, final scores, what differs in the configuration, versions.

    Pictures and videos that a run left in its directory images/ are shown too.

    Args:
        runs: Run directories, or directories with runs in them.
        out: Page to write.
        key: Metric of the curves, as metrics.jsonl calls it.
        group_by: What runs of a group have in common: recipe, run, or the name of a flag.
    """
    from composerl.analysis.report import page_of

    write_text(out, page_of(_runs(runs, out, (".html", ".htm")), key, group_by))
    print(out)


def compare(a: Positional[Path], b: Positional[Path], *, json: bool = False) -> None:
    """Probability that A is better than B, and its interval, from the final evaluations.

    A and B are runs, or directories of runs that differ in their seeds. Of several runs each
    counts once, with its mean return; two single runs are compared by their episodes, which says
    nothing about other seeds.

    Args:
        a: Run directory, or a directory with runs in it.
        b: The same.
        json: Print JSON instead of a table.
    """
    from composerl.analysis.stats import bootstrap_interval, iqm, probability_of_improvement
    from composerl.bookkeeping.console import print_table

    scores, unit = _final_scores(find_runs([a]), find_runs([b]))
    probability, low, high = probability_of_improvement(*scores)
    sides: list[dict[str, Any]] = [
        {"path": str(path), "scores": side, "iqm": float(iqm(side)),
         "iqm_interval": [float(end) for end in bootstrap_interval(side)]}
        for path, side in zip((a, b), scores, strict=True)
    ]  # fmt: skip
    if json:
        told = {"unit": unit, "probability": probability, "interval": [low, high]}
        print_json({**told, "a": sides[0], "b": sides[1]})
        return
    rows = [
        (s["path"], len(s["scores"]), f"{s['iqm']:.2f}", interval(s["iqm_interval"])) for s in sides
    ]
    print_table("final return", ("run", unit, "interquartile mean", "95 % interval"), rows)
    print(f"A is better than B with probability {probability:.2f} ({low:.2f} to {high:.2f})")


def _runs(paths: tuple[Path, ...], out: Path, endings: tuple[str, ...]) -> list[PastRun]:
    """The runs to show; what cannot be shown or written is refused before any work."""
    if out.suffix.lower() not in endings:
        raise ValueError(f"--out {out} must end in {' or '.join(endings)}")
    if out.is_dir():
        raise IsADirectoryError(f"--out {out} is a directory, expected a file to write")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"--out {out}: there is no directory {out.parent}")
    if not paths:
        raise ValueError("give one run directory or more")
    return find_runs(paths)


def _final_scores(*sides: list[PastRun]) -> tuple[list[list[float]], str]:
    """The scores of both sides, and what one of them stands for: ``runs`` or ``episodes``."""
    envs = {run.env for side in sides for run in side}
    if len(envs) != 1:
        raise ValueError(f"only runs of one environment compare, got {', '.join(map(str, envs))}")
    if any(len(side) > 1 for side in sides):
        return [[float(run.final()["return"]) for run in side] for side in sides], "runs"
    return [_episodes(side[0]) for side in sides], "episodes"


def _episodes(run: PastRun) -> list[float]:
    returns = run.final().get("returns")
    if not returns:
        raise ValueError(
            f"{run.directory} does not tell the returns of its episodes, it is of an older "
            "version: resume it once, or compare directories of several seeds"
        )
    return [float(value) for value in returns]
