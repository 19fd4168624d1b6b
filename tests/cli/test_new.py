"""``composerl new``: what it writes trains and passes as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import composerl


def test_what_is_written_passes_and_is_formatted(cli, tmp_path):
    made = cli("new", "my_algorithm", "--out", tmp_path)
    assert made.code == 0, made.err
    names = ["my_algorithm.py", "my_algorithm_loss.py", "test_my_algorithm.py"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    environ = os.environ | {"PYTHONPATH": str(Path(composerl.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_algorithm.py"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "3 passed" in done.stdout, done.stdout + done.stderr
    checks = [["check", "--select=E,F,I"], ["format", "--check"]]
    for words in checks:
        command = [sys.executable, "-m", "ruff", *words, "--isolated", "--line-length=100", *names]
        told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert told.returncode == 0, told.stdout


@pytest.mark.parametrize("name", ["My Algorithm", "../x", "1st"])
def test_names_that_are_none_are_refused(cli, tmp_path, name):
    result = cli("new", name, "--out", tmp_path)
    assert (result.code, "such as my_algorithm" in result.err) == (2, True)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(cli, tmp_path):
    (tmp_path / "mine_loss.py").touch()
    result = cli("new", "mine", "--out", tmp_path)
    assert (result.code, "mine_loss.py exists already" in result.err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine_loss.py"]
