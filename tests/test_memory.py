"""The allocator's thresholds."""

from __future__ import annotations

import subprocess
import sys

import pytest

from composerl.memory import keep_freed_memory

# Minor page faults of asking for 20 blocks of 1 MB and freeing them, a hundred times.
COUNT = """
import resource, sys, torch
from composerl.memory import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def use():
    blocks = [torch.ones(250_000) for _ in range(20)]
    del blocks
for _ in range(10):
    use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not keep_freed_memory(), reason="not glibc")
def test_freed_memory_is_used_again():
    faults = {
        how: int(subprocess.check_output([sys.executable, "-c", COUNT, how], text=True))
        for how in ("keep", "return")
    }
    assert faults["keep"] < 0.1 * faults["return"], faults
