"""Run: the directory, the loop, early stopping, interruption, tracking."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import torch
from recipes.harness import RECIPES
from tensordict import TensorDict
from torchrl.data import (
    LazyTensorStorage,
    RandomSampler,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from wandb_reader import read_wandb

import composerl
from composerl import Run, RunConfig
from composerl.bookkeeping.checkpoint import checkpoints
from composerl.bookkeeping.metrics import read_metrics
from composerl.bookkeeping.owner import Owner
from composerl.config import MAY_CHANGE
from composerl.envs.spaces import Spaces
from composerl.modules import gaussian_actor

RECIPE = next(path for path in RECIPES if path.stem == "iql_pendulum")


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    env: str = "Pendulum-v1"
    steps: int = 6
    log_every: int = 2
    eval_every: int = 3
    eval_episodes: int = 1
    save_every: int = 2
    wandb: str = "disabled"
    flavour: str = "plain"
    note: Annotated[str, MAY_CHANGE] = ""


class Counter:
    """Something with state, in place of an Update."""

    def __init__(self):
        self.value = 0.0

    def __call__(self):
        self.value += torch.rand(()).item()
        return {"loss_x": self.value, "custom/name": 1.0}

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def actor():
    return gaussian_actor(Spaces.of("Pendulum-v1"), (4,))


def train(cfg, hook=None, **config):
    run = Run(cfg, name="toy")
    counter, policy = Counter(), actor()
    run.track(counter=counter)
    for step in run.steps(cfg.steps):
        run.log(counter())
        run.evaluate(policy)
        if hook:
            hook(step, run)
    return run.finish(policy)


def test_the_loop(tmp_path, capsys):
    out = tmp_path / "run"
    seen = []
    policy = train(Config(out=out), hook=lambda step, run: seen.append(step))
    assert isinstance(policy, composerl.Policy)
    assert seen == [1, 2, 3, 4, 5, 6]
    rows = read_metrics(out / "metrics.jsonl")
    assert [row["step"] for row in rows] == [2, 3, 4, 6]
    assert "train/loss_x" in rows[0]
    assert rows[0]["custom/name"] == 1.0
    assert "train/loss_x" not in rows[1]
    assert {"eval/return", "eval/return_std", "eval/length"} <= set(rows[1])
    assert all(row["time/seconds"] >= 0 for row in rows)
    assert sorted(p.name for p in out.iterdir() if p.name[0] != ".") == [
        "checkpoints", "config.yaml", "manifest.json", "metadata.json", "metrics.jsonl",
        "policy.safetensors", "summary.json",
    ]  # fmt: skip
    names = sorted(p.name for p in (out / "checkpoints").iterdir())
    assert names == [
        "best.safetensors",
        "step-000000000004.safetensors",
        "step-000000000006.safetensors",
    ]
    text = capsys.readouterr().out
    assert "final return" in text
    assert str(out.name) in text


def test_nothing_is_written_before_the_loop(tmp_path):
    run = Run(Config(out=tmp_path / "run"), name="toy")
    assert not (tmp_path / "run").exists()
    with pytest.raises(RuntimeError, match="after the loop"):
        run.finish(actor())


def test_an_environment_that_cannot_be_opened_leaves_nothing_behind(tmp_path):
    for changes in ({"env": "Nowhere-v0"}, {"env_kwargs": {"wrong": 1}}):
        with pytest.raises((ValueError, TypeError), match=r"Nowhere|wrong"):
            train(Config(out=tmp_path / "run", **changes))
        assert not (tmp_path / "run").exists()


def test_what_belongs_into_the_loop_says_so(tmp_path):
    run = Run(Config(out=tmp_path / "run"), name="toy")
    with pytest.raises(RuntimeError, match=r"loop of run\.steps"):
        run.image("picture", lambda: np.zeros((2, 2, 3), np.uint8))
    assert not (tmp_path / "run").exists()


def test_env_kwargs_reach_evaluation_and_policy(tmp_path):
    """Without gravity a pendulum swings otherwise; the policy remembers where it was trained."""
    plain = train(Config(out=tmp_path / "a"))
    light = train(Config(out=tmp_path / "b", env_kwargs={"g": 0.0}))
    assert light.env_kwargs == {"g": 0.0}
    assert light.evaluate(1).mean != plain.evaluate(1).mean
    again = composerl.load(tmp_path / "b")
    assert again.evaluate(1).mean == light.evaluate(1).mean
    with pytest.raises(ValueError, match=r"--env-kwargs was {'g': 0.0} in .* and is {} now"):
        Run(Config(out=tmp_path / "b", resume=True), name="toy")


def test_spaces_are_those_of_the_environment(tmp_path):
    run = Run(Config(out=tmp_path / "run"), name="toy")
    torch.manual_seed(3)
    drawn = torch.rand(2)
    torch.manual_seed(3)
    assert run.spaces == Spaces.of("Pendulum-v1")
    assert torch.equal(torch.rand(2), drawn)


def test_a_recipe_marks_what_may_change(tmp_path):
    train(Config(out=tmp_path / "run", note="first"))
    train(Config(out=tmp_path / "run", note="second", steps=8, resume=True))
    assert "note: second" in (tmp_path / "run" / "config.yaml").read_text()


def test_epochs_of_an_offline_recipe(tmp_path):
    """1000 rows in batches of 96 are 11 steps a pass; resumed, a third pass goes on."""
    small = {"dataset_size": 1000, "batch_size": 96, "hidden": (8,), "eval_episodes": 1,
             "log_every": 1, "wandb": "disabled", "out": tmp_path / "run"}  # fmt: skip
    composerl.train("iql_pendulum", epochs=2, **small)
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(23))
    # The schedule spans the passes, not the recipe's 5000 steps: a cosine, after 11 of 22 halfway.
    assert rows[12]["train/lr_actor_network"] == pytest.approx(0.5e-3)
    composerl.train("iql_pendulum", epochs=3, resume=True, **small)
    assert read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]["step"] == 33


def test_default_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Run(Config(seed=5)).directory.match("runs/test_run/*-seed5")


def test_a_used_directory_is_refused(tmp_path):
    train(Config(out=tmp_path / "run"))
    with pytest.raises(ValueError, match="holds a run already: add --resume"):
        Run(Config(out=tmp_path / "run"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="is not empty"):
        Run(Config(out=tmp_path / "other"))
    with pytest.raises(ValueError, match="is a file"):
        Run(Config(out=tmp_path / "other" / "thesis.tex"))


def test_resume_refusals(tmp_path):
    out = tmp_path / "run"
    train(Config(out=out))
    with pytest.raises(ValueError, match=r"flavour was 'plain' in .* and is 'vanilla' now"):
        Run(Config(out=out, resume=True, flavour="vanilla"), name="toy")
    with pytest.raises(ValueError, match="seed was 0"):
        Run(Config(out=out, resume=True, seed=1), name="toy")
    with pytest.raises(ValueError, match="holds a run of toy, which test_run cannot go on with"):
        Run(Config(out=out, resume=True))
    with pytest.raises(ValueError, match="holds no run"):
        Run(Config(out=tmp_path / "nothing", resume=True))
    with pytest.raises(ValueError, match="--resume needs --out"):
        Run(Config(resume=True))


def test_resume_with_more_steps_goes_on(tmp_path):
    train(Config(out=tmp_path / "whole", steps=12))
    train(Config(out=tmp_path / "run"))
    train(Config(out=tmp_path / "run", resume=True, steps=12, log_every=2))

    def key(row):
        return {k: v for k, v in row.items() if not k.startswith("time/")}

    whole = [key(row) for row in read_metrics(tmp_path / "whole" / "metrics.jsonl")]
    assert [key(row) for row in read_metrics(tmp_path / "run" / "metrics.jsonl")] == whole


def test_as_many_checkpoints_stay_as_are_asked_for(tmp_path):
    """Two by default; those that stay load as policies; a resumed run may keep fewer."""
    cfg = {"out": tmp_path / "run", "steps": 6, "save_every": 1}
    train(Config(**cfg, keep_checkpoints=4))
    kept = checkpoints(tmp_path / "run")
    assert [int(path.stem.split("-")[1]) for path in kept] == [6, 5, 4, 3]
    assert composerl.load(kept[-1]).predict([1.0, 0.0, 0.0]).shape == (1,)
    train(Config(**cfg | {"steps": 7}, resume=True))
    assert len(checkpoints(tmp_path / "run")) == 2


@pytest.mark.parametrize("sampler", [RandomSampler, SamplerWithoutReplacement])
def test_a_stock_buffer_is_tracked_and_resumes(sampler, tmp_path):
    """TorchRL's own buffer, storage and sampler: stopped after 5 of 9 steps, it draws the same."""

    def fill(out, steps, resume=False):
        run = Run(Config(out=out, steps=steps, save_every=1, resume=resume), name="toy")
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(12), sampler=sampler(), batch_size=4
        )
        policy, drawn = actor(), []
        run.track(buffer=buffer)
        for step in run.steps(steps):
            number = torch.arange(2 * step, 2 * step + 2)
            nested = {"next": {"done": number.unsqueeze(1) % 5 == 0}, "x": torch.rand(2, 3)}
            buffer.extend(TensorDict({"number": number, **nested}, [2]))
            drawn.append(buffer.sample().to_dict())
            run.log({"loss_x": 0.0})
            run.evaluate(policy)
        run.finish(policy)
        return drawn

    whole = fill(tmp_path / "whole", 9)
    first = fill(tmp_path / "run", 5)
    rest = fill(tmp_path / "run", 9, resume=True)
    assert (len(first), len(rest)) == (5, 4)
    for got, expected in zip(first + rest, whole, strict=True):
        assert torch.equal(got["number"], expected["number"])
        assert torch.equal(got["x"], expected["x"])
        assert torch.equal(got["next"]["done"], expected["next"]["done"])


