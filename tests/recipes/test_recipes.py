"""Every recipe: runs, can be imported, repeats and resumes to the bit."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import yaml
from recipes.harness import (
    RECIPES,
    load_recipe,
    metrics,
    run_in_process,
    small_config,
    summary,
    weights,
)

import composerl
from composerl.analysis.verification import verify_run
from composerl.config import config_from_yaml

NEEDS = {"dreamer_breakout": "ale_py", "dreamer_crafter": "crafter"}


def _param(path):
    package = NEEDS.get(path.stem, "torch")
    absent = pytest.mark.skipif(find_spec(package) is None, reason=f"needs {package}")
    return pytest.param(path, marks=absent, id=path.stem)


every_recipe = pytest.mark.parametrize("path", [_param(path) for path in RECIPES])

#: Made of blocks that a sibling is killed with at all points: at one of them suffices.
SIBLINGS = {
    "bc_pendulum", "cql_cartpole", "dreamer_breakout", "dreamer_crafter", "dreamer_pendulum",
    "ppo_cartpole", "sac_pendulum", "td3bc_pendulum",
}  # fmt: skip
KILLS = ("checkpoint:2", "update:5", "update:33", "rename:1", "row:5")
every_kill = pytest.mark.parametrize(
    ("path", "kill_at"),
    [
        pytest.param(path, kill, marks=_param(path).marks, id=f"{kill}-{path.stem}")
        for path in RECIPES
        for kill in KILLS[: 1 if path.stem in SIBLINGS else None]
    ],
)
not_siblings = pytest.mark.parametrize(
    "path", [_param(path) for path in RECIPES if path.stem not in SIBLINGS]
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Uninterrupted small runs, one per recipe, made on first use."""
    runs = {}

    def run(path):
        if path not in runs:
            runs[path] = tmp_path_factory.mktemp(path.stem) / "run"
            assert run_in_process(path, runs[path]) == 0
        return runs[path]

    return run


def test_there_are_recipes():
    assert RECIPES


@every_recipe
def test_run_directory_is_complete(path, finished):
    run = finished(path)
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["seed"] == 0
    # the written file is a valid --config
    assert config_from_yaml(load_recipe(path).Config, run / "config.yaml").steps == 60
    versions = json.loads((run / "metadata.json").read_text())["versions"]
    assert versions["torch"]
    rows = metrics(run)
    assert [row["step"] for row in rows] == [0, 10, 20, 30, 40, 50, 60]
    assert all(any(key.startswith("train/loss_") for key in row) for row in rows[1:])
    assert all({"train/grad_norm", "train/lr"} <= set(row) for row in rows[1:])
    assert [row["step"] for row in rows if "eval/return" in row] == [0, 30, 60]
    assert summary(run)["final"]["return"] == rows[-1]["eval/return"]
    assert len(list((run / "checkpoints").glob("step-*"))) == 2


@every_recipe
def test_policy_from_the_run_directory_alone(path, finished):
    run = finished(path)
    policy = composerl.load(run)
    result = policy.evaluate(episodes=2, seed=0)
    assert result.mean == summary(run)["final"]["return"]
    rng, shape = np.random.default_rng(0), (5, *policy.spaces.obs_shape)
    pixels = policy.spaces.obs_dtype == "uint8"
    obs = rng.integers(0, 256, shape, np.uint8) if pixels else rng.normal(size=shape)
    obs = obs.astype(policy.spaces.obs_dtype)
    batch = policy.predict(obs)
    policy.reset()  # one with memory holds that of five episodes
    np.testing.assert_allclose(policy.predict(obs[0]), batch[0], rtol=1e-5, atol=1e-6)
    from_checkpoint = composerl.load(sorted((run / "checkpoints").glob("step-*"))[-1])
    np.testing.assert_array_equal(from_checkpoint.predict(obs), batch)
    best = composerl.load(run, which="best").evaluate(episodes=2, seed=0)
    assert best.mean == summary(run)["best"]["return"]


@every_recipe
def test_verifies_wherever_it_is_copied_to(path, finished, tmp_path):
    copy = shutil.copytree(finished(path), tmp_path / "copy")
    claims = list(verify_run(copy, composerl.load))
    assert [claim.verdict for claim in claims] == ["verified"] * 3, claims


@every_recipe
def test_main_returns_the_policy(path, finished, tmp_path):
    recipe = load_recipe(path)
    policy = recipe.main(small_config(recipe, tmp_path / "run"))
    assert isinstance(policy, composerl.Policy)
    # the same seed in this process and in another: the same bytes
    assert weights(tmp_path / "run") == weights(finished(path))
    assert metrics(tmp_path / "run") == metrics(finished(path))


