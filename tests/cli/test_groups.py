"""Seeds in parallel processes, local sweeps."""

from __future__ import annotations

import json

import pytest

from composerl.analysis.runs import read_run
from composerl.catalog import find_recipe
from composerl.cli import group
from composerl.cli.recipes import split_flags

FLAGS = [
    "--steps", "20", "--hidden", "8", "--dataset-size", "500", "--eval-episodes", "2",
    "--wandb", "offline",
]  # fmt: skip


def test_own_words_are_told_from_the_recipe_s():
    line = "name --lr 1e-3 --seeds 0 1 2 --hidden 8 8 --jobs 2 --out x --seeds=4 --jobs=3"
    words = line.split()
    own, rest = split_flags(words, one=("--jobs",), many=("--seeds",))
    assert own == ["name", "--seeds", "0", "1", "2", "--jobs", "2", "--seeds=4", "--jobs=3"]
    assert rest == ["--lr", "1e-3", "--hidden", "8", "8", "--out", "x"]


def test_seeds_run_in_processes_of_their_own_as_one_group(cli, tmp_path, monkeypatch):
    from wandb_reader import read_wandb

    monkeypatch.chdir(tmp_path)
    result = cli("run", "iql_pendulum", "--seeds", 3, 4, "--jobs", 2, "--out", "out", *FLAGS)
    assert result.code == 0, result.err
    finals = {}
    for seed in (3, 4):
        record = read_run(tmp_path / "out" / f"seed{seed}")
        finals[seed] = record.final()["return"]
        assert record.seed == seed
        assert f"seed {seed}: return {finals[seed]:.1f}" in result.err
    assert f"{sum(finals.values()) / 2:.1f}" in result.out
    assert {run.group for run in read_wandb(tmp_path / "out")} == {"out"}


def test_a_seed_that_fails_is_told_and_the_others_go_on(cli, tmp_path, monkeypatch):
    """One recipe file that fails for seed 1; a second start resumes what there is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.py").write_text(TOY)
    first = cli("run", "toy.py", "--seeds", 0, 1, 2, "--jobs", 3, "--out", "out")
    assert first.code == 2
    assert "1 of 3 runs failed: seed 1" in first.err
    assert "seed 1: failed with exit code 2: error: seed 1 is unlucky" in first.err
    assert "seed 0" in first.out
    again = cli("run", "toy.py", "--seeds", 0, 2, "--out", "out", "--resume")
    assert again.code == 0, again.err


#: A recipe without torch: processes start in a moment.
TOY = '''
"""Toy."""
import json
from dataclasses import dataclass
from composerl.config import RunConfig, cli

@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    env: str = "Toy-v0"
    steps: int = 1
    lr: float = 0.1
    tau: float = 0.5
    hidden: tuple[int, ...] = (8, 8)

def main(cfg):
    if cfg.seed == 1 and cfg.lr == 0.1:
        raise OSError("seed 1 is unlucky")
    cfg.out.mkdir(parents=True, exist_ok=True)
    (cfg.out / "config.yaml").write_text(f"env: Toy-v0\\nseed: {cfg.seed}\\nlr: {cfg.lr}\\n")
    value = -abs(cfg.lr - 0.3) - cfg.tau + 0.001 * cfg.seed
    final = {"return": value, "hidden": cfg.hidden, "resumed": cfg.resume}
    (cfg.out / "summary.json").write_text(json.dumps({"final": final}))
'''


@pytest.fixture
def sweep(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.py").write_text(TOY)

    def call(*words):
        return cli("sweep", "toy.py", *words)

    return call


def test_a_sweep_finds_the_best_and_goes_on(sweep, tmp_path):
    flags = ["--lr", "0.2", "0.3", "--tau", "0", "1", "--hidden", "4", "4", "--out", "out"]
    first = sweep(*flags, "--trials", 4, "--jobs", 2)
    assert first.code == 0, first.err
    trials = sorted((tmp_path / "out").glob("trial???"))
    assert len(trials) == 4
    second = sweep(*flags, "--trials", 6)
    assert second.code == 0, second.err
    assert "going on with the sweep" in second.err
    trials = sorted((tmp_path / "out").glob("trial???"))
    assert len(trials) == 6
    # Six trials of at most four combinations: the later of equals had the next seed.
    seen = {}
    for trial in trials:
        record = read_run(trial)
        assert record.final()["hidden"] == [4, 4]
        key = (record.config["lr"], round(record.final()["return"] - 0.001 * record.seed, 6))
        seen.setdefault(key, []).append(record.seed)
    assert all(seeds == list(range(len(seeds))) for seeds in seen.values())
    rows = [line for line in second.out.splitlines() if "--lr" in line]
    means = [float(row.split("│")[3]) for row in rows]
    assert means == sorted(means, reverse=True)
    assert (tmp_path / "out" / "sweep.png").stat().st_size > 1000
    third = sweep("--lr", "0.2", "0.4", "--out", "out")
    assert (third.code, third.err.count("\n")) == (2, 1)
    assert "holds another sweep" in third.err


def test_a_trial_under_way_is_resumed(sweep, tmp_path, monkeypatch):
    """The sweep dies while its second trial runs, after that one's first checkpoint."""
    flags = ["--lr", "0.2", "0.3", "--out", "out", "--trials", 3]
    whole, calls = group.run_jobs, []

    def dies(recipe, todo, jobs, environ=None):
        calls.append(todo)
        if len(calls) == 2:
            todo[0].directory.mkdir()
            (todo[0].directory / "config.yaml").write_text("env: Toy-v0\nseed: 0\n")
            raise KeyboardInterrupt
        return whole(recipe, todo, jobs, environ)

    monkeypatch.setattr(group, "run_jobs", dies)
    assert sweep(*flags).code == 130
    monkeypatch.setattr(group, "run_jobs", whole)
    assert sweep(*flags).code == 0
    finals = [read_run(tmp_path / "out" / f"trial{n:03d}").final() for n in range(3)]
    assert [final["resumed"] for final in finals] == [False, True, False]


def test_failed_trials_do_not_stop_a_sweep(sweep):
    """lr 0.1 fails as soon as a combination comes again, with seed 1."""
    result = sweep("--lr", "0.1", "0.3", "--trials", 6, "--out", "out")
    assert result.code == 2
    assert "trials failed; see the .log files in out" in result.err
    assert "--lr 0.3" in result.out


def test_packaged_recipes_can_be_found_by_their_clone_s_path():
    assert find_recipe("recipes/iql_pendulum.py").name == "iql_pendulum.py"
    assert json.dumps(str(find_recipe("iql_pendulum"))).endswith('iql_pendulum.py"')