def test_early_stopping_by_target_and_patience(tmp_path):
    train(Config(out=tmp_path / "a", steps=30, stop_at=-1e9))
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["steps"] == 3
    assert "reached stop_at" in summary["stopped"]
    train(Config(out=tmp_path / "b", steps=60, patience=2))
    summary = json.loads((tmp_path / "b" / "summary.json").read_text())
    # the actor never changes: the first evaluation is the best, two more end it
    assert summary["steps"] == 9
    assert "patience" in summary["stopped"]
    # resuming does not train on, unless the goal is changed
    train(Config(out=tmp_path / "b", steps=60, patience=2, resume=True))
    assert json.loads((tmp_path / "b" / "summary.json").read_text())["steps"] == 9
    train(Config(out=tmp_path / "b", steps=60, patience=3, resume=True))
    assert json.loads((tmp_path / "b" / "summary.json").read_text())["steps"] == 12


def test_best_is_the_best_evaluated(tmp_path):
    cfg = Config(out=tmp_path / "run", steps=9)
    run = Run(cfg, name="toy")
    policies = [actor() for _ in range(3)]
    results = []
    for step in run.steps(cfg.steps):
        result = run.evaluate(policies[(step - 1) // 3])
        results += [result.mean] if result else []
    run.finish(policies[2])
    best = composerl.load(tmp_path / "run", which="best").evaluate(1, seed=0).mean
    assert best == max(results)
    assert len(set(results)) == 3


def test_diverged_training_stops_with_a_sentence(tmp_path):
    run = Run(Config(out=tmp_path / "run"), name="toy")
    steps = run.steps(6)
    for step in (1, 2):
        assert next(steps) == step
        if step == 1:
            run.log({"loss_x": float("nan")})  # not a step to log at: read at the next that is
    with pytest.raises(RuntimeError, match="train/loss_x is nan at step 1"):
        run.log({"loss_x": 1.0})
    steps.close()


def test_only_what_has_state_can_be_tracked(tmp_path):
    run = Run(Config(out=tmp_path / "run"), name="toy")
    with pytest.raises(TypeError, match=r"run\.track\(x=\.\.\.\) needs state_dict"):
        run.track(x=3)


def test_checkpoint_of_another_recipe_is_refused(tmp_path):
    train(Config(out=tmp_path / "run"))
    run = Run(Config(out=tmp_path / "run", resume=True, steps=12), name="toy")
    run.track(other=Counter())
    with pytest.raises(
        ValueError, match=r"holds \['counter'\], but this recipe tracks \['other'\]"
    ):
        next(run.steps(12))


def test_unusable_device_and_directory(tmp_path):
    with pytest.raises(ValueError, match="device 'warp' cannot be used"):
        Run(Config(out=tmp_path / "run", device="warp"))
    with pytest.raises(OSError, match="proc"):
        train(Config(out=Path("/proc/composerl-run")))


def test_a_failing_disk_keeps_the_last_checkpoint_whole(tmp_path):
    """The kernel refuses to let any file grow beyond 20 kB in the middle of the run."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def hook(step, run):
        if step == 3:
            run.track(big=Big())
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))

    class Big(Counter):
        def state_dict(self):
            return {"x": torch.zeros(10_000)}

    try:
        with pytest.raises(OSError, match=r"step-000000000004|too large"):
            train(Config(out=tmp_path / "run"), hook=hook)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    left = sorted(os.listdir(tmp_path / "run" / "checkpoints"))
    assert left == ["best.safetensors", "step-000000000002.safetensors"]
    train(Config(out=tmp_path / "run", resume=True))
    assert (tmp_path / "run" / "policy.safetensors").exists()


def test_works_outside_the_main_thread(tmp_path):
    thread = threading.Thread(target=train, args=(Config(out=tmp_path / "run"),))
    thread.start()
    thread.join()
    assert (tmp_path / "run" / "policy.safetensors").exists()


def test_interrupt_finishes_the_step_and_saves(tmp_path):
    def hook(step, run):
        if step == 5:
            os.kill(os.getpid(), signal.SIGINT)

    out = tmp_path / "run"
    before = signal.getsignal(signal.SIGINT)  # ignored, if the tests run in the background
    train(Config(out=tmp_path / "whole", steps=8))
    with pytest.raises(
        KeyboardInterrupt,
        match=rf"stopped at step 5; go on with: Config\(\.\.\., out='{out}', resume=True\)",
    ):
        train(Config(out=out, steps=8), hook=hook)
    assert (out / "checkpoints" / "step-000000000005.safetensors").exists()
    assert signal.getsignal(signal.SIGINT) is before
    train(Config(out=out, steps=8, resume=True))
    whole = (tmp_path / "whole" / "policy.safetensors").read_bytes()
    assert (out / "policy.safetensors").read_bytes() == whole


def test_tracking_to_wandb_and_tensorboard(tmp_path):
    """What W&B wrote offline is read back: config, history with its step axis, summary, id."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    train(Config(out=out, wandb="offline", tensorboard=True, wandb_artifacts=True, flavour="x"))
    (recorded,) = read_wandb(out)
    rows = read_metrics(out / "metrics.jsonl")
    assert recorded.config["flavour"] == "x"
    assert recorded.config["recipe"] == "toy"
    *history, table = recorded.history  # the episodes of all evaluations come after all rows
    assert table["eval/episodes._type"] == "table-file"
    assert [row["step"] for row in history] == [2, 3, 4, 6]
    for mine, theirs in zip(rows, history, strict=True):
        assert mine["time/seconds"] == pytest.approx(theirs["time/seconds"])
        assert {k: v for k, v in theirs.items() if not k.startswith("_")} == pytest.approx(mine)
    assert recorded.summary["final/return"] == pytest.approx(rows[-1]["eval/return"])
    assert recorded.summary["best/step"] in (3, 6)
    metadata = json.loads((out / "metadata.json").read_text())
    assert metadata["run_id"] == recorded.run_id
    assert {a["type"] for a in recorded.artifacts} == {"checkpoint", "policy", "run_table"}
    assert recorded.exit_code == 0
    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    assert [e.step for e in events.Scalars("eval/return")] == [3, 6]
    # a resumed run goes to the same id
    train(Config(out=out, wandb="offline", steps=8, resume=True, flavour="x"))
    both = read_wandb(out)
    assert [run.run_id for run in both] == [recorded.run_id] * 2
    assert [row["step"] for row in both[-1].history] == [8, 8]


def test_command_line_killed_at_any_moment_and_interrupted(tmp_path):
    """The real thing: a shell command, SIGKILL from outside, --resume, Ctrl-C, --resume."""
    small = ["--steps", "400", "--log-every", "10", "--eval-every", "200", "--save-every", "50",
             "--eval-episodes", "2", "--hidden", "16", "16", "--dataset-size", "1000",
             "--wandb", "disabled"]  # fmt: skip

    def start(out, *flags):
        command = [sys.executable, str(RECIPE), "--out", str(out), *flags]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait_for_rows(process, out, number):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            file = out / "metrics.jsonl"
            if file.exists() and file.read_bytes().count(b"\n") >= number:
                return
        pytest.fail(f"no {number} rows: {process.communicate()}")

    whole = start(tmp_path / "whole", *small)
    out = tmp_path / "run"
    process = start(out, *small)
    wait_for_rows(process, out, 9)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    process = start(out, "--resume")
    wait_for_rows(process, out, 15)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == 130, stderr
    assert f"go on with: python {RECIPE} --out {out} --resume" in stderr
    process = start(out, "--resume")
    _, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert whole.wait() == 0
    expected = (tmp_path / "whole" / "policy.safetensors").read_bytes()
    assert (out / "policy.safetensors").read_bytes() == expected
    steps = [row["step"] for row in read_metrics(out / "metrics.jsonl")]
    assert steps == list(range(0, 401, 10))


# ---- what a review found ------------------------------------------------------------------


def test_a_run_has_one_loop(tmp_path):
    run = Run(Config(out=tmp_path / "run"), name="toy")
    steps = run.steps(6)
    next(steps)
    with pytest.raises(RuntimeError, match="one loop"):
        next(run.steps(12))
    steps.close()


def test_break_is_an_end_too(tmp_path):
    cfg = Config(out=tmp_path / "run", steps=60)
    run, counter, policy = Run(cfg, name="toy"), Counter(), actor()
    run.track(counter=counter)
    for step in run.steps(cfg.steps):
        run.log(counter())
        run.evaluate(policy)
        if step == 5:
            break
    run.finish(policy)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["steps"], summary["stopped"]) == (5, "stopped by the recipe")
    assert read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]["step"] == 5
    assert (tmp_path / "run" / "checkpoints" / "step-000000000005.safetensors").exists()


