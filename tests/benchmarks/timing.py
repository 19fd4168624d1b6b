"""Ways of doing the same work, in turns: CPU time, ratios within a round, their spread."""

from __future__ import annotations

import resource
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from time import process_time

import torch
from torchrl import torchrl_logger

from composerl.bookkeeping.machine import keep_freed_memory

Step = Callable[[], object]
#: "us" of a call; "ratio" to the first way, the median over rounds, "low" and "high" its quartiles.
Figures = dict[str, float]


@dataclass(frozen=True)
class Case:
    """Ways of doing the same work.

    Attributes:
        name: what is done.
        ways: how, by name; the first is what the others are compared with.
        each: in how many parts a call is told, such as the steps that it makes.
        warmup: calls of each way before any counts: to compile, to fill caches.
    """

    name: str
    ways: Mapping[str, Step]
    each: float = 1
    warmup: int = 4

    def eager(self) -> Case:
        """The same without the ways that are compiled, which take minutes at first."""
        ways = {name: way for name, way in self.ways.items() if "compiled" not in name}
        ways.pop("limit", None)
        return replace(self, ways=ways)


#: Makes its cases one after the other, so that a case's memory is free before the next one's.
Benchmark = Callable[[], Iterator[Case]]


def settle() -> None:
    """One thread, the allocator as a run sets it, nothing said: the same for all ways."""
    torch.set_num_threads(1)
    keep_freed_memory()
    warnings.simplefilter("ignore")
    torchrl_logger.setLevel("WARNING")


def cpu() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return process_time() + children.ru_utime + children.ru_stime


def in_turns(case: Case, rounds: int, turn: float = 0.05) -> dict[str, Figures]:
    """Figures of each way.

    A way is called as often in its turn as fits into ``turn`` seconds of the slowest. Where one
    call takes a second and more, there are fewer rounds, three at least.
    """
    slowest = 0.0
    for way in case.ways.values():
        seconds = [_seconds(way, 1) for _ in range(case.warmup)]
        slowest = max(slowest, seconds[-1])
    calls = max(1, int(turn / slowest))
    rounds = min(rounds, max(3, int(60 / len(case.ways) / slowest)))
    times: dict[str, list[float]] = {name: [] for name in case.ways}
    for _ in range(rounds):
        for name, way in case.ways.items():
            times[name].append(_seconds(way, calls) / case.each * 1e6)
    base = next(iter(times.values()))
    return {name: _figures(taken, base) for name, taken in times.items()}


def _seconds(way: Step, calls: int) -> float:
    start = cpu()
    for _ in range(calls):
        way()
    return (cpu() - start) / calls


def _figures(taken: list[float], base: list[float]) -> Figures:
    ratios = [a / b for a, b in zip(taken, base, strict=True)]
    low, ratio, high = statistics.quantiles(ratios, n=4, method="inclusive")
    found = {"us": statistics.median(taken), "ratio": ratio, "low": low, "high": high}
    return {key: float(f"{value:.4g}") for key, value in found.items()}
