"""The allocator's thresholds; what they gain is measured by tests/benchmarks/online_loop.py."""

from __future__ import annotations

import platform

import pytest

from composerl.bookkeeping import memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not glibc")
def test_glibc_takes_them():
    assert memory.keep_freed_memory()


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
    assert not memory.keep_freed_memory()
