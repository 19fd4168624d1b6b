"""The ``composerl`` command. Torch is imported by the commands that need it, when they run."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Union

from composerl.errors import guard

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command line; a user's mistake ends in one sentence and a non-zero exit."""
    words = list(sys.argv[1:] if argv is None else argv)
    guard(lambda: _dispatch(words or ["--help"]))


def _dispatch(words: list[str]) -> None:
    import tyro

    from composerl.cli.commands import COMMANDS, WITH_FLAGS

    if words == ["--version"]:
        from composerl import __version__

        print(__version__)
        return
    first, rest = words[0], words[1:]
    # A single command's parser is made faster than that of all.
    command = COMMANDS.get(first)
    if callable(command):
        flags = None
        if first in WITH_FLAGS and rest[:1] not in ([], ["--help"], ["-h"]):
            # These take the flags of a recipe, which only the recipe knows.
            rest, flags = WITH_FLAGS[first](rest)
        action = tyro.cli(command, prog=f"composerl {first}", args=rest)
        if flags is not None:
            action(flags)
        return
    tyro.cli(
        _union(COMMANDS),
        prog="composerl",
        description="Train, evaluate, export and compare policies of composerl's recipes.",
        args=words,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )


def _union(commands: dict[str, Callable[..., Any] | dict[str, Any]]) -> Any:
    """All commands as the union that tyro makes subcommands of; dictionaries are nested."""
    from tyro.conf import subcommand

    members = []
    for name, command in commands.items():
        if isinstance(command, dict):
            text = f"Datasets: {', '.join(command)}."
            members.append(Annotated[_union(command), subcommand(name, description=text)])
            continue
        text = (inspect.getdoc(command) or "").partition("\n")[0]
        members.append(Annotated[Any, subcommand(name, constructor=command, description=text)])
    return Union[tuple(members)]  # noqa: UP007
