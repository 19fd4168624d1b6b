"""What the benchmarks share: a batch of HalfCheetah's size, time and memory of an update.

A file of one block has ``measure(rounds) -> {case: {way: figures}}``, made by :func:`in_turns`, and
ends in ``main(measure, __doc__)``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from time import process_time

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torchrl import torchrl_logger
from torchrl.objectives import LossModule, SoftUpdate

from composerl.bookkeeping.machine import keep_freed_memory
from composerl.envs.spaces import Spaces

SPACES = Spaces(obs_shape=(17,), low=(-1.0,) * 6, high=(1.0,) * 6)
Step = Callable[[], object]
Figures = dict[str, float]
Found = dict[str, dict[str, Figures]]


def settle() -> None:
    """One thread, the allocator as a run sets it, nothing said: the same for all ways."""
    torch.set_num_threads(1)
    keep_freed_memory()
    warnings.simplefilter("ignore")
    torchrl_logger.setLevel("WARNING")


def in_turns(
    ways: Mapping[str, Step], rounds: int, calls: int, *, base: str, each: float = 1
) -> dict[str, Figures]:
    """CPU microseconds of a call, by ways that take turns, round by round.

    The first round is for warming up. ``us`` is the median over the others, ``ratio`` that of the
    ratios to the base within a round, ``low`` and ``high`` are their quartiles.

    Args:
        ways: what to compare, by name.
        rounds: turns of each.
        calls: of a way in its turn.
        base: the way that others are compared with.
        each: in how many parts a call is told, such as the steps that it makes.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            start = process_time()
            for _ in range(calls):
                way()
            times[name].append((process_time() - start) / calls / each * 1e6)
    found = {}
    for name, taken in times.items():
        ratios = [a / b for a, b in zip(taken[1:], times[base][1:], strict=True)]
        low, ratio, high = statistics.quantiles(ratios, n=4) if rounds > 1 else ratios * 3
        found[name] = {
            "us": statistics.median(taken[1:]), "ratio": ratio, "low": low, "high": high
        }  # fmt: skip
    return found


def main(measure: Callable[[int], Found], description: str | None, rounds: int = 15) -> None:
    """The command line of a benchmark: a table, and JSON if a file is named."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args()
    found = measure(args.rounds)
    for case, ways in found.items():
        print(case)
        for name, figures in ways.items():
            numbers = "   ".join(f"{key} {value:9.3f}" for key, value in figures.items())
            print(f"  {name:28s} {numbers}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


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


def told(losses: dict[str, Tensor], parameters: list[nn.Parameter]) -> dict[str, Tensor]:
    """The metrics that composerl's Update gives, for a hand-written side that shall do the same."""
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
    return {name: value.detach() for name, value in losses.items()} | {"grad_norm": norm}


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
    keep_freed_memory()  # as a run does; here for all sides
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
