"""Figures as a table on the screen and as a file."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .timing import Figures

RESULTS = Path(__file__).with_name("results.json")
LIBRARIES = ("torch", "torchrl", "tensordict", "gymnasium", "numpy",
             "tianshou", "d3rlpy", "imitation", "stable-baselines3", "sb3-contrib")  # fmt: skip


def show(console: Console, benchmark: str, case: str, found: dict[str, Figures]) -> None:
    """One case as a table."""
    table = Table(title=f"{benchmark}: {case}", title_justify="left")
    table.add_column("way")
    for column in ("CPU us", "ratio", "quartiles"):
        table.add_column(column, justify="right")
    for way, f in found.items():
        spread = f"{f['low']:.3f} to {f['high']:.3f}"
        table.add_row(way, f"{f['us']:,.1f}", f"{f['ratio']:.3f}", spread)
    console.print(table)


def where() -> dict[str, Any]:
    """When, on what machine and with which versions this is measured."""
    versions = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            versions[library] = version(library)
        except PackageNotFoundError:
            continue
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M"),
        "commit": _commit(),
        "machine": f"{_processor()}, {os.cpu_count()} cores, one thread",
        "versions": versions,
    }


def write(path: Path, benchmark: str, entry: dict[str, Any]) -> None:
    """Put one benchmark into the file; the others in it stay."""
    held = json.loads(path.read_text()) if path.is_file() else {}
    held[benchmark] = entry
    text = json.dumps(dict(sorted(held.items())), indent=1)
    path.write_text(text + "\n")


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(
        command, cwd=RESULTS.parent, capture_output=True, text=True, check=False
    )  # fmt: skip
    return done.stdout.strip() or "unknown"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] \
        if info.is_file() else []  # fmt: skip
    return names[0].split(":")[1].strip() if names else platform.machine()
