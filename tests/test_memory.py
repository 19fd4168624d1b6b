"""The allocator's thresholds; what they gain is measured by `python -m tests.benchmarks loops`."""

from __future__ import annotations

import platform

import pytest

from composerl.bookkeeping import machine


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not glibc")
def test_glibc_takes_them():
    assert machine.keep_freed_memory()


@pytest.mark.parametrize("library", [object, lambda: len(None)], ids=["other", "Windows"])
def test_other_c_libraries_are_left_alone(monkeypatch, library):
    """On Windows ``CDLL(None)`` is a TypeError."""
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name: library())
    assert not machine.keep_freed_memory()
