"""Where two runs part: the first row of metrics, the first checkpoint, the first step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composerl._files import inside
from composerl._schema import short
from composerl.analysis.differences import Difference, find_difference
from composerl.analysis.replaying import Train, kept, numbers, replayed, rows, unrepeatable
from composerl.analysis.runs import PastRun
from composerl.bookkeeping.manifest import MANIFEST, read_manifest
from composerl.bookkeeping.trees import load_tree

__all__ = ["Parting", "bisect_runs", "settings_apart"]

#: Settings that say where to send what is found, and leave no trace in it.
_ASIDE = ("wandb", "tensorboard", "video", "keep_checkpoints")
#: What a run's last checkpoint has otherwise than one of a longer run: all is due at the end.
_OF_THE_END = ("score", "row", "best_policy")


@dataclass(frozen=True)
class Parting:
    """Something that both runs have, and where it differs; ``how`` is empty if it is equal."""

    what: str
    where: str = ""
    how: str = ""


def settings_apart(a: PastRun, b: PastRun) -> dict[str, str]:
    """What the runs were told otherwise, or made with: enough of a reason for other numbers."""
    pairs: dict[str, tuple[Any, Any]] = {"recipe": (a.recipe, b.recipe)}
    keys = [key for key in {**a.config, **b.config} if not str(key).startswith(_ASIDE)]
    pairs |= {key: (a.config.get(key), b.config.get(key)) for key in keys}
    made = [_made_with(run) for run in (a, b)]
    if all(made):
        pairs |= {key: (made[0].get(key), made[1].get(key)) for key in {**made[0], **made[1]}}
    return {
        key: f"{short(one)} and {short(other)}"
        for key, (one, other) in pairs.items()
        if find_difference(one, other)
    }


def _made_with(run: PastRun) -> dict[str, Any]:
    """Versions, CPU and data of a run that has finished."""
    if not (run.directory / MANIFEST).exists():
        return {}
    made = read_manifest(run.directory)["made_with"]
    return {**(made.get("versions") or {}), **{k: v for k, v in made.items() if k != "versions"}}


def bisect_runs(
    a: PastRun, b: PastRun, train: Train | None = None, env: str | None = None
) -> Iterator[Parting]:
    """Compare metrics, the checkpoints that both have kept, and policies, in this order.

    With ``train`` the steps between the last equal checkpoint and the first other one are trained
    again: of runs of other settings to find the step at which they part, else to find which of the
    two comes out so here. ``env`` is theirs, if a module is to be imported for it.
    """
    yield _metrics(a.directory, b.directory)
    ends = a.last_step, b.last_step
    places = kept(a.directory), kept(b.directory)
    common = sorted({*places[0]} & {*places[1]})
    if not common:
        yield Parting("checkpoints", how="there is no step of which both have kept one")
    equal, other = 0, None
    for step in common:
        states = [numbers(at[step]) for at in places]
        if step == min(ends) != max(ends):
            states = [{k: v for k, v in state.items() if k not in _OF_THE_END} for state in states]
        found = _parting(f"checkpoint of step {step}", *states)
        yield found
        if found.how:
            other = step
            break
        equal = step
    yield from _policies(a, b)
    if train is not None and other is not None:
        if settings_apart(a, b):
            yield _first_step((a, b), train, env, equal, other)
        else:
            yield from _who((a, b), train, env, equal, other)


def _parting(what: str, one: Any, other: Any) -> Parting:
    found = find_difference(one, other) or Difference("", "")
    return Parting(what, *found)


def _metrics(a: Path, b: Path) -> Parting:
    """The first row of metrics that is another, or in one of them only, or after which one ends."""
    tables = [list(rows(run).items()) for run in (a, b)]
    ends = [table[-1][1]["step"] if table else 0 for table in tables]
    for (name, one), (its, other) in zip(*tables, strict=False):
        steps = one["step"], other["step"]
        ended = [step == end < max(ends) for step, end in zip(steps, ends, strict=True)]
        if steps[0] != steps[1]:
            first = steps.index(min(steps))
            if ended[first]:  # with a row out of turn, which the longer one has no reason for
                break
            return Parting("metrics", (name, its)[first], f"is in {'AB'[first]} only")
        if ended[0]:
            one = {key: value for key, value in one.items() if key in other}
        elif ended[1]:
            other = {key: value for key, value in other.items() if key in one}
        if found := find_difference(one, other, (name,)):
            return Parting("metrics", *found)
    lengths = [len(table) for table in tables]
    if ends[0] == ends[1] and lengths[0] == lengths[1]:
        return Parting("metrics")
    short, long = ("A", "B") if (ends[0], lengths[0]) < (ends[1], lengths[1]) else ("B", "A")
    goes = f"{long} goes on to step {max(ends)}"
    return Parting("metrics", f"step {min(ends)}", f"{short} ends there, equal so far; {goes}")


def _policies(a: PastRun, b: PastRun) -> Iterator[Parting]:
    for name, of in (("policy.safetensors", "final"), ("checkpoints/best.safetensors", "best")):
        paths = [inside(run.directory, *Path(name).parts) for run in (a, b)]
        if not all(path.exists() for path in paths):
            continue
        steps = [((run.summary or {}).get(of) or {}).get("step") for run in (a, b)]
        if None not in steps and steps[0] != steps[1]:
            yield Parting(name, how=f"that of A is of step {steps[0]}, that of B of {steps[1]}")
        else:
            yield _parting(name, *(load_tree(path, "policy") for path in paths))


def _refusal(runs: tuple[PastRun, PastRun], env: str | None, since: int) -> str:
    return next(filter(None, (unrepeatable(run, env, since) for run in runs)), "")


def _first_step(
    runs: tuple[PastRun, PastRun], train: Train, env: str | None, equal: int, other: int
) -> Parting:
    """The first step after which the runs' states differ, by halving the steps between."""
    what = "trained again"
    if why := _refusal(runs, env, equal):
        return Parting(what, how=f"cannot be done: {why}")
    found = _parting(what, *(numbers(kept(run.directory)[other]) for run in runs))
    low, high, end = equal, other, other
    while end - low > 1:
        middle = (low + end) // 2
        states = []
        for run in runs:
            with replayed(run, train, equal, middle) as again:
                # A turn of the loop may take several steps, and go beyond the middle.
                reached, path = [*kept(again).items()][-1]
                states.append(numbers(path))
        here = _parting(what, *states)
        if reached < high and not here.how:
            low = reached
            continue
        end = middle
        if reached < high:
            high, found = reached, here
    return Parting(f"{what}: equal up to step {low}, other at {high}", found.where, found.how)


def _who(
    runs: tuple[PastRun, PastRun], train: Train, env: str | None, equal: int, other: int
) -> Iterator[Parting]:
    """Which of two runs that should be the same is what comes out here."""
    what = f"trained again from step {equal} to {other}"
    if why := _refusal(runs, env, equal):
        yield Parting(what, how=f"cannot be done: {why}")
        return
    with replayed(runs[0], train, equal, other) as again:
        state = numbers(kept(again)[other])
    for name, run in zip("AB", runs, strict=True):
        yield _parting(f"{what}, beside {name}", numbers(kept(run.directory)[other]), state)