def test_a_loop_that_never_evaluates_is_evaluated_at_its_end(tmp_path):
    run = Run(Config(out=tmp_path / "run", steps=4), name="toy")
    for _ in run.steps(4):
        run.log({"loss_x": 1.0})
    run.finish(actor())
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows if "eval/return" in row] == [4]


def test_evaluating_a_finished_run_again_does_not_count_for_patience(tmp_path):
    out = tmp_path / "run"
    train(Config(out=out, patience=2))
    before = json.loads((out / "summary.json").read_text())
    assert before["stopped"] == "all steps done"
    train(Config(out=out, patience=2, resume=True))
    after = json.loads((out / "summary.json").read_text())
    assert {k: v for k, v in after.items() if "time" not in k} == {
        k: v for k, v in before.items() if "time" not in k
    }


def test_environments_that_draw_random_numbers_do_not_change_the_training(tmp_path):
    """Making an environment may use the global generators; checkpoints must not show it."""
    import gymnasium as gym
    import numpy as np
    from gymnasium.envs.classic_control import PendulumEnv

    class Noisy(PendulumEnv):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            torch.rand(()), np.random.rand()

    gym.register("composerl-test/Noisy-v0", Noisy, max_episode_steps=10)
    env = "composerl-test/Noisy-v0"
    train(Config(out=tmp_path / "a", env=env, steps=8, save_every=1))
    train(Config(out=tmp_path / "b", env=env, steps=8, save_every=5, eval_every=8))
    train(Config(out=tmp_path / "c", env=env, steps=4))
    train(Config(out=tmp_path / "c", env=env, steps=8, resume=True))
    losses = [
        [row["train/loss_x"] for row in read_metrics(tmp_path / name / "metrics.jsonl")
         if "train/loss_x" in row]
        for name in "abc"
    ]  # fmt: skip
    assert losses[0] == losses[1] == losses[2]


