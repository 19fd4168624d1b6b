"""``composerl compare``: whether one run, or one group of runs, is better than another."""

from __future__ import annotations

from pathlib import Path

from tyro.conf import Positional

from composerl.analysis.runs import PastRun, find_runs
from composerl.cli.policies import print_json

__all__ = ["compare", "final_scores"]


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

    sides = [find_runs([a]), find_runs([b])]
    scores, unit = final_scores(*sides)
    probability, low, high = probability_of_improvement(*scores)
    intervals = [bootstrap_interval(side) for side in scores]
    if json:
        named = {
            key: {"path": str(path), "scores": side, "iqm": float(iqm(side)),
                  "iqm_interval": [float(end) for end in ends]}
            for key, path, side, ends in zip("ab", (a, b), scores, intervals, strict=True)
        }  # fmt: skip
        print_json({"unit": unit, "probability": probability, "interval": [low, high], **named})
        return
    from composerl.bookkeeping.console import print_table

    rows = [
        (path, len(side), f"{iqm(side):.2f}", f"{ends[0]:.2f} to {ends[1]:.2f}")
        for path, side, ends in zip((a, b), scores, intervals, strict=True)
    ]
    print_table("final return", ("run", unit, "interquartile mean", "95 % interval"), rows)
    print(f"A is better than B with probability {probability:.2f} ({low:.2f} to {high:.2f})")


def final_scores(first: list[PastRun], second: list[PastRun]) -> tuple[list[list[float]], str]:
    """The scores of both sides, and what one of them stands for: ``runs`` or ``episodes``."""
    envs = {run.env for run in (*first, *second)}
    if len(envs) != 1:
        raise ValueError(f"only runs of one environment compare, got {', '.join(map(str, envs))}")
    sides = (first, second)
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
