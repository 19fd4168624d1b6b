"""What Windows lacks is missed by nobody: every module imports there, and a recipe trains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc to see files in use")
def test_everything_imports_and_a_recipe_trains_resumes_and_reports(tmp_path):
    script = Path(__file__).with_name("windows_like.py")
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "COMPOSERL_CACHE": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("trained\n")
    assert "resumed at step 10 of 20" in done.stderr
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"cache", "run", "data.npz", "policy.safetensors", "report.html"}
    assert not list(tmp_path.glob("**/.*.tmp"))