def test_extended_and_interrupted_run_loads_its_newest_policy(tmp_path):
    out = tmp_path / "run"
    train(Config(out=out))

    def stop(step, run):
        if step == 9:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(Config(out=out, resume=True, steps=12), hook=stop)
    assert not (out / "policy.safetensors").exists()
    assert composerl.load(out).predict([0.0, 0.0, 0.0]).shape == (1,)


def test_two_processes_cannot_share_a_run(tmp_path):
    out = tmp_path / "run"
    run = Run(Config(out=out), name="toy")
    steps = run.steps(6)
    next(steps)
    with pytest.raises(ValueError, match=rf"in the loop of a run in {out} already"):
        train(Config(out=out, resume=True))
    steps.close()


@pytest.mark.parametrize("wandb", ["disabled", "offline"])
def test_a_run_that_failed_can_be_resumed_where_its_traceback_is_kept(tmp_path, wandb):
    """As in a notebook, where the last error stays: it holds the run, and the run the lock."""

    def fail(step, run):
        if step == 5:
            raise ZeroDivisionError

    out = tmp_path / "run"
    with pytest.raises(ZeroDivisionError) as kept:
        train(Config(out=out, wandb=wandb), hook=fail)
    assert any("run" in frame.frame.f_locals for frame in kept.traceback)
    train(Config(out=out, wandb=wandb, resume=True))
    train(Config(out=tmp_path / "whole"))
    whole = (tmp_path / "whole" / "policy.safetensors").read_bytes()
    assert (out / "policy.safetensors").read_bytes() == whole
    if wandb == "offline":
        assert [recorded.exit_code for recorded in read_wandb(out)] == [1, 0]


