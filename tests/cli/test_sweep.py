"""Sweeps: values and ranges, samplers, pruners, several drivers, what comes out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ray_cluster import wait_for

from composerl.analysis.runs import read_run
from composerl.fleet import driver
from composerl.fleet.local import LocalWorkers

optuna = pytest.importorskip("optuna")

TOY = Path(__file__).with_name("toy.py")


@pytest.fixture
def sweep(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(TOY, tmp_path)

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
    whole, calls = LocalWorkers.start, []

    def dies(self, job, environ):
        calls.append(job)
        if len(calls) == 2:
            (job.directory / "config.yaml").write_text("env: Toy-v0\nseed: 0\n")
            raise KeyboardInterrupt
        return whole(self, job, environ)

    monkeypatch.setattr(LocalWorkers, "start", dies)
    assert sweep(*flags).code == 130
    monkeypatch.setattr(LocalWorkers, "start", whole)
    assert sweep(*flags).code == 0
    finals = [read_run(tmp_path / "out" / f"trial{n:03d}").final() for n in range(3)]
    assert [final["resumed"] for final in finals] == [False, True, False]


def test_failed_trials_do_not_stop_a_sweep(sweep):
    """lr 0.1 fails as soon as a combination comes again, with seed 1."""
    result = sweep("--lr", "0.1", "0.3", "--trials", 6, "--out", "out")
    assert result.code == 2
    assert "trials failed; see the .log files in out" in result.err
    assert "--lr 0.3" in result.out


def test_ranges_whole_broken_and_logarithmic(sweep, cli, tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_RUN_GROUP", raising=False)
    flags = ["--lr", "1e-4:1e-1:log", "--width", "4:6", "--tau", "0.1:0.2", "--trials", 5]
    result = sweep(*flags, "--out", "out", "--jobs", 2)
    assert result.code == 0, result.err
    runs = [read_run(path) for path in sorted((tmp_path / "out").glob("trial???"))]
    assert len({run.config["lr"] for run in runs}) == 5
    for run in runs:
        assert 1e-4 <= run.config["lr"] <= 1e-1
        assert run.config["width"] in (4, 5, 6)
        assert 0.1 <= run.config["tau"] <= 0.2
        assert run.final()["group"] == "out"
    best = max(runs, key=lambda run: run.final()["return"])
    assert "--config out/best.yaml" in result.out
    content = yaml.safe_load((tmp_path / "out" / "best.yaml").read_text())
    assert content == {key: best.config[key] for key in best.config if key != "seed"}
    assert cli("run", "toy.py", "--config", "out/best.yaml", "--out", "again").code == 0
    again = read_run(tmp_path / "again")
    assert again.config == best.config | {"seed": 0}


def test_a_grid_has_every_combination_once_and_then_again(sweep, tmp_path):
    flags = ["--lr", "0.2", "0.3", "--tau", "0", "1", "--sampler", "grid", "--out", "out"]
    assert sweep(*flags, "--trials", 5, "--jobs", 2).code == 0
    runs = [read_run(path) for path in sorted((tmp_path / "out").glob("trial???"))]
    chosen = [(run.config["lr"], run.config["tau"]) for run in runs]
    assert chosen == [(0.2, 0.0), (0.2, 1.0), (0.3, 0.0), (0.3, 1.0), (0.2, 0.0)]
    assert [run.seed for run in runs] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_a_hopeless_trial_is_stopped_on_its_way(pruner, sweep, tmp_path, monkeypatch):
    """Five good ones at a time, then a bad one that would take seconds."""
    monkeypatch.setattr(driver, "WATCH", 0.1)
    taus = ["0", "0.1", "0.2", "0.3", "0.4", "9"]
    flags = ["--tau", *taus, "--sampler", "grid", "--trials", 6, "--jobs", 5, "--pruner", pruner]
    flags += ["--steps", 9, "--eval-every", 1, "--pause", "0.4", "--out", "out"]
    result = sweep(*flags)
    assert result.code == 0, result.err
    study = optuna.load_study(
        study_name="toy",
        storage=optuna.storages.JournalStorage(
            optuna.storages.journal.JournalFileBackend(str(tmp_path / "out" / "journal.jsonl"))
        ),
    )
    states = [trial.state.name for trial in study.trials]
    assert states[-1] == "PRUNED", states
    assert f"({states.count('PRUNED')} trials pruned)" in result.out
    assert states[0] == "COMPLETE"
    bad = tmp_path / "out" / "trial005"
    assert not (bad / "summary.json").exists()
    assert "stopped at step" in (tmp_path / "out" / "trial005.log").read_text()
    assert yaml.safe_load((tmp_path / "out" / "best.yaml").read_text())["tau"] == 0.0


def test_several_drivers_share_a_search(tmp_path):
    """As many trials as asked for in all, none made twice; both end well."""
    shutil.copy(TOY, tmp_path)
    command = [sys.executable, "-m", "composerl", "sweep", "toy.py", "--lr", "0.2:0.4"]
    command += ["--trials", "6", "--pause", "0.5", "--out", "out"]
    drivers = [
        subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) for _ in "ab"
    ]
    said = [process.communicate(timeout=120)[1] for process in drivers]
    assert [process.returncode for process in drivers] == [0, 0], said
    runs = sorted((tmp_path / "out").glob("trial???"))
    assert len(runs) == 6
    for run in runs:
        assert (run / "attempts").read_text() == "new\n"
        assert sum(f"{run.name}: return" in text for text in said) == 1
    assert all(": return" in text for text in said)


def test_a_killed_driver_s_trials_are_gone_on_with_by_another(sweep, tmp_path):
    shutil.copy(TOY, tmp_path)
    command = [sys.executable, "-m", "composerl", "sweep", "toy.py", "--lr", "0.2:0.4"]
    command += ["--trials", "2", "--pause", "1", "--out", "out"]
    process = subprocess.Popen(command, cwd=tmp_path)
    first = tmp_path / "out" / "trial000" / "attempts"
    wait_for(first.exists)
    process.kill()
    process.wait()
    assert list((tmp_path / "out").glob(".driver-*"))
    result = sweep("--lr", "0.2:0.4", "--trials", 2, "--pause", "1", "--out", "out")
    assert result.code == 0, result.err
    assert first.read_text() == "new\nresumed\n"
    assert (tmp_path / "out" / "trial001" / "attempts").read_text() == "new\n"
    assert not list((tmp_path / "out").glob(".driver-*"))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--lr", "1:0"], "--lr 1:0 is no range"),
        (["--lrr", "0:1"], "unknown flag --lrr: did you mean --lr?"),
        (["--lr", "0:1:log"], "with a positive LOW"),
        (["--lr", "1:2:linear"], "--lr 1:2:linear is no range"),
        (["--lr", "a:b"], "--lr a:b is no range"),
        (["--width", "0.5:2"], "width"),
        (["--lr", "0.1:0.2", "--sampler", "grid"], "--lr is a range"),
        (["--env", "module:Id"], "a sweep needs a flag with several values or a range"),
        (["--lr", "0.1:0.2", "--seed", "3"], "--seed is the sweep's own business"),
        (["--lr", "0.1:0.2", "--trials", "0"], "--trials must be at least 1"),
        (["--lr", "0.1:0.2", "--jobs", "0"], "--jobs must be at least 1"),
    ],
)
def test_mistakes_are_told_before_anything_starts(flags, expected, sweep, tmp_path):
    result = sweep(*flags, "--out", "out")
    assert result.code == 2
    assert expected in result.err
    assert not list(tmp_path.glob("out/trial*"))


def test_help_explains_the_sweep_and_the_recipe_s_flags(sweep):
    result = sweep("--help")
    assert result.code == 0
    for words in ("LOW:HIGH:log", "best.yaml", "--deaths", "So many attempts end by SIGKILL"):
        assert words in result.out
    assert os.environ.get("WANDB_RUN_GROUP") is None
