"""What Weights & Biases gets of a run, read back from its offline file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from wandb_reader import read_wandb

import composerl

FLAGS = {
    "steps": 40, "eval_every": 20, "eval_episodes": 2, "save_every": 20, "log_every": 20,
    "hidden": (8,), "dataset_size": 500, "wandb": "offline", "seed": 5,
}  # fmt: skip


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """A run that is stopped half way and resumed, with everything switched on."""
    out = tmp_path_factory.mktemp("wandb") / "run"
    kept = dict(os.environ)
    os.environ.update(WANDB_TAGS="mine,yours", WANDB_RUN_GROUP="a-group")
    try:
        flags = FLAGS | {"wandb_artifacts": True, "video": True, "out": out}
        composerl.train("iql_pendulum", **(flags | {"steps": 20}))
        composerl.train("iql_pendulum", **flags, resume=True)
    finally:
        os.environ.clear()
        os.environ.update(kept)
    return out, read_wandb(out)


def test_group_job_type_tags_and_one_id(tracked):
    _, runs = tracked
    assert len(runs) == 2
    assert {run.run_id for run in runs} == {runs[0].run_id}
    for run in runs:
        assert (run.group, run.job_type) == ("a-group", "train")
        assert run.tags == ["iql_pendulum", "Pendulum-v1", "mine", "yours"]
        assert run.config["seed"] == 5
        assert run.exit_code == 0


def test_summary_has_best_and_final(tracked):
    out, runs = tracked
    summary = json.loads((out / "summary.json").read_text())
    told = runs[-1].summary
    assert told["final/return"] == summary["final"]["return"]
    assert told["final/std"] == summary["final"]["std"]
    assert told["final/step"] == 40
    assert told["best/return"] == summary["best"]["return"]
    assert told["best/step"] == summary["best"]["step"]


def test_evaluations_are_a_table_of_episodes(tracked):
    out, runs = tracked
    (row,) = [row for row in runs[-1].history if "eval/episodes.path" in row]
    file = runs[-1].path.parent / "files" / row["eval/episodes.path"]
    table = json.loads(file.read_text())
    assert table["columns"] == ["step", "episode", "return", "length"]
    rows = table["data"]
    # those from before the resume too
    assert [row[:2] for row in rows] == [[step, i] for step in (0, 20, 40) for i in range(2)]
    returns = json.loads((out / "summary.json").read_text())["final"]["returns"]
    assert rows[4:] == [[40, i, value, 200] for i, value in enumerate(returns)]


def test_an_episode_is_a_video(tracked):
    out, runs = tracked
    (row,) = [row for row in runs[-1].history if "videos/episode.path" in row]
    assert row["step"] == 40
    video = runs[-1].path.parent / "files" / row["videos/episode.path"]
    assert video.read_bytes() == (out / "images" / "episode-00000040.gif").read_bytes()
    assert video.read_bytes().startswith(b"GIF89a")


def test_policies_and_checkpoints_are_versions_of_artifacts(tracked):
    _, runs = tracked
    found = [(a["name"].partition("-")[2], set(a["aliases"])) for a in runs[-1].artifacts]
    assert ("policy", {"latest", "best"}) in found
    assert ("policy", {"latest", "final"}) in found
    assert ("checkpoint", {"latest", "last"}) in found
    for artifact in runs[-1].artifacts:
        for path in artifact["files"].values():
            assert os.path.getsize(path) > 0


def uploaded(shown):
    """The pieces that the command at the end of a run would send, as a shell names them."""
    command = next(line for line in shown.splitlines() if line.startswith("upload it: wandb sync"))
    words = command.removeprefix("upload it: ").replace("wandb sync", "printf '%s\\n'")
    places = subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=True)
    assert all(list(Path(place).glob("*.wandb")) for place in places.stdout.splitlines())
    return places.stdout.splitlines()


def test_flags_say_where_it_belongs_and_the_end_how_to_upload_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_RUN_GROUP", "of-the-fleet")
    chosen = {"wandb_group": "mine", "wandb_name": "best", "wandb_tags": ("a", "b")}
    out = tmp_path / "a rather long name of a run's directory" / "seed5"
    composerl.train("iql_pendulum", **FLAGS | chosen | {"steps": 20, "out": out})
    shown = capsys.readouterr().out
    (run,) = read_wandb(out)
    assert (run.group, run.name) == ("mine", "best")
    assert run.tags == ["iql_pendulum", "Pendulum-v1", "a", "b"]
    assert run.config["versions"]["torch"]
    assert "command" not in run.config  # a secret may be in it
    assert len(uploaded(shown)) == 1
    composerl.train("iql_pendulum", steps=30, out=out, resume=True)
    assert len(uploaded(capsys.readouterr().out)) == 2  # each start left its own piece
    assert f'use it:    composerl.load("{out}").predict(observation)' in shown.splitlines()


def test_the_system_stays_out_on_request(tmp_path):
    for system in (True, False):
        out = tmp_path / str(system)
        flags = FLAGS | {"steps": 20, "out": out, "wandb_system": system}
        composerl.train("iql_pendulum", **flags)
        (run,) = read_wandb(out)
        assert ("versions" in run.config) is system


@pytest.mark.parametrize(
    ("change", "code", "told"),
    [
        ("x = float('nan')", 2, "error: train/loss is nan at step 1: the training diverged"),
        ("x = 1 / 0", 1, "ZeroDivisionError: division by zero"),
    ],
)
def test_a_run_that_fails_says_so_once_and_is_closed(tmp_path, change, code, told):
    """W&B leaves before Python's finalizers do, and has its own way to show a traceback."""
    (tmp_path / "mine.py").write_text(
        textwrap.dedent(
            f"""\
            from dataclasses import dataclass
            from composerl import Run, RunConfig

            @dataclass(frozen=True, kw_only=True)
            class Config(RunConfig):
                env: str = "CartPole-v1"
                steps: int = 1

            def main(cfg):
                run = Run(cfg)
                run.itself = run  # as what a recipe makes may hold it: it is not freed at once
                for step in run.steps(cfg.steps):
                    {change}
                    run.log({{"loss": x}})
            """
        )
    )
    words = ["run", "mine.py", "--wandb", "offline", "--no-wandb-system", "--out", "run"]
    done = subprocess.run(
        [sys.executable, "-m", "composerl", *words],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code
    assert done.stderr.splitlines()[-1].startswith(told)
    assert done.stderr.count("Traceback") == (code == 1)
    (run,) = read_wandb(tmp_path / "run")
    assert run.exit_code == 1