@every_recipe
def test_another_seed_is_another_run(path, finished, tmp_path):
    assert run_in_process(path, tmp_path / "run", seed=1) == 0
    assert metrics(tmp_path / "run") != metrics(finished(path))


@every_kill
def test_kill_and_resume_equals_run(path, kill_at, finished, tmp_path):
    run = tmp_path / "run"
    assert run_in_process(path, run, kill_at=kill_at) == -9
    assert not (run / "policy.safetensors").exists()
    assert run_in_process(path, run, resume=True) == 0
    assert metrics(run) == metrics(finished(path))
    assert weights(run) == weights(finished(path))
    assert summary(run) == summary(finished(path))
    assert not list(run.glob("**/.*.tmp"))


@not_siblings
def test_killed_twice_and_resumed_twice(path, finished, tmp_path):
    run = tmp_path / "run"
    assert run_in_process(path, run, kill_at="update:25") == -9
    assert run_in_process(path, run, kill_at="checkpoint:1", resume=True) == -9
    assert run_in_process(path, run, resume=True) == 0
    assert metrics(run) == metrics(finished(path))
    assert weights(run) == weights(finished(path))


@not_siblings
def test_resuming_a_finished_run_only_evaluates(path, finished, tmp_path):
    run = tmp_path / "run"
    assert run_in_process(path, run) == 0
    before = metrics(run), weights(run), summary(run)
    assert run_in_process(path, run, resume=True) == 0
    assert (metrics(run), weights(run), summary(run)) == before


@not_siblings
def test_damaged_checkpoint_falls_back_to_the_one_before(path, finished, tmp_path):
    run = tmp_path / "run"
    assert run_in_process(path, run, kill_at="checkpoint:3") == -9
    newest = max((run / "checkpoints").glob("step-*"))
    newest.write_bytes(newest.read_bytes()[:-100])
    assert run_in_process(path, run, resume=True) == 0
    assert metrics(run) == metrics(finished(path))
    assert weights(run) == weights(finished(path))


def online(path):
    return "online_steps" in load_recipe(path).Config.__dataclass_fields__


@not_siblings
def test_online_phase_resumes_exactly(path, tmp_path):
    """Also from the middle of an episode, with those before it in the batches (an episode of
    Pendulum has 200 steps); and a finished offline run goes on as if it had never stopped."""
    if not online(path):
        pytest.skip("no online phase")
    options = {"steps": 30, "online_steps": 230}
    assert run_in_process(path, tmp_path / "whole", **options) == 0
    assert run_in_process(path, tmp_path / "run", kill_at="update:245", **options) == -9
    assert run_in_process(path, tmp_path / "run", resume=True, **options) == 0
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert metrics(tmp_path / "run")[-1]["collect/steps"] == 230
    assert metrics(tmp_path / "run")[-1]["collect/episodes"] == 1
    # a finished offline run goes online in the same directory
    assert run_in_process(path, tmp_path / "later", steps=30) == 0
    assert run_in_process(path, tmp_path / "later", resume=True, **options) == 0
    assert metrics(tmp_path / "later")[-1]["step"] == 260
    assert weights(tmp_path / "later") == weights(tmp_path / "whole")


@not_siblings
def test_uniform_replay_resumes_exactly_and_prioritized_makes_a_difference(path, tmp_path):
    """Priorities are on by default, so the shared tests have them in their checkpoints."""
    fields = load_recipe(path).Config.__dataclass_fields__
    if "prioritized" not in fields:
        pytest.skip("no prioritized replay")
    assert fields["prioritized"].default is True
    options = {"prioritized": False, "double": True}
    assert run_in_process(path, tmp_path / "whole", **options) == 0
    assert run_in_process(path, tmp_path / "run", kill_at="update:33", **options) == -9
    assert run_in_process(path, tmp_path / "run", resume=True, **options) == 0
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert run_in_process(path, tmp_path / "prioritized", double=True) == 0
    assert weights(tmp_path / "run") != weights(tmp_path / "prioritized")


@every_recipe
def test_help_and_wrong_flags_answer_without_torch_wandb_or_files(path, tmp_path):
    flags = [["--help"], ["--lerning-rate", "3"], ["--steps", "0"]]
    code = (
        "import sys, runpy\n"
        f"for flags in {flags!r}:\n"
        f"    sys.argv = [{str(path)!r}, *flags]\n"
        "    try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "    except SystemExit as end: print('EXIT', end.code or 0)\n"
        "print('IMPORTED', sorted({'torch', 'wandb', 'torchrl'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert re.findall(r"EXIT (\d)", done.stdout) == ["0", "2", "2"], done.stderr
    assert "IMPORTED []" in done.stdout
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
    assert len(path.read_text().splitlines()) <= 120, "a recipe fits on a screen or two"
