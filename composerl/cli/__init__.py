"""The ``composerl`` command. Torch is imported by the commands that need it, when they run."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Annotated, Any, get_type_hints

import tyro

from composerl import __version__
from composerl.cli import (
    datasets,
    doctor,
    evaluation,
    league,
    policies,
    recipes,
    runs,
    starting,
    sweep,
    verifying,
    warmup,
)
from composerl.config import look_here, suggest
from composerl.errors import guard, plain_errors

__all__ = ["main"]

#: One function per command, its arguments the command's flags; dictionaries are nested.
COMMANDS: dict[str, Callable[..., Any] | dict[str, Callable[..., Any]]] = {
    "recipes": recipes.recipes,
    "new": starting.new,
    "run": recipes.run,
    "evaluate": evaluation.evaluate,
    "predict": policies.predict,
    "export": policies.export,
    "plot": runs.plot,
    "report": runs.report,
    "compare": runs.compare,
    "verify": verifying.verify,
    "bisect": verifying.bisect,
    "sweep": sweep.sweep,
    "league": league.league,
    "data": {
        "info": datasets.info,
        "make": datasets.make,
        "collect": datasets.collect,
        "mix": datasets.mix,
        "filter": datasets.filter_,
        "convert": datasets.convert,
    },
    "warmup": warmup.warmup,
    "doctor": doctor.doctor,
}

#: What commands are for, in ``composerl --help``.
PURPOSES: dict[str, tuple[str, ...]] = {
    "train": ("recipes", "new", "run", "sweep", "league", "warmup"),
    "look": ("plot", "report", "compare"),
    "use": ("evaluate", "predict", "export"),
    "data": ("data",),
    "check": ("verify", "bisect", "doctor"),
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
    look_here()
    guard(lambda: _dispatch(words or ["--help"]))


def _dispatch(words: list[str]) -> None:
    if words == ["--version"]:
        print(__version__)
        return
    if words in (["--help"], ["-h"]):
        print(_help())
        return
    first, *rest = words
    command, name = _find(COMMANDS, first), first
    if not callable(command):
        if rest in ([], ["--help"], ["-h"]):
            print("\n".join([f"usage: composerl {first} COMMAND ...", *_lines(command)]))
            return
        command, name, rest = _find(command, rest[0]), f"{first} {rest[0]}", rest[1:]
    flags: list[str] = []
    if first in WITH_FLAGS and rest[:1] not in ([], ["--help"], ["-h"]):
        rest, flags = recipes.split_flags(rest, **WITH_FLAGS[first])
    _check_flags(command, rest)
    with plain_errors():
        action = tyro.cli(_later(command), prog=f"composerl {name}", args=rest)
    then = action()
    if first in WITH_FLAGS:
        then(flags)


def _find(commands: dict[str, Any], name: str) -> Any:
    if name not in commands:
        raise ValueError(f"there is no command {name!r}: {suggest(name, {*commands})}")
    return commands[name]


def _check_flags(command: Callable[..., Any], words: list[str]) -> None:
    """Refuse a flag that a command does not have, and say what is near."""
    parameters = inspect.signature(command).parameters.values()
    known = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    for flag in (word.partition("=")[0] for word in words if word.startswith("--")):
        name = flag[2:].replace("-", "_").removeprefix("no_")
        if name not in known | {"help"} and not name.startswith("tyro_"):
            near = (
                f"{suggest(name, known, flags=True)} (--help lists all)" if known else "it has none"
            )
            raise ValueError(f"unknown flag {flag}: {near}")


def _later(command: Callable[..., Any]) -> Callable[..., Callable[..., Any]]:
    """The command without doing it: what tyro complains about is told apart from what it says."""

    def parsed(*words: Any, **flags: Any) -> Callable[..., Any]:
        return functools.partial(command, *words, **flags)

    # The words of a command line have names; tyro would call each by its type.
    hints = get_type_hints(command, include_extras=True)
    for name, kind in hints.items():
        if tyro.conf.Positional in getattr(kind, "__metadata__", ()):
            hints[name] = Annotated[kind, tyro.conf.arg(metavar=name.upper())]
    parsed.__annotations__, parsed.__doc__ = hints, _flowing(command)
    vars(parsed)["__signature__"] = inspect.signature(command)
    return parsed


def _flowing(command: Callable[..., Any]) -> str:
    """What is said of a command, of each argument in one line: a terminal breaks it elsewhere."""
    about, args, words = (inspect.getdoc(command) or "").partition("\nArgs:\n")
    return about + args + re.sub(r"\n {5,}", " ", words)


def _help() -> str:
    """All commands, by what they are for."""
    named = {name for names in PURPOSES.values() for name in names}
    others = tuple(name for name in COMMANDS if name not in named)
    lines = [
        "usage: composerl COMMAND ...",
        "",
        "Reinforcement learning recipes: train, evaluate, export and compare policies.",
        "composerl COMMAND --help tells more, composerl --version which version this is.",
    ]
    for purpose, names in PURPOSES.items():
        shown = (*names, *others) if purpose == "check" else names
        lines += ["", f"{purpose}:", *_lines({name: COMMANDS[name] for name in shown})]
    return "\n".join(lines)


def _lines(commands: dict[str, Any]) -> list[str]:
    """A command and its first sentence, wrapped to a terminal's usual width."""
    lines = []
    for name, command in commands.items():
        text = (inspect.getdoc(command) or "").partition("\n")[0].rstrip(".")
        if not callable(command):
            text = f"Datasets: {', '.join(command)}"
        first, *more = textwrap.wrap(text, 66, break_on_hyphens=False)
        lines += [f"  {name:9} {first}", *(f"{'':12}{line}" for line in more)]
    return lines