def test_a_kill_before_the_config_leaves_a_usable_directory(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / ".lock").touch()
    (out / ".abc12_yz.tmp").mkdir()
    (out / ".abc12_yz.tmp" / "config.yaml").write_text("half")
    train(Config(out=out))
    assert not list(out.glob(".*.tmp"))


@pytest.mark.parametrize("content", ["", "just text", "- a list", "\x80"])
def test_damaged_config_is_refused_and_damaged_metadata_is_not_missed(tmp_path, content):
    out = tmp_path / "run"
    train(Config(out=out))
    (out / "metadata.json").write_bytes(content.encode("latin1"))
    train(Config(out=out, resume=True, steps=8))
    assert json.loads((out / "metadata.json").read_text())["run_id"]
    (out / "config.yaml").write_bytes(content.encode("latin1"))
    with pytest.raises(ValueError, match=r"config\.yaml"):
        train(Config(out=out, resume=True, steps=10))


def test_the_checkpoint_knows_its_config_too(tmp_path):
    out = tmp_path / "run"
    train(Config(out=out))
    (out / "config.yaml").write_text("seed: 0\n")  # says nothing of the flavour
    with pytest.raises(ValueError, match=r"flavour was 'plain' in the checkpoint"):
        train(Config(out=out, resume=True, steps=8, flavour="vanilla"))


