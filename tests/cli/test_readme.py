"""README, followed literally: every shell line and every Python block is executed.

Runs are made small by flags added at the end, and need no processes of their own here: that they
work in theirs is tested in test_groups.py. The two lines that set up a virtual environment are
what .ci/run does; they are compared with it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from composerl.cli import main
from composerl.fleet import Ended, driver, local

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
SMALL = [
    "--steps", "20", "--dataset-size", "500", "--eval-episodes", "2", "--hidden", "16", "16",
    "--save-every", "10",
]  # fmt: skip
SETUP = "python3 -m venv"


def shell_lines():
    return [line for kind, text in BLOCKS if kind == "bash" for line in text.splitlines() if line]


def test_the_setup_lines_are_what_ci_does():
    """CI installs and tests in the same words, except that it has a place for its environment."""
    ci = (ROOT / ".ci" / "run").read_text().replace("--quiet ", "")
    setup = [line for line in shell_lines() if line.startswith(SETUP)]
    assert len(setup) == 2
    for step in setup[1].split(" && ")[2:]:
        assert step in ci, step
    assert setup[0].endswith("python recipes/cql_pendulum.py")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("readme")


@pytest.fixture(autouse=True)
def _small(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setenv("WANDB_MODE", "disabled")

    class InThisProcess(local.LocalWorkers):
        def start(self, job, environ):
            main(["run", job.recipe, *job.command()])

        def ended(self, handle):
            return Ended("done")

    monkeypatch.setattr(driver, "LocalWorkers", InThisProcess)


def small(words):
    """A command line with flags that make its run a matter of a second."""
    if words[0] == "run" and "--help" not in words:
        return [*words, *SMALL]
    if words[0] == "sweep":
        return [*words, *SMALL, "--trials", "2"]
    if words[:2] == ["data", "make"]:
        return [*words, "--size", "500"]
    if words[:2] == ["data", "collect"]:
        return [*words, "--episodes", "1"]
    if words[0] == "evaluate" and "--dataset" in words:
        return [*words, "--steps", "20"]
    return words


@pytest.mark.parametrize("line", [line for line in shell_lines() if not line.startswith(SETUP)])
def test_shell_lines(line, capsys):
    words = shlex.split(line, comments=True)
    if "|" in words:
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        code = line.replace("composerl ", f"{sys.executable} -m composerl ")
        done = subprocess.run(
            ["bash", "-c", code], env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith('{"action": ')
        return
    assert words[0] == "composerl"
    code = 0
    try:
        main(small(words[1:]))
    except SystemExit as stop:
        code = stop.code
    assert not code, capsys.readouterr().err
    for flag in ("-o", "--out", "--video"):
        if flag in words and words[1] != "recipes":
            assert Path(words[words.index(flag) + 1]).exists()


@pytest.mark.parametrize(
    "block", [text for kind, text in BLOCKS if kind == "python"], ids=lambda text: text[:20]
)
def test_python_blocks(block, place):
    """In the order of the page, after the shell lines: what these left is used here."""
    named = re.match(r"# (\w+\.py)\n", block)
    if named:
        (place / named[1]).write_text(block)
        main(["run", named[1], "--steps", "20", "--eval-episodes", "2", "--out", "runs/own"])
        assert (place / "runs" / "own" / "policy.safetensors").is_file()
        return
    flags = 'steps=20, hidden=(16, 16), dataset_size=500, eval_episodes=2, out="runs/python"'
    code = block.replace("steps=1000", flags)
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


def test_files_that_readme_names_exist():
    text = (ROOT / "README.md").read_text()
    for path in re.findall(r"\]\(([^)h][^)]*)\)", text):
        assert (ROOT / path.partition("#")[0]).is_file(), path
    for name in set(re.findall(r"`((?:recipes|tests|composerl)/[\w/.]+\.\w+)`", text)):
        assert (ROOT / name).is_file(), name
