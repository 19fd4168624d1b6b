"""Tries of each kind, and the table of what came of them."""

from __future__ import annotations

import argparse
import importlib
import math
import random
import resource
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path

from rich.console import Console
from rich.table import Table as Grid

from composerl.bookkeeping import blocks, trees
from tests.recipes.harness import PRELOADED

from . import __doc__ as description
from .child import MEMORY
from .datasets import datasets
from .disks import disks
from .flags import flags
from .flips import flips
from .hostile import hostile
from .kills import kills
from .material import Material
from .tries import DEFECTS, Table, Try

CAMPAIGNS: dict[str, Callable[[Material, random.Random, Path, bool], Try]] = {
    "kills": kills,
    "flips": flips,
    "hostile": hostile,
    "datasets": datasets,
    "flags": flags,
    "disks": disks,
}
SHORT = 12
ALONE = 50  # every so many-th try is a process of its own


def main(home: Path) -> int:
    """Try, print what is wrong and the table; gives the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaign",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(CAMPAIGNS)}")
    parser.add_argument("--count", type=int, default=SHORT, help="tries of each")
    parser.add_argument("--start", type=int, default=0, help="the first one's number")
    parser.add_argument("--minutes", type=float, default=math.inf, help="for each, at most")
    parser.add_argument("--seed", type=int, default=0, help="of what is tried")
    parser.add_argument(
        "--every", action="store_true", help="tell of each try, not of defects alone"
    )
    args = parser.parse_args()
    if unknown := {*args.names} - {*CAMPAIGNS}:
        parser.error(f"no such campaign: {', '.join(unknown)}; there are {', '.join(CAMPAIGNS)}")
    _prepare()
    table, console = Table(), Console(width=160, highlight=False)
    material = Material(home / "material")
    for name in args.names or CAMPAIGNS:
        number, end = args.start, time.monotonic() + 60 * args.minutes
        while table.tried(name) < args.count and time.monotonic() < end:
            before = _seconds()
            one = _try(name, material, home / "try", args.seed, number)
            table.add(name, one, _seconds() - before)
            if args.every or one.how in DEFECTS:
                console.print(f"{name} {number}: {one.how}: {one.what}\n{one.why}", markup=False)
                sys.stdout.flush()  # it may be long to the end, and looked at before
            number += 1
    head, *rows = table.rows()
    grid = Grid(*head)
    for row in rows:
        grid.add_row(*row)
    console.print(grid)
    return int(table.defects > 0)


def _prepare() -> None:
    """Import what recipes and commands do, and let small tensors go to blocks, too."""
    # What asks for more, here or in a child, hurts nobody else.
    resource.setrlimit(resource.RLIMIT_DATA, (2 * MEMORY, 2 * MEMORY))
    resource_tracker.ensure_running()  # one for all children
    for name in (*PRELOADED, "matplotlib.pyplot", "composerl.analysis.report", "jinja2"):
        with suppress(ImportError):
            importlib.import_module(name)
    blocks.LARGE = trees.LARGE = 2000


def _try(name: str, material: Material, place: Path, seed: int, number: int) -> Try:
    rng = random.Random(f"{seed} {name} {number}")  # each by itself can be tried again
    place.mkdir()
    try:
        return CAMPAIGNS[name](material, rng, place, number % ALONE == ALONE - 1)
    finally:
        shutil.rmtree(place)


def _seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
