"""The command line: see the package."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from . import __doc__ as description
from . import (
    checkpoints,
    collector,
    dreamer,
    growth,
    imagination,
    loops,
    mixture,
    replay,
    runs,
    sequences,
    tables,
    updates,
)
from .results import show, write
from .timing import Benchmark, in_turns, settle

BENCHMARKS: dict[str, Benchmark] = {
    **updates.BENCHMARKS,
    "dreamer": dreamer.benchmark,
    "replay": replay.benchmark,
    "mixture": mixture.benchmark,
    "sequences": sequences.benchmark,
    "collector": collector.benchmark,
    "imagination": imagination.benchmark,
    "checkpoints": checkpoints.benchmark,
    "growth": growth.iql,
    "d3rlpy": runs.d3rlpy,
    "loops": loops.benchmark,
    "gail_run": runs.gail,
    "start": runs.start,
}


def main() -> None:
    """Measure what is named, show it and keep it."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; all by default")
    parser.add_argument("--list", action="store_true", help="name the benchmarks, and no more")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each way, at most")
    parser.add_argument("--json", type=Path, help="file that takes the figures, beside its others")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name has it")
    parser.add_argument("--eager", action="store_true", help="leave out what is compiled")
    parser.add_argument("--tables", action="store_true", help="write recipes/SPEED.md, and no more")
    args = parser.parse_args()
    if args.list:
        for name, benchmark in BENCHMARKS.items():
            print(f"{name:12s} {(benchmark.__doc__ or '').splitlines()[0]}")
        return
    if args.tables:
        tables.write()
        return
    if unknown := [name for name in args.names if name not in BENCHMARKS]:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    if args.rounds < 2:
        parser.error("a spread needs at least two rounds")
    settle()
    console = Console()
    for name in args.names or BENCHMARKS:
        skipped = True
        for case in BENCHMARKS[name]():
            skipped = False
            if args.only not in case.name:
                continue
            found = in_turns(case.eager() if args.eager else case, args.rounds)
            show(console, name, case.name, found)
            if args.json:
                write(args.json, name, case.name, found)
        if skipped:
            console.print(f"{name}: skipped, as what it compares with cannot be imported")


main()
