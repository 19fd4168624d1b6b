"""How far a run is, from what it writes: the same for a process here and a worker far away."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composerl._files import open_plain, read_json
from composerl.bookkeeping.console import time_left
from composerl.bookkeeping.owner import owner_of

__all__ = ["COLUMNS", "Progress", "news", "read_progress"]

COLUMNS = ("run", "step", "return", "rate", "left", "node", "restarts")
_TAIL = 1 << 16  # bytes of metrics that are looked at: the last hundred rows or so


@dataclass(frozen=True)
class Progress:
    """A run that goes on, at a moment."""

    step: int = 0
    total: int | None = None
    saved: int = 0
    """Step of the newest checkpoint."""
    evaluations: tuple[tuple[int, float], ...] = ()
    """Steps and mean returns, the latest ones."""
    rate: float | None = None
    """Steps per second."""
    node: str = ""

    def row(self, name: str, restarts: int) -> Sequence[str]:
        """As a row of a table with :data:`COLUMNS`."""
        steps = f"{self.step:,}" + (f" of {self.total:,}" if self.total else "")
        left = time_left(self.total - self.step, self.rate) if self.rate and self.total else ""
        value = f"{self.evaluations[-1][1]:.1f}" if self.evaluations else ""
        rate = f"{self.rate:,.0f}/s" if self.rate else ""
        return name, steps, value, rate, left, self.node or "waiting", str(restarts or "")


def news(before: Progress, now: Progress) -> list[str]:
    """Evaluations that there were not before, a line for each."""
    known = {step for step, _ in before.evaluations}
    total = f" of {now.total:,}" if now.total else ""
    return [
        f"step {step:,}{total}, return {value:.1f}"
        for step, value in now.evaluations
        if step not in known
    ]


def read_progress(directory: Path) -> Progress:
    """What a run's directory tells; a run that has not begun has not got far."""
    rows = _tail(directory / "metrics.jsonl")
    timed = [(row["step"], row["time/seconds"]) for row in rows if "time/seconds" in row]
    rate = None
    if len(timed) > 1 and timed[-1][1] > timed[0][1]:
        rate = (timed[-1][0] - timed[0][0]) / (timed[-1][1] - timed[0][1])
    about = directory / "metadata.json"
    saved = [int(path.stem[5:]) for path in (directory / "checkpoints").glob("step-*.safetensors")]
    return Progress(
        step=rows[-1]["step"] if rows else 0,
        total=read_json(about).get("total") if about.is_file() else None,
        saved=max(saved, default=0),
        evaluations=tuple((r["step"], float(r["eval/return"])) for r in rows if "eval/return" in r),
        rate=rate,
        node=owner_of(directory).get("host", ""),
    )


def _tail(path: Path) -> list[dict[str, Any]]:
    """The last rows of metrics; cut-off ones at either end do not count."""
    try:
        with open_plain(path) as file:
            start = max(file.seek(0, 2) - _TAIL, 0)
            file.seek(start)
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    rows = []
    for line in lines[1 if start else 0 : -1]:
        with suppress(ValueError):  # a file server may show a row before its content
            rows.append(json.loads(line))
    return rows
