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


@pytest.mark.parametrize("name", ["My Algorithm", "../x", "1st", "class"])
def test_names_that_are_none_are_refused(cli, tmp_path, name):
    result = cli("new", name, "--out", tmp_path)
    assert (result.code, "such as my_algorithm" in result.err) == (2, True)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(cli, tmp_path):
    (tmp_path / "mine_loss.py").touch()
    result = cli("new", "mine", "--out", tmp_path)
    assert (result.code, "mine_loss.py exists already" in result.err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine_loss.py"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("torch", "torch.py would hide the module torch ("),
        ("json", "json.py would hide the module json ("),
        ("sys", "sys.py would hide the module sys (built-in): choose another name"),
        ("iql_pendulum", "iql_pendulum is a packaged recipe: choose another name, or copy it"),
    ],
)
def test_names_that_are_taken_are_refused(cli, tmp_path, name, told):
    """A torch.py beside a recipe is what `import torch` finds."""
    result = cli("new", name, "--out", tmp_path)
    assert (result.code, result.err.startswith(f"error: {told}")) == (2, True), result.err
    assert not list(tmp_path.iterdir())


def test_a_directory_may_have_the_name_of_what_is_in_it(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert cli("new", "mine", "--out", "mine").code == 0
