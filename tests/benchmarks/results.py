"""Figures as a table on the screen and as a file."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

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


def told(us: float) -> str:
    """A time in the unit that suits it."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.3g} {unit}"
    return f"{us:.3g} us"


def write(path: Path, benchmark: str, case: str, found: dict[str, Figures]) -> None:
    """Put one case into the file, with when, where and with what; the others in it stay."""
    held = json.loads(path.read_text()) if path.is_file() else {}
    entry = held.setdefault(benchmark, {"cases": {}})
    entry["machine"] = f"{_processor()}, {os.cpu_count()} cores"
    entry["versions"] = {"python": platform.python_version()}
    for library in LIBRARIES:
        if find_spec(library.replace("-", "_")) is not None:
            entry["versions"][library] = version(library)
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M")
    entry["cases"][case] = {"date": date, "commit": _commit(), "ways": found}
    path.write_text(json.dumps(held, indent=1, sort_keys=False) + "\n")


def _commit() -> str:
    """With ``-dirty`` if files are changed, but for that of the results."""
    changed = _git("status", "--porcelain", "--untracked-files=no", ":/", f":!{RESULTS.name}")
    return (_git("rev-parse", "--short", "HEAD") or "unknown") + "-dirty" * bool(changed)


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=RESULTS.parent, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] \
        if info.is_file() else []  # fmt: skip
    return names[0].split(":")[1].strip() if names else platform.machine()
