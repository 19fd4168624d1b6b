"""Seeds in parallel processes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from composerl.analysis.runs import read_run
from composerl.bookkeeping.owner import Owner
from composerl.catalog import find_recipe
from composerl.cli.recipes import split_flags

TOY = Path(__file__).with_name("toy.py")
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
    shutil.copy(TOY, tmp_path)
    first = cli("run", "toy.py", "--seeds", 0, 1, 2, "--jobs", 3, "--out", "out")
    assert first.code == 2
    assert "1 of 3 runs failed: seed 1" in first.err
    assert "seed 1: failed with exit code 2: error: seed 1 is unlucky" in first.err
    assert "seed 0" in first.out
    again = cli("run", "toy.py", "--seeds", 0, 2, "--out", "out", "--resume")
    assert again.code == 0, again.err


def test_a_seed_that_refuses_to_go_on_leaves_its_directory_as_it_was(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(TOY, tmp_path)
    words = ["run", "toy.py", "--seeds", 1, "--out", "out"]
    assert cli(*words, "--lr", 0.2).code == 0
    run = tmp_path / "out" / "seed1"
    owner = Owner(run)
    owner.take()
    owner.release()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert "seed 1 is unlucky" in cli(*words, "--lr", 0.1, "--resume").err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_packaged_recipes_can_be_found_by_their_clone_s_path():
    assert find_recipe("recipes/iql_pendulum.py").name == "iql_pendulum.py"
    assert json.dumps(str(find_recipe("iql_pendulum"))).endswith('iql_pendulum.py"')
