"""The ``composerl`` command. Torch is imported by the commands that need it, when they run."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Union

import tyro

from composerl import __version__
from composerl.cli import datasets, doctor, league, policies, recipes, runs, sweep, warmup
from composerl.errors import guard

__all__ = ["main"]

#: One function per command, its arguments the command's flags; dictionaries are nested.
COMMANDS: dict[str, Callable[..., Any] | dict[str, Callable[..., Any]]] = {
    "recipes": recipes.recipes,
    "run": recipes.run,
    "evaluate": policies.evaluate,
    "predict": policies.predict,
    "export": policies.export,
    "plot": runs.plot,
    "report": runs.report,
    "compare": runs.compare,
    "sweep": sweep.sweep,
    "league": league.league,
    "data": {"info": datasets.info, "make": datasets.make, "convert": datasets.convert},
    "warmup": warmup.warmup,
    "doctor": doctor.doctor,
}

#: Commands that also take a recipe's flags, and their own flags: with one value, with any number.
WITH_FLAGS: dict[str, dict[str, tuple[str, ...]]] = {
    "run": {"one": ("--jobs", "--on", "--gpus"), "many": ("--seeds",)},
    "warmup": {"one": (), "many": ()},
    "sweep": {
        "one": ("--trials", "--sampler", "--pruner", "--out", "--jobs", "--on", "--gpus"),
        "many": (),
    },
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command line; a user's mistake ends in one sentence and a non-zero exit."""
    words = list(sys.argv[1:] if argv is None else argv)
    if "" not in sys.path:  # what `python -m composerl` finds here: --env module:Id
        sys.path.append("")
    guard(lambda: _dispatch(words or ["--help"]))


def _dispatch(words: list[str]) -> None:
    if words == ["--version"]:
        print(__version__)
        return
    first, *rest = words
    command = COMMANDS.get(first)
    if callable(command):  # a single command's parser is made faster than that of all
        flags: list[str] = []
        if first in WITH_FLAGS and rest[:1] not in ([], ["--help"], ["-h"]):
            rest, flags = recipes.split_flags(rest, **WITH_FLAGS[first])
        action = tyro.cli(command, prog=f"composerl {first}", args=rest)
        if first in WITH_FLAGS:
            action(flags)
        return
    tyro.cli(
        _union(COMMANDS),
        prog="composerl",
        description="Train, evaluate, export and compare policies of composerl's recipes.",
        args=words,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )


def _union(commands: dict[str, Any]) -> Any:
    """All commands as the union that tyro makes subcommands of."""
    members = []
    for name, command in commands.items():
        if isinstance(command, dict):
            text, kind, options = f"Datasets: {', '.join(command)}.", _union(command), {}
        else:
            text = (inspect.getdoc(command) or "").partition("\n")[0]
            kind, options = Any, {"constructor": command}
        members.append(Annotated[kind, tyro.conf.subcommand(name, description=text, **options)])
    return Union[tuple(members)]  # noqa: UP007
