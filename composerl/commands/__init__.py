"""What ``composerl`` can do: one function per command, its arguments the command's flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from composerl.commands.compare import compare
from composerl.commands.datasets import convert, info, make
from composerl.commands.doctor import doctor
from composerl.commands.plot import plot
from composerl.commands.policies import evaluate, export, predict
from composerl.commands.recipes import recipes, run, split_run
from composerl.commands.report import report
from composerl.commands.sweep import split_sweep, sweep

__all__ = [
    "COMMANDS",
    "WITH_FLAGS",
    "compare",
    "convert",
    "doctor",
    "evaluate",
    "export",
    "info",
    "make",
    "plot",
    "predict",
    "recipes",
    "report",
    "run",
    "sweep",
]

COMMANDS: dict[str, Callable[..., Any] | dict[str, Callable[..., Any]]] = {
    "recipes": recipes,
    "run": run,
    "evaluate": evaluate,
    "predict": predict,
    "export": export,
    "plot": plot,
    "report": report,
    "compare": compare,
    "sweep": sweep,
    "data": {"info": info, "make": make, "convert": convert},
    "doctor": doctor,
}

#: Commands that also take a recipe's own flags, and what splits these off.
WITH_FLAGS = {"run": split_run, "sweep": split_sweep}