@pytest.mark.parametrize("reason", ["tracks", "shorter", "settings", "damage"])
def test_refused_resume_writes_nothing(tmp_path, reason):
    """Not even who owns the directory, nor does it clean up: who goes on will."""
    out, steps, tracked = tmp_path / "run", 99, {"counter": Counter()}
    train(Config(out=out))
    (out / ".lock").unlink()  # as after a download
    (out / ".abcdefgh.tmp").mkdir()
    (out / ".abcdefgh.tmp" / "half").write_text("of a file")
    if reason == "tracks":
        tracked = {"other": Counter()}
    elif reason == "shorter":
        steps = 3
    elif reason == "settings":
        (out / "config.yaml").write_text("seed: 0\nflavour: vanilla\n")
    else:
        for path in checkpoints(out):
            path.write_bytes(path.read_bytes()[:-1])

    def files():
        return {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    before = files()
    flavour = "vanilla" if reason == "settings" else "plain"
    run = Run(Config(out=out, resume=True, steps=steps, flavour=flavour), name="toy")
    run.track(**tracked)
    words = {"tracks": "this recipe tracks", "shorter": "has done 6 already"}
    words |= {"settings": "was 'plain' in the checkpoint", "damage": "no checkpoint of .* can be"}
    with pytest.raises(ValueError, match=words[reason]):
        next(run.steps(steps))
    assert files() == before


def test_a_checkpoint_written_while_another_was_read_is_gone_on_from(tmp_path, monkeypatch):
    """By the owner before, from a machine that our lock does not reach."""
    out, ahead = tmp_path / "run", tmp_path / "ahead"
    for place, steps in ((out, 4), (ahead, 6)):
        train(Config(out=place, steps=steps))
    take = Owner.take

    def publish_and_take(self):
        newest = checkpoints(ahead)[0]
        shutil.copy(newest, out / "checkpoints")
        shutil.copy(ahead / "metrics.jsonl", out)
        take(self)

    monkeypatch.setattr(Owner, "take", publish_and_take)
    seen = []
    train(Config(out=out, steps=8, resume=True), lambda step, run: seen.append(step))
    assert seen == [7, 8]


def test_a_run_cannot_be_made_shorter(tmp_path):
    """What it has done is done: nothing of it is rewritten."""
    out = tmp_path / "run"

    def loop(**cfg):
        run = Run(Config(out=out, **cfg), name="toy")
        for _ in run.steps(run.config.steps, by=2):
            pass
        return run.finish(actor())

    loop(steps=5)
    before = (out / "config.yaml").read_bytes(), (out / "metadata.json").read_bytes()
    loop(steps=5, resume=True)  # it ended at 6, as it had to
    with pytest.raises(ValueError, match=r"--steps 4: the run in .* has done 6 already"):
        loop(steps=4, resume=True)
    assert ((out / "config.yaml").read_bytes(), (out / "metadata.json").read_bytes()) == before


@pytest.fixture(params=[True, False], ids=["collected", "kept"])
def garbage(request):
    """With and without the garbage collector: nothing may hang on when it comes."""
    if not request.param:
        gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("garbage")
def test_best_file_agrees_with_the_checkpoint_after_a_crash(tmp_path):
    """Killed after a better evaluation, before the next checkpoint; resumed with other evals."""
    out = tmp_path / "run"
    policies = [actor() for _ in range(4)]
    returns = [composerl.Policy(p, "Pendulum-v1").evaluate(1, 0).mean for p in policies]
    worse, better = sorted(range(4), key=returns.__getitem__)[::3]

    def loop(cfg, die_at=None):
        run = Run(cfg, name="toy")
        for step in run.steps(cfg.steps):
            run.evaluate(policies[better if step == 3 else worse])
            if step == die_at:
                raise ZeroDivisionError
        return run.finish(policies[worse])

    cfg = {"out": out, "steps": 5, "save_every": 2}
    with pytest.raises(ZeroDivisionError):
        loop(Config(**cfg, eval_every=1), die_at=3)
    loop(Config(**cfg, eval_every=5, resume=True))
    summary = json.loads((out / "summary.json").read_text())
    best = composerl.load(out, which="best").evaluate(1, seed=0).mean
    assert best == summary["best"]["return"] == returns[worse]


def test_divergence_is_noticed_before_it_is_saved(tmp_path):
    run = Run(Config(out=tmp_path / "run", log_every=100, save_every=2), name="toy")
    steps = run.steps(6)
    next(steps), next(steps)
    with pytest.raises(RuntimeError, match="diverged"):
        run.log({"loss_x": float("nan")})
    steps.close()


def test_the_returned_policy_is_in_evaluation_mode(tmp_path):
    run = Run(Config(out=tmp_path / "run", steps=1), name="toy")
    policy = actor().train()
    for _ in run.steps(1):
        run.evaluate(policy)
        assert policy.training
    assert not run.finish(policy).actor.training


def test_names_are_slugs(tmp_path):
    with pytest.raises(ValueError, match="name of a run"):
        Run(Config(), name="../../evil")


def test_turns_of_several_steps_do_what_is_due_when_they_reach_it(tmp_path):
    """Turns of 4 up to 22: 4 8 12 16 20 24. Due every 10: in the turns that reach 10 and 20."""
    cfg = Config(out=tmp_path / "run", steps=22, log_every=4, eval_every=10, save_every=10)
    run = Run(cfg, name="toy")
    counter, policy = Counter(), actor()
    run.track(counter=counter)
    turns = []
    for step in run.steps(cfg.steps, by=4):
        turns.append(step)
        run.log(counter())
        run.evaluate(policy)
    run.finish(policy)
    assert turns == [4, 8, 12, 16, 20, 24]
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == turns
    assert [row["step"] for row in rows if "eval/return" in row] == [12, 20, 24]
    saved = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert [int(name[5:17]) for name in saved] == [20, 24]
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        next(Run(Config(out=tmp_path / "other"), name="toy").steps(5, by=0))
