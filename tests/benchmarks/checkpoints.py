"""Checkpoints of replay buffers, from 1 to 200 MB, when a thousand rows (0.17 MB) are new.

Megabytes written and CPU time of a checkpoint, against one that holds all of the buffer itself:
the buffer grows, or is a full ring. Files are synced to the disk, which ``seconds`` by the clock
include and CPU time does not.

    OMP_NUM_THREADS=1 python tests/benchmarks/checkpoints.py
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from time import perf_counter, process_time

import torch
from common import Figures, Found, main, settle, transitions
from torchrl.data import TensorDictReplayBuffer

from composerl.bookkeeping.checkpoint import save_checkpoint, save_tree
from composerl.data import PackedStorage

MEGABYTES = (1, 5, 15, 50, 200)
ROW = 41 * 4 + 3  # bytes of HalfCheetah's
NEW = 1000


def sizes(folder: Path) -> dict[tuple[Path, int], int]:
    """Of all files, by name and by when they were written."""
    stats = [(path, path.stat()) for path in folder.rglob("*") if path.is_file()]
    return {(path, stat.st_mtime_ns): stat.st_size for path, stat in stats}


def rewritten(folder: Path, buffer: TensorDictReplayBuffer, rounds: int) -> dict[str, Figures]:
    """Figures of both ways, in turns."""
    (folder / "checkpoints").mkdir()
    ways = {
        "one file": lambda step: save_tree(folder / "whole", "policy", buffer.state_dict()),
        "composerl": lambda step: save_checkpoint(folder, step, {"buffer": buffer.state_dict()}),
    }
    taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    for step in range(rounds + 1):
        buffer.extend(transitions(NEW))
        for name, way in ways.items():
            before, cpu, clock = sizes(folder), process_time(), perf_counter()
            way(step)
            spent = process_time() - cpu, perf_counter() - clock
            new = sum(size for key, size in sizes(folder).items() if key not in before)
            taken[name].append((new / 1e6, *spent))
    found = {}
    for name, figures in taken.items():
        megabytes, cpu, clock = map(statistics.median, zip(*figures[1:], strict=True))
        ratio = statistics.median(
            a[1] / b[1] for a, b in zip(figures[1:], taken["one file"][1:], strict=True)
        )
        found[name] = {"us": cpu * 1e6, "ratio": ratio, "megabytes": megabytes, "seconds": clock}
    return found


def measure(rounds: int) -> Found:
    """All sizes."""
    settle()
    found: Found = {}
    for megabytes in MEGABYTES:
        rows = megabytes * 1_000_000 // ROW
        torch.manual_seed(0)
        for name, capacity in (("growing", 2 * rows + 1000 * (rounds + 1)), ("a ring", rows)):
            buffer = TensorDictReplayBuffer(storage=PackedStorage(capacity), batch_size=1)
            buffer.extend(transitions(rows))
            with tempfile.TemporaryDirectory() as folder:
                case = f"{megabytes} MB, {rows} rows, {name}"
                found[case] = rewritten(Path(folder), buffer, rounds)
    return found


if __name__ == "__main__":
    main(measure, __doc__, rounds=7)
