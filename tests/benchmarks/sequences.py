"""Slices of pixels: TorchRL's SliceSampler, ours, a bare gather of the pixels; CPU microseconds.

All in a stock buffer but the bare gather. A slice has one record more than its length, as ours do;
TorchRL's are of episodes that do not end within one, so that it has nothing to mend.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SliceSampler

from composerl.data import Latents, PackedStorage, RecordCollector, SequenceSampler
from composerl.envs import make_env

from .timing import Case, Step

ROWS, LANES = 8000, 4


def records(lanes: int, steps: int, side: int) -> TensorDict:
    """Noise, in episodes of 50."""
    first = (torch.arange(steps) % 50 == 0).expand(lanes, -1)
    return TensorDict(
        {
            "observation": torch.randint(0, 256, (lanes, steps, 3, side, side), dtype=torch.uint8),
            "action": torch.randint(0, 4, (lanes, steps)),
            "reward": torch.randn(lanes, steps),
            "first": first.clone(),
            "terminal": first.roll(-1, 1),
        },
        [lanes, steps],
    )


def replay(size: int, slices: int, length: int, **parts: Any) -> TensorDictReplayBuffer:
    """A stock buffer with our storage and sampler."""
    return TensorDictReplayBuffer(
        storage=PackedStorage(size),
        sampler=SequenceSampler(length, parts.pop("num_envs", 1)),
        batch_size=slices,
        **parts,
    )


def slicing(data: TensorDict, slices: int, length: int) -> dict[str, Step]:
    """The ways to a batch of slices."""
    rows = data.transpose(0, 1).reshape(-1)  # step by step
    ours = replay(ROWS, slices, length, num_envs=LANES)
    ours.extend(rows)
    ends = torch.zeros(ROWS, dtype=torch.bool)
    ends[ROWS // LANES - 1 :: ROWS // LANES] = True
    theirs = TensorDictReplayBuffer(
        storage=LazyTensorStorage(ROWS),
        sampler=SliceSampler(num_slices=slices, end_key="end", cache_values=True),
        batch_size=slices * (1 + length),
    )
    theirs.extend(data.reshape(-1).set("end", ends))
    flat = data["observation"].flatten(0, 1)
    latents = Latents({"deter": (256,), "stoch": (16, 16)})
    latent = replay(ROWS, slices, length, num_envs=LANES, transform=latents)
    latent.extend(rows)

    def bare() -> torch.Tensor:
        begin = torch.randint(0, ROWS - length - 1, (slices, 1))
        return flat.index_select(0, (begin + torch.arange(1 + length)).flatten())

    return {
        "by hand, pixels alone": bare,
        "TorchRL": theirs.sample,
        "composerl": ours.sample,
        "composerl, with latents": latent.sample,
    }


def storing(number: int) -> dict[str, Step]:
    """Records of Catch, random actions, collected and stored or collected alone."""

    def collector() -> RecordCollector:
        return RecordCollector(make_env("composerl/Catch-v0", number), None, seed=0)

    alone, kept = collector(), collector()
    buffer = replay(100_000, 8, 32, num_envs=number)
    return {
        "composerl, not stored": alone.next,
        "composerl": lambda: buffer.extend(kept.next().reshape(-1)),
    }


def benchmark() -> Iterator[Case]:
    """Sequences: slices of 64 x 64 pixels, and records of Catch collected and stored."""
    data = records(LANES, ROWS // LANES, 64)
    for slices, length in ((8, 32), (16, 64)):
        case = f"{slices} slices of 1 + {length}, 3 x 64 x 64"
        yield Case(case, slicing(data, slices, length))
    for number in (1, 8):
        yield Case(f"a record of Catch, {number} at a time", storing(number), each=number)
