"""The online phase of an offline learner: microseconds a step, by what is stored; CPU time.

    OMP_NUM_THREADS=1 python tests/benchmarks/mixture.py [--rounds 9]

A step is ``extend`` by one transition and ``sample`` of 256, half of each buffer; every 200th ends
an episode, whose rows are then stored. Sizes are measured in turns.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from time import process_time

import torch
from tensordict import TensorDict
from torchrl.data import TensorDictReplayBuffer

from composerl.data import MixedReplayBuffer, PackedStorage, WholeEpisodes

EPISODE = 200


def transitions(number: int) -> TensorDict:
    """Of HalfCheetah's sizes; each goes on where the last one ended."""
    t = torch.arange(number).float().unsqueeze(1)
    done = t % EPISODE == EPISODE - 1
    following = {"observation": (t + 1).expand(-1, 17).clone(), "reward": torch.randn(number, 1)}
    following |= {"terminated": torch.zeros_like(done), "truncated": done, "done": done.clone()}
    values = {"observation": t.expand(-1, 17).clone(), "action": torch.randn(number, 6)}
    return TensorDict({**values, "next": following}, [number])


def phase(stored: int) -> tuple[MixedReplayBuffer, list[TensorDict]]:
    """Two buffers with so many rows each, and the steps that follow."""
    rows = transitions(stored)
    offline = TensorDictReplayBuffer(storage=PackedStorage(stored))
    offline.extend(rows)
    online = TensorDictReplayBuffer(storage=PackedStorage(1_000_000), transform=WholeEpisodes(0.99))
    for part in rows.split(10 * EPISODE):
        online.extend(part)
    return MixedReplayBuffer(offline, online, batch_size=256), list(transitions(EPISODE).split(1))


def main() -> None:
    """Print microseconds a step for each size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 400_000])
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    phases = {size: phase(size) for size in args.sizes}
    times: dict[tuple[int, str], list[float]] = {}
    for _ in range(args.rounds):
        for size, (buffer, steps) in phases.items():
            begin = process_time()
            for step in steps:
                buffer.extend(step)
            middle = process_time()
            for _ in steps:
                buffer.sample()
            times.setdefault((size, "extend"), []).append((middle - begin) / len(steps))
            times.setdefault((size, "sample"), []).append((process_time() - middle) / len(steps))
    for size in args.sizes:
        extend, sample = (
            statistics.median(times[size, what]) * 1e6 for what in ("extend", "sample")
        )
        print(
            f"{size:9,d} rows in each: {extend + sample:6.1f} us a step "
            f"(extend {extend:.1f}, sample {sample:.1f})"
        )


if __name__ == "__main__":
    main()
