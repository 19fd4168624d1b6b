"""The allocator's thresholds."""

from __future__ import annotations

import subprocess
import sys

import pytest

from composerl.memory import keep_freed_memory

# Minor page faults of freeing and asking for 4 MB, a hundred times.
COUNT = """
import resource, sys, torch
from composerl.memory import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
torch.ones(1_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    torch.ones(1_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not keep_freed_memory(), reason="not glibc")
def test_freed_memory_is_used_again():
    faults = {
        how: int(subprocess.check_output([sys.executable, "-c", COUNT, how], text=True))
        for how in ("keep", "return")
    }
    assert faults["keep"] < 0.1 * faults["return"]
