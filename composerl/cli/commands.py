"""What ``composerl`` can do: one function per command, its arguments the command's flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from composerl.cli.compare import compare
from composerl.cli.datasets import convert, info, make
from composerl.cli.doctor import doctor
from composerl.cli.plot import plot
from composerl.cli.policies import evaluate, export, predict
from composerl.cli.recipes import recipes, run, split_run
from composerl.cli.report import report
from composerl.cli.sweep import split_sweep, sweep

__all__ = ["COMMANDS", "WITH_FLAGS"]

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
