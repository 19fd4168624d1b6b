"""Which runs belong together: those that differ in nothing but their seeds. Imports no numpy."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from composerl.analysis.runs import PastRun
from composerl.config import RunConfig, may_change
from composerl.errors import printable, shortened

__all__ = ["Group", "group_runs"]

#: Fewer runs than these have intervals that say little.
FEW = 5
LONG = 300  # characters of a name

#: How long a run is changes what comes out of it, though it may change when a run is resumed.
_LENGTH = {"steps", "epochs", "online_steps", "stop_at", "patience"}


@dataclass(frozen=True)
class Group:
    """Runs of one environment that count as repetitions of each other."""

    name: str
    env: str
    runs: list[PastRun]
    notes: list[str] = field(default_factory=list)
    """What to know before one believes their statistics, in sentences."""

    def title(self, groups: Sequence["Group"]) -> str:
        """Its name, with the environment where ``groups`` have several."""
        one = len({group.env for group in groups}) == 1
        return self.name if one else f"{self.name}, {self.env}"


def group_runs(runs: Iterable[PastRun], by: str = "settings") -> list[Group]:
    """Runs that differ in their seed alone, or that have something else in common.

    Args:
        runs: finished or not.
        by: ``settings`` (recipe and every setting that differs between runs of the recipe, except
            the seed and what only says how to watch a run), ``recipe``, ``run`` (each alone) or the
            name of a flag. Runs of different environments never are one group.

    Returns: groups with names that say by what they differ, and notes on what they may hide. A run
    that is there twice, with equal settings and seed, counts once.
    """
    found: dict[tuple[str, str], list[PastRun]] = {}
    runs = list(runs)
    names = _names_by_settings(runs) if by == "settings" else [_name(run, by) for run in runs]
    for name, run in zip(names, runs, strict=True):
        found.setdefault((name, str(run.env)), []).append(run)
    return [_group(name, env, members, by) for (name, env), members in found.items()]


def settings_of(run: PastRun) -> dict[str, Any]:
    """What a run was told that may change what comes out of it, but for seed and environment."""
    watching = (may_change(RunConfig) - _LENGTH) | {"workers", "seed", "env"}
    return {key: value for key, value in run.config.items() if key not in watching}


def _name(run: PastRun, by: str) -> str:
    if by == "recipe":
        return run.recipe
    if by == "run":
        return str(run.directory)
    if by in run.config:
        return f"{by} {json.dumps(run.config[by])}"
    raise ValueError(
        f"--group-by {by}: expected settings, recipe, run or a flag of {run.directory}, which has "
        f"{', '.join(run.config)}"
    )


def _names_by_settings(runs: Sequence[PastRun]) -> list[str]:
    """Of each run its recipe, and what differs between the runs of that recipe there."""
    settings = [settings_of(run) for run in runs]
    alike: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run, values in zip(runs, settings, strict=True):
        alike.setdefault((run.recipe, str(run.env)), []).append(values)
    names = []
    for run, values in zip(runs, settings, strict=True):
        others = alike[run.recipe, str(run.env)]
        parts = [
            f"{key} {_brief(values.get(key), [other.get(key) for other in others])}"
            for key in _differing(others)
        ]
        names.append(", ".join([run.recipe, *parts]))
    return names


def _differing(settings: Sequence[dict[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for values in settings for key in values)
    return [key for key in keys if len({_word(values.get(key)) for values in settings}) > 1]


def _word(value: Any) -> str:
    """A setting, as one types it; another value has another word."""
    if isinstance(value, list):
        return " ".join(map(_word, value))
    return value if isinstance(value, str) else json.dumps(value)


def _brief(value: Any, others: Sequence[Any]) -> str:
    """Its word, of a number of a search four digits, if these tell it from the others'."""
    if not isinstance(value, float) or len(_word(value)) <= len(short := f"{value:.4g}"):
        return _word(value)
    alike = {_word(other) for other in others if isinstance(other, float)
             and f"{other:.4g}" == short}  # fmt: skip
    return short if len(alike) == 1 else _word(value)


def _group(name: str, env: str, runs: list[PastRun], by: str) -> Group:
    name, env = (printable(shortened(text, LONG)) for text in (name, env))
    kept: dict[str, PastRun] = {}
    notes = []
    if by != "run":
        for run in runs:
            key = json.dumps([settings_of(run), run.recipe, run.seed], sort_keys=True, default=str)
            twin = kept.setdefault(key, run)
            if twin is not run:
                better = max(twin, run, key=lambda r: (r.summary is not None, r.last_step))
                kept[key], other = better, run if better is twin else twin
                notes.append(
                    f"{name}: seed {run.seed} is there twice, {other.directory} is left out for "
                    f"{better.directory}"
                )
        runs = list(kept.values())
    pooled = _differing([{**settings_of(run), "recipe": run.recipe} for run in runs])
    if pooled:
        notes.append(f"{name}: pools runs whose {', '.join(pooled)} differ")
    ends = sorted({run.last_step for run in runs})
    if len(ends) > 1:
        notes.append(
            f"{name}: its runs end at different steps, {ends[0]} to {ends[-1]}; their line ends "
            "with the first"
        )
    if 1 < len(runs) < FEW:
        notes.append(
            f"{name}: {len(runs)} runs, whose interval is little more than their range; "
            f"{FEW} seeds or more tell something"
        )
    return Group(name, env, runs, notes)
