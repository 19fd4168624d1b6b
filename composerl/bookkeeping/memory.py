"""Keeping freed memory in the process."""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory(below: int = 1 << 30) -> bool:
    """Tell glibc not to return freed blocks below so many bytes to the kernel.

    By default it returns the activations of an update when they are freed, and asks for them anew
    in the next one: the page faults are a sixth of the time of a small network's update.

    Returns: whether it worked; other C libraries know no such thing, and nothing happens then.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    options = (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD)
    return sum(mallopt(option, below) for option in options) == len(options)
