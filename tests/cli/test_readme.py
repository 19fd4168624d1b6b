"""README, followed literally: every shell line and every Python block is executed.

Runs are made small by flags added at the end, and need no processes of their own here: that they
work in theirs is tested in test_groups.py. The two lines that set up a virtual environment are
what .ci/run does; they are compared with it.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from composerl.catalog import load_recipe
from composerl.cli import main
from composerl.fleet import Ended, driver, local

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
SMALL = [
    ("--steps", "20"), ("--dataset-size", "500"), ("--eval-episodes", "2"),
    ("--hidden", "16", "16"), ("--save-every", "10"),
]  # fmt: skip
SETUP = "python3 -m venv"
INSTALL = "pip install ."


def shell_lines():
    lines = [line for kind, text in BLOCKS if kind == "bash" for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def test_the_setup_lines_are_what_ci_does():
    """CI installs and tests in the same words, except that it has a place for its environment."""
    ci = (ROOT / ".ci" / "run").read_text().replace("--quiet ", "")
    setup = [line for line in shell_lines() if line.startswith(SETUP)]
    assert len(setup) == 2
    for step in setup[1].split(" && ")[2:]:
        assert step in ci, step
    assert setup[0].endswith("python recipes/cql_pendulum.py")


def test_the_first_line_installs_what_the_setup_lines_do():
    first, *_ = shell_lines()
    setup = next(line for line in shell_lines() if line.startswith(SETUP))
    assert first == INSTALL
    assert first.replace("install", "install -e") in setup.split(" && ")


def test_the_page_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


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
    if words[0] == "run":
        known = {field.name for field in fields(load_recipe(words[1]).Config)}
        flags = [flag for flag in SMALL if flag[0][2:].replace("-", "_") in known]
        return [*words, *itertools.chain.from_iterable(flags)]
    if words[0] == "sweep":
        return [*words, *itertools.chain.from_iterable(SMALL), "--trials", "2"]
    if words[:2] == ["data", "make"]:
        return [*words, "--size", "500"]
    if words[:2] == ["data", "collect"]:
        return [*words, "--episodes", "1"]
    if words[0] == "evaluate" and "--dataset" in words:
        return [*words, "--steps", "20"]
    return words


COMMANDS = [line for line in shell_lines() if not line.startswith((SETUP, INSTALL))]


@pytest.mark.parametrize("line", COMMANDS)
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
