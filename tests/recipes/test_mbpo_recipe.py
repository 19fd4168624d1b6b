"""What only MBPO's recipe has: known terminations, a learned one, and SAC without a model."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from recipes.harness import RECIPES, load_recipe, metrics, run_in_process, weights

PATH = next(path for path in RECIPES if path.stem == "mbpo_pendulum")
ENVS = {
    "inverted_pendulum": "InvertedPendulum-v5",
    "hopper": "Hopper-v5",
    "walker": "Walker2d-v5",
    "ant": "Ant-v5",
}


@pytest.mark.parametrize("name", ENVS)
def test_known_terminations_are_the_environments_own(name):
    pytest.importorskip("mujoco")
    env = gym.make(ENVS[name])
    env.action_space.seed(0)
    seen, ended = [], []
    for seed in range(8):
        env.reset(seed=seed)
        for _ in range(150):
            obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
            seen.append(obs)
            ended.append(terminated)
            if terminated or truncated:
                break
    healthy = load_recipe(PATH).HEALTHY[name](torch.tensor(np.array(seen)))
    assert torch.equal(~healthy, torch.tensor(ended))
    if name != "ant":  # which takes a while to fall
        assert any(ended)
    assert not all(ended)
    broken = torch.full((1, len(obs)), float("nan"))
    assert not load_recipe(PATH).HEALTHY[name](broken).any()


def test_every_termination_has_a_flag():
    recipe = load_recipe(PATH)
    for name in ("none", "learned", *recipe.HEALTHY):
        assert recipe.Config(termination=name).termination == name
    with pytest.raises(ValueError, match="termination must be one of"):
        recipe.Config(termination="hoper")


def test_a_learned_termination_resumes_exactly(tmp_path):
    pytest.importorskip("mujoco")
    options = {"env": "InvertedPendulum-v5", "termination": "learned", "steps": 50}
    options |= {"rollout_length": (1, 3, 20, 40)}
    assert run_in_process(PATH, tmp_path / "whole", **options) == 0
    rows = metrics(tmp_path / "whole")
    assert rows[-1]["model/loss_terminated"] > 0
    # two rounds of 50 branches, of one step and of up to three
    assert 100 < rows[-1]["train/imagined"] <= 200
    assert run_in_process(PATH, tmp_path / "run", kill_at="checkpoint:2", **options) == -9
    assert run_in_process(PATH, tmp_path / "run", resume=True, **options) == 0
    assert metrics(tmp_path / "run") == rows
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


def test_without_a_model_it_is_sac(tmp_path):
    assert run_in_process(PATH, tmp_path / "run", model="off", steps=30) == 0
    row = metrics(tmp_path / "run")[-1]
    assert row["train/imagined"] == 0
    assert row["train/real"] == 30
    assert not any(key.startswith("model/") for key in row)


def test_both_updates_report_their_metrics(tmp_path):
    assert run_in_process(PATH, tmp_path / "run", steps=30) == 0
    before, fitted = metrics(tmp_path / "run")[0], metrics(tmp_path / "run")[-1]
    assert not any(key.startswith("model/") for key in before)
    assert {"model/loss_dynamics", "model/loss_bounds", "model/holdout_mse", "model/epochs",
            "model/grad_norm", "train/loss_actor", "train/loss_qvalue", "train/loss_alpha",
            "train/alpha", "train/entropy"} <= set(fitted)  # fmt: skip
    assert fitted["model/rows"] == 20
    assert fitted["train/imagined"] == 50
