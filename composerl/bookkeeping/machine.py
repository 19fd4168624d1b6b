"""What a run asks of its process: device, threads, memory, random numbers, clock."""

import ctypes
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

__all__ = ["Clock", "keep_freed_memory", "prepare", "restore_rng", "rng_state", "untouched_rng"]


def prepare(seed: int, device: str, threads: int) -> None:
    """Seed Python, numpy and torch, and set the number of threads; refuse a missing device."""
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0]  # some list every backend there is
        raise ValueError(f"device {device!r} cannot be used here: {reason}") from error
    torch.set_num_threads(threads)
    keep_freed_memory()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def rng_state() -> dict[str, Any]:
    """The state of Python's, numpy's and torch's global generators."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(np.array(keys)), *rest],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_rng(state: dict[str, Any]) -> None:
    """Set the global generators to what :func:`rng_state` returned."""
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy(), *rest))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


@contextmanager
def untouched_rng() -> Iterator[None]:
    """A context after which the global generators are as before it."""
    kept = rng_state()
    try:
        yield
    finally:
        restore_rng(kept)


def keep_freed_memory(below: int = 1 << 30) -> bool:
    """Tell glibc not to return freed blocks below so many bytes to the kernel.

    By default it returns the activations of an update when they are freed, and asks for them anew
    in the next one: the page faults are a sixth of the time of a small network's update.

    Returns: whether it worked; other C libraries know no such thing, and nothing happens then.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # the last is Windows's answer to None
        return False
    trim, mmap = -1, -3  # glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
    return mallopt(mmap, below) + mallopt(trim, below) == 2


class Clock:
    """Seconds of wall and CPU time since :meth:`start`, on top of those of earlier sittings."""

    def start(self, wall: float = 0.0, cpu: float = 0.0, *, step: int = 0) -> None:
        """Count from now on, and from these."""
        self._zero = time.perf_counter() - wall, time.process_time() - cpu
        self._before = step, wall

    def elapsed(self) -> tuple[float, float]:
        """Wall and CPU seconds."""
        return time.perf_counter() - self._zero[0], time.process_time() - self._zero[1]

    def rate(self, step: int) -> dict[str, float]:
        """Steps per second since it was last asked, evaluations and checkpoints included."""
        (last, before), wall = self._before, self.elapsed()[0]
        self._before = step, wall
        if step == last:
            return {}
        return {"time/steps_per_second": round((step - last) / max(wall - before, 1e-9), 1)}

    def row(self) -> dict[str, float]:
        """The same as metrics."""
        wall, cpu = self.elapsed()
        return {"time/seconds": round(wall, 3), "time/cpu_seconds": round(cpu, 3)}
