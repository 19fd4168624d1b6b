"""Small runs to use commands on, and commands called in this process: torch takes seconds."""

from __future__ import annotations

import io
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import composerl
from composerl.cli import main

SMALL = {
    "steps": 60, "log_every": 10, "eval_every": 20, "eval_episodes": 3, "save_every": 20,
    "hidden": (16, 16), "batch_size": 32, "wandb": "disabled",
}  # fmt: skip


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def own_path(monkeypatch):
    """Directories of recipes come into sys.path, and would stay for the tests that follow."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def cli(capsys, monkeypatch):
    """Runs a command line; returns its exit code and what it printed."""

    def call(*words, stdin: str = "") -> Result:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        capsys.readouterr()
        code = 0
        try:
            main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> Path:
    """Two seeds of IQL, in runs/iql_pendulum."""
    root = tmp_path_factory.mktemp("cli") / "runs"
    for seed in (0, 1):
        out = root / "iql_pendulum" / f"seed{seed}"
        composerl.train(
            "iql_pendulum", out=out, seed=seed, dataset_size=1000, normalize=True, **SMALL
        )
    return root


@pytest.fixture(scope="session")
def run(runs) -> Path:
    return runs / "iql_pendulum" / "seed0"


@pytest.fixture(scope="session")
def cartpole(tmp_path_factory) -> Path:
    """IQN on CartPole."""
    out = tmp_path_factory.mktemp("cli") / "iqn"
    composerl.train("iqn_cartpole", out=out, warmup=4, num_envs=2, **SMALL)
    return out


@pytest.fixture
def half(run, tmp_path) -> Path:
    """A run that was killed between its last checkpoint and its end."""
    out = tmp_path / "half"
    shutil.copytree(run, out)
    for name in ("summary.json", "policy.safetensors", "manifest.json"):
        (out / name).unlink()
    metrics = out / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-20])
    return out
