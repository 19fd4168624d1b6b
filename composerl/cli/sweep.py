"""``composerl sweep``: search a recipe's settings, with optuna."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from composerl.catalog import find_recipe, load_recipe
from composerl.config import RunConfig, parse, suggest

__all__ = ["sweep"]


def sweep(
    name: Positional[str],
    *,
    trials: int = 20,
    sampler: Literal["tpe", "random", "grid"] = "tpe",
    pruner: Literal["none", "median", "hyperband"] = "none",
    out: Path | None = None,
    jobs: int | None = None,
    on: str | None = None,
    gpus: float = 0,
) -> Callable[[list[str]], None]:
    """Search settings: sweep NAME --lr 1e-5:1e-2:log --batch-size 64:512 --tau 0.005 0.02.

    A flag with several values is searched among these, one with LOW:HIGH (whole or broken numbers,
    as the flag takes them) or LOW:HIGH:log in the range; one with a single value is passed on. The
    flags are those of the recipe: sweep NAME --help lists them.

    Each trial is a run below --out, scored by its final return; a combination that comes again gets
    the next seed. At the end there are a table, a picture and best.yaml, which --config takes.
    Started again with the same --out, the sweep goes on, trials under way included; started on
    several machines that share --out, all work on the same search.

    Args:
        name: A packaged recipe (see composerl recipes) or the path of a recipe file.
        trials: How many in all.
        sampler: Who chooses: tpe learns from the trials before, grid goes through all combinations.
        pruner: Who stops trials by their evaluations on the way: median those below the median of
            the others at the same step, hyperband all but a third, again and again.
        out: Directory of the sweep. Default: runs/<recipe>/sweep.
        jobs: How many at a time. Default: one; on a cluster as many as it has cores.
        on: Where: ray (a cluster that is started here) or ray=ADDRESS; a run has --threads cores.
        gpus: GPUs of each run on a cluster; may be a fraction.
    """
    if trials < 1:
        raise ValueError(f"--trials must be at least 1, got {trials}")

    def start(flags: list[str]) -> None:
        config = load_recipe(name).Config
        if {"--help", "-h"} & {*flags}:
            words = (inspect.getdoc(sweep) or "").partition("Args:")[0]
            more = f"{words}The sweep's own flags: composerl sweep --help."
            parse(config, ["--help"], prog=f"composerl sweep {name}", more=more)
        if find_spec("optuna") is None:
            raise ValueError("sweeps need optuna, not installed: pip install 'composerl[sweep]'")
        from composerl.cli.search import Search
        from composerl.fleet import Fleet

        fixed, space = _space(config, flags)
        if sampler == "grid" and (ranges := [flag for flag in space if len(space[flag]) == 1]):
            raise ValueError(f"--sampler grid needs values one by one, {ranges[0]} is a range")
        place = out or Path("runs", find_recipe(name).stem, "sweep")
        search = Search(name, config, fixed, space, place)
        group = place.name if out else f"{find_recipe(name).stem}-sweep"
        with Fleet(place, on, jobs, gpus, group, shared=True) as fleet:
            search.run(fleet, trials, sampler, pruner)

    return start


def _space(config: type[RunConfig], flags: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The flags with one value, as they are, and those to search; all are checked.

    Of those to search, the values, or a single ``LOW:HIGH`` or ``LOW:HIGH:log``.
    """
    values: dict[str, list[str]] = {}
    for word in flags:
        if word == "--resume":  # a sweep goes on in any case
            continue
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            values[flag] = [value] if equals else []
        elif not values:
            raise ValueError(f"expected a flag of the recipe, got {word!r}")
        else:
            values[list(values)[-1]].append(word)
    if "--seed" in values:
        raise ValueError("--seed is the sweep's own business: trials count their seeds")
    kinds = {f"--{name.replace('_', '-')}": k for name, k in typing.get_type_hints(config).items()}
    fixed: list[str] = []
    space: dict[str, list[str]] = {}
    for flag, words in values.items():
        several = len(words) > 1 and "tuple" not in str(kinds.get(flag))
        if several and len({*words}) != len(words):
            raise ValueError(f"{flag} names a value twice: {' '.join(words)}")
        if several or (len(words) == 1 and ":" in words[0] and number_kind(kinds.get(flag))):
            space[flag] = words
        else:
            fixed += [flag, *words]
    known = {field.name for field in fields(config)}
    for flag, words in values.items():
        name = flag[2:].replace("-", "_")
        if words and name not in known:  # before a range of it is missed
            near = suggest(name, known, flags=True)
            raise ValueError(f"unknown flag {flag}: {near} (sweep NAME --help lists all)")
    if not space:
        raise ValueError(
            "a sweep needs a flag with several values or a range, such as --lr 1e-4 1e-3 "
            "or --lr 1e-5:1e-2:log"
        )
    for flag, words in space.items():
        ends = read_range(flag, words[0])[:2] if len(words) == 1 else words
        for value in ends:
            parse(config, [*fixed, f"{flag}={value}"])
    return fixed, space


def number_kind(kind: object) -> type | None:
    """``int`` or ``float``, if a field takes such numbers."""
    kinds = {kind, *typing.get_args(kind)}
    return next((number for number in (int, float) if number in kinds), None)


def read_range(flag: str, text: str) -> tuple[str, str, bool]:
    """Both ends of ``LOW:HIGH`` or ``LOW:HIGH:log``, and whether it is the latter."""
    match = re.fullmatch(r"([^:]+):([^:]+)(:log)?", text)
    low, high, log = match.groups() if match else ("", "", None)
    try:
        fits = float(low) < float(high) and (not log or float(low) > 0)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"{flag} {text} is no range: expected LOW:HIGH, or LOW:HIGH:log with a positive LOW"
        )
    return low, high, bool(log)
