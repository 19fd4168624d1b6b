"""Which of two is better, and how sure that is, from their runs' final evaluations."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from composerl.analysis.groups import FEW, Group, group_runs
from composerl.analysis.runs import PastRun, find_runs
from composerl.analysis.stats import bootstrap_interval, improvement_over_tasks, iqm

__all__ = ["Comparison", "Side", "compare"]


@dataclass(frozen=True)
class Side:
    """One of two that are compared: where its runs are, and their scores in each environment."""

    path: str
    scores: dict[str, list[float]]

    def row(self, env: str) -> dict[str, Any]:
        """Its scores in one environment, with interquartile mean and interval (None for one)."""
        scores = self.scores[env]
        ends = None if len(scores) == 1 else [float(end) for end in bootstrap_interval(scores)]
        middle = float(iqm(scores))
        return {"path": self.path, "env": env, "scores": scores, "iqm": middle, "interval": ends}


@dataclass(frozen=True)
class Comparison:
    """What :func:`compare` found; ``print`` shows it in sentences.

    Attributes:
        first, second: the two sides.
        unit: what a score stands for, ``runs`` or ``episodes``.
        probability: that a score of the first beats one of the second, on average over tasks.
        interval: 95 %, by a bootstrap; None where a side has a single run.
        notes: what to know before one believes it.
    """

    first: Side
    second: Side
    unit: str
    probability: float
    interval: tuple[float, float] | None
    notes: list[str]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each side in each environment."""
        return [side.row(env) for env in self.first.scores for side in (self.first, self.second)]

    def __str__(self) -> str:
        sure = f"{self.interval[0]:.2f} to {self.interval[1]:.2f}" if self.interval else ""
        tasks = len(self.first.scores)
        lines = [
            f"{'an episode' if self.unit == 'episodes' else 'a run'} of {self.first.path} does "
            f"better than one of {self.second.path} with probability "
            f"{self.probability:.2f} ({sure or 'no interval'}"
            + (f", mean over {tasks} environments)" if tasks > 1 else ")"),
            *(f"note: {note}" for note in self.notes),
        ]
        return "\n".join(lines)


def compare(first: str | Path, second: str | Path) -> Comparison:
    """Compare two runs, or two directories of runs that differ in their seeds.

    Of several runs each counts once, with its mean return; two single runs are compared by their
    episodes, which says nothing about other seeds. Of several environments, the same on both
    sides, each counts alike.

    Args:
        first: run directory, or a directory with runs in it.
        second: the same.
    """
    sides = [_tasks(path) for path in (first, second)]
    if sides[0].keys() != sides[1].keys():
        both = " and ".join(", ".join(sorted(side)) for side in sides)
        raise ValueError(f"only runs of the same environments compare, got {both}")
    groups = [group for side in sides for group in side.values()]
    episodes = all(len(group.runs) == 1 for group in groups) and len(sides[0]) == 1
    # In one order on both sides: a task of the one is drawn with the same task of the other.
    scores = [
        {env: _episodes(side[env].runs[0]) if episodes else _finals(side[env]) for env in sides[0]}
        for side in sides
    ]
    one, other = (Side(str(path), s) for path, s in zip((first, second), scores, strict=True))
    probability, low, high = improvement_over_tasks(
        [*one.scores.values()], [*other.scores.values()]
    )
    alone = [
        side.path
        for side in (one, other)
        if any(len(values) == 1 for values in side.scores.values())
    ]
    interval = None if alone else (low, high)
    notes = _notes(groups, alone, interval, episodes)
    return Comparison(one, other, "episodes" if episodes else "runs", probability, interval, notes)


def _tasks(path: str | Path) -> dict[str, Group]:
    """The runs of a side by environment; in each they may differ in their seeds alone."""
    tasks: dict[str, Group] = {}
    for group in group_runs(find_runs([path])):
        if earlier := tasks.get(group.env):
            raise ValueError(
                f"{path} holds runs of different settings, such as {earlier.name} and "
                f"{group.name}: compare directories whose runs differ in their seeds alone "
                "(composerl report shows them in groups)"
            )
        tasks[group.env] = group
    return tasks


def _notes(
    groups: Sequence[Group], alone: list[str], interval: tuple[float, float] | None, episodes: bool
) -> list[str]:
    notes = [note for group in groups for note in group.notes if "twice" in note]
    smallest = min(len(group.runs) for group in groups)
    if episodes:
        notes.append("episodes of one run each: this says nothing about other seeds")
    elif alone:
        notes.append(f"no interval, as {' and '.join(alone)} has a single run")
    elif smallest < FEW:
        notes.append(f"{smallest} runs tell little: {FEW} seeds or more on each side do")
    if interval is not None and np.ptp(interval) == 0 and not episodes:
        notes.append(
            "every run of the one beats every run of the other, so that the interval has no width; "
            "that does not make it certain"
        )
    return notes


def _finals(group: Group) -> list[float]:
    return [float(run.final()["return"]) for run in group.runs]


def _episodes(run: PastRun) -> list[float]:
    returns = run.final().get("returns")
    if not returns:
        raise ValueError(
            f"{run.directory} does not tell the returns of its episodes, it is of an older "
            "version: resume it once, or compare directories of several seeds"
        )
    return [float(value) for value in returns]
