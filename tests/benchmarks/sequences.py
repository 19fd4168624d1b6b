"""Slices of pixels: TorchRL's SliceSampler, ours, a bare gather; records a second; CPU time.

OMP_NUM_THREADS=1 python tests/benchmarks/sequences.py [--rounds 9]
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from time import process_time
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SliceSampler

from composerl.data import Latents, PackedStorage, RecordCollector, SequenceSampler
from composerl.envs import make_env


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


def main() -> None:
    """Print milliseconds of a sample, and records a second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    data = records(4, 2000, 64)
    for slices, length in ((8, 32), (16, 64)):
        rows = data.transpose(0, 1).reshape(-1)  # step by step
        ours = replay(8000, slices, length, num_envs=4)
        ours.extend(rows)
        one_episode = torch.zeros(8000, dtype=torch.bool)
        one_episode[1999::2000] = True
        theirs = TensorDictReplayBuffer(
            storage=LazyTensorStorage(8000),
            sampler=SliceSampler(num_slices=slices, end_key="end", cache_values=True),
            batch_size=slices * (1 + length),
        )
        theirs.extend(data.reshape(-1).set("end", one_episode))
        flat = data["observation"].flatten(0, 1)
        latents = Latents({"deter": (256,), "stoch": (16, 16)})
        latent = replay(8000, slices, length, num_envs=4, transform=latents)
        latent.extend(rows)

        def bare(flat: torch.Tensor = flat, slices: int = slices, length: int = length) -> None:
            rows = torch.randint(0, 7900, (slices, 1)) + torch.arange(1 + length)
            flat.index_select(0, rows.flatten())

        ways = {
            "pixels alone, bare gather": bare,
            "TorchRL SliceSampler": theirs.sample,
            "composerl": ours.sample,
            "composerl with latents": latent.sample,
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                begin = process_time()
                for _ in range(10):
                    way()
                times[name].append((process_time() - begin) / 10)
        print(f"{slices} slices of 1 + {length}, 3 x 64 x 64:")
        for name, seconds in times.items():
            print(f"  {name:26s} {statistics.median(seconds) * 1e3:7.2f} ms")
    for number in (1, 8):
        collector = RecordCollector(make_env("composerl/Catch-v0", number), None, seed=0)
        buffer = replay(100_000, 8, 32, num_envs=number)
        buffer.extend(collector.next().reshape(-1))
        begin = process_time()
        for _ in range(2000):
            buffer.extend(collector.next().reshape(-1))
        rate = 2000 * number / (process_time() - begin)
        print(f"Catch, {number} at a time, random actions, stored: {rate:,.0f} records a second")


if __name__ == "__main__":
    main()
