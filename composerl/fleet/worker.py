"""What a worker of a cluster does: one run, in its own process. Imports no torch by itself."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from composerl.catalog import load_recipe
from composerl.config import parse
from composerl.errors import guard
from composerl.fleet.jobs import Job

__all__ = ["work"]


def work(order: Mapping[str, Any], host: str) -> int | str:
    """Do one run; returns the exit code that a process of its own would have.

    Or a sentence, where not even a log can be written.

    Args:
        order: ``job``, the values of one; ``cwd``, the driver's working directory, which paths are
            relative to; ``mark``, a file of the driver: who sees it shares its storage;
            ``environ``, variables to set.
        host: the name of this machine.
    """
    job = Job(**order["job"])
    for path in (Path(order["cwd"]), order["mark"]):
        if not path.exists():
            return (
                f"{host} does not see {path}, which is there on the driver's machine: mount the "
                "same storage at the same place on all nodes, and start from a directory on it"
            )
    os.chdir(order["cwd"])
    os.environ.update(order["environ"])
    if "" not in sys.path:  # as for every command: --env module:Id
        sys.path.append("")
    with _printing_to(job.log):
        try:
            guard(lambda: _train(job))
            return 0
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 1
        except Exception:
            traceback.print_exc()
            return 1


@contextmanager
def _printing_to(path: Path) -> Iterator[None]:
    """Send all output to a file: Python's, and what other languages or a crash print."""
    kept, streams = [os.dup(number) for number in (1, 2)], (sys.stdout, sys.stderr)
    with open(path, "a", buffering=1, encoding="utf-8") as log:
        try:
            sys.stdout = sys.stderr = log
            for number in (1, 2):
                os.dup2(log.fileno(), number)
            yield
        finally:
            sys.stdout, sys.stderr = streams
            for number, before in zip((1, 2), kept, strict=True):
                os.dup2(before, number)


def _train(job: Job) -> None:
    flags = job.command()
    sys.argv = ["composerl", "run", job.recipe, *flags]
    module = load_recipe(job.recipe)
    module.main(parse(module.Config, flags))
