"""Checkpoints of replay buffers, from 1 to 50 MB, when a thousand rows (0.17 MB) are new.

Against a checkpoint that holds all of the buffer in one file: the buffer grows, or is a full ring.
Syncing to the disk is waited for and takes no CPU time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import torch
from torchrl.data import TensorDictReplayBuffer

from composerl.bookkeeping.checkpoint import save_checkpoint
from composerl.bookkeeping.trees import save_tree
from composerl.data import PackedStorage

from .batches import continuous
from .timing import Case, Step

MEGABYTES = (1, 5, 15, 50)
ROW = 41 * 4 + 3  # bytes of HalfCheetah's
NEW = 1000


def ways(folder: Path, buffer: TensorDictReplayBuffer) -> dict[str, Step]:
    """One file with all of it, or ours."""
    (folder / "checkpoints").mkdir()
    steps = count()

    def one_file() -> None:
        buffer.extend(continuous(NEW))
        save_tree(folder / "whole", "policy", buffer.state_dict())

    def ours() -> None:
        buffer.extend(continuous(NEW))
        save_checkpoint(folder, next(steps), {"buffer": buffer.state_dict()})

    return {"one file": one_file, "composerl": ours}


def benchmark() -> Iterator[Case]:
    """Checkpoints of buffers of 1 to 50 MB, growing and full."""
    for megabytes in MEGABYTES:
        rows = megabytes * 1_000_000 // ROW
        for name, capacity in (("growing", 10 * rows + 500 * NEW), ("a full ring", rows)):
            torch.manual_seed(0)
            buffer = TensorDictReplayBuffer(storage=PackedStorage(capacity), batch_size=1)
            buffer.extend(continuous(rows))
            with tempfile.TemporaryDirectory() as folder:
                yield Case(f"{megabytes} MB, {name}", ways(Path(folder), buffer))
