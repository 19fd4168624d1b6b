"""recipes/SPEED.md, made of results.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import growth
from .results import RESULTS, told
from .timing import Figures

PAGE = Path(__file__).parents[2] / "recipes" / "SPEED.md"
COLUMNS = ("TorchRL", "composerl", "composerl, compiled")
SECTIONS = {
    "One update": ("iql", "xql", "cql", "sac", "td3bc", "iqn", "fqf", "ppo", "gail", "dynamics",
                   "dreamer"),
    "Blocks": ("replay", "mixture", "sequences", "collector", "imagination", "checkpoints"),
    "Other libraries": ("d3rlpy", "loops", "gail_run", "start"),
}  # fmt: skip
HEAD = """# Speed

This page is made of `tests/benchmarks/results.json` by `python -m tests.benchmarks --tables`; a
test compares the two. `OMP_NUM_THREADS=1 python -m tests.benchmarks` measures anew (`--list` names
the parts; other libraries take part where they can be imported).

All ways of a row do the same work in turns, in one process, on one thread; what is counted is CPU
time. Numbers are ratios to the first way of the row, whose time is given: medians over
rounds, quartiles in brackets; below 1 is faster. An update by hand has the networks, draws, metrics
and priorities of ours, starts from the same weights and gives the same numbers, which a test shows;
compiled, its loss is. TorchRL's losses are called as its documentation has it and do less in two
places: that of CQL has three values in its logsumexp where the others have thirty, that of Dreamer
scalars in place of 255 bins and no continue head. On AMD's CPUs our Dreamer takes large products
from oneDNN, the others theirs from MKL as PyTorch does. The limit of IQL is a backward pass derived
by hand, compiled with all the rest as one graph. "Products alone" are the matrix products of the
update by hand and nothing else, no activations, no sums, no Adam: a compiler saves what is
beside them, and where they are 0.85 of it, that is little. Whole runs are processes, imports
included.
"""


def page(held: dict[str, Any]) -> str:
    """The whole page."""
    parts = [HEAD, _where(held)]
    for title, benchmarks in SECTIONS.items():
        parts.append(f"## {title}\n\n" + _table({b: held[b] for b in benchmarks if b in held}))
    parts.append(
        f"## Growth\n\nCPU time, and in brackets its ratio to that of the first way.\n\n"
        f"{growth.table(held)}\n\n![The same as curves](../.github/{growth.PLOT.name})"
    )
    return "\n\n".join(part.strip() for part in parts) + "\n"


def results() -> dict[str, Any]:
    """What the file holds."""
    return json.loads(RESULTS.read_text())


def write() -> None:
    """Write page and plot anew."""
    PAGE.write_text(page(results()))
    growth.plot(results())


def _where(held: dict[str, Any]) -> str:
    entries = held.values()
    cases = [case for entry in entries for case in entry["cases"].values()]
    dates = sorted(case["date"] for case in cases)
    commits = ", ".join(sorted({case["commit"] for case in cases}))
    machines = "; ".join(sorted({entry["machine"] for entry in entries}))
    versions = {
        f"{name} {number}" for entry in entries for name, number in entry["versions"].items()
    }
    return (
        f"Measured from {dates[0]} to {dates[-1]} (UTC) on {machines}, at {commits} (results.json "
        f"has the commit of each row), with {', '.join(sorted(versions))}."
    )


def _table(held: dict[str, Any]) -> str:
    lines = [
        f"| what | compared with | {' | '.join(COLUMNS)} | further |",
        "|---|---|---|---|---|---|",
    ]
    for benchmark, entry in held.items():
        for case, found in entry["cases"].items():
            ways = found["ways"]
            (first, base), *others = ways.items()
            named = [_ratio(ways[way]) if way in ways else "" for way in COLUMNS]
            rest = [f"{way} {_ratio(f)}" for way, f in others if way not in COLUMNS]
            cells = [f"{benchmark}: {case}", f"{first}, {told(base['us'])}", *named]
            lines.append(f"| {' | '.join(cells)} | {'; '.join(rest)} |")
    return "\n".join(lines)


def _ratio(f: Figures) -> str:
    return f"{f['ratio']:.2f} ({f['low']:.2f} to {f['high']:.2f})"
