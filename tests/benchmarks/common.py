"""What the benchmarks share: a batch of HalfCheetah's size, time and memory of an update."""

from __future__ import annotations

import argparse
import itertools
import statistics
import warnings
from collections.abc import Callable
from time import process_time

import torch
from tensordict import TensorDict
from torch.profiler import ProfilerActivity, profile
from torchrl.objectives import LossModule, SoftUpdate

from composerl.envs.spaces import Spaces

SPACES = Spaces(obs_shape=(17,), low=(-1.0,) * 6, high=(1.0,) * 6)
Step = Callable[[], object]


def transitions(rows: int) -> TensorDict:
    """A batch of random transitions."""
    no = torch.zeros(rows, 1, dtype=torch.bool)
    following = {
        "observation": torch.randn(rows, 17),
        "reward": torch.randn(rows, 1),
        "done": no,
        "terminated": no.clone(),
        "truncated": no.clone(),
    }
    data = {"observation": torch.randn(rows, 17), "action": torch.rand(rows, 6) * 2 - 1}
    return TensorDict({**data, "next": following}, [rows])


def stock_step(loss: LossModule, batch: TensorDict, names: list[str]) -> Step:
    """A TorchRL loss as its documentation shows it: default Adam, SoftUpdate."""
    loss.make_value_estimator(gamma=0.99)
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-4)
    updater = SoftUpdate(loss, tau=0.005)

    def step() -> None:
        out = loss(batch)
        sum(out[name] for name in names).backward()
        optimizer.step()
        optimizer.zero_grad()
        updater.step()

    return step


def arguments(
    description: str, rounds: int, updates: int, width: int = 256, rows: int = 256
) -> argparse.Namespace:
    """The command line, and one quiet thread."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=width)
    parser.add_argument("--rows", type=int, default=rows)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--updates", type=int, default=updates, help="updates in a round")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    return parser.parse_args()


def compare(variants: dict[str, Step], args: argparse.Namespace) -> None:
    """Print CPU time per update: medians, and medians of the ratios within the rounds."""
    for step in variants.values():
        for _ in range(args.updates):
            step()
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(args.rounds):
        for name, step in variants.items():
            start = process_time()
            for _ in range(args.updates):
                step()
            times[name].append((process_time() - start) / args.updates)
    bases = [name for name in variants if not name.startswith("composerl")]
    print(f"width {args.width}, batch {args.rows}, torch {torch.__version__}, one thread, CPU time")
    for name, seconds in times.items():
        line = f"{name:24s} {statistics.median(seconds) * 1e3:8.3f} ms"
        for base in bases:
            pairs = zip(seconds, times[base], strict=True)
            line += f"   {statistics.median(a / b for a, b in pairs):5.2f} of {base}"
        print(line)


def peak_memory(step: Step) -> float:
    """The most that an update has allocated in tensors at a time, in MB, above its start.

    Counted from torch's own allocations and releases: the peak of the whole process would hold
    what the libraries load when they are first used.
    """
    step()  # makes what stays: optimizer state, targets
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    events = record.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return max(itertools.accumulate(size for _, size in changes)) / 2**20
