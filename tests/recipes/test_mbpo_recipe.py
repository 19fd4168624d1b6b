"""What only MBPO's recipe has: terminations, known and learned, and SAC without a model."""

from __future__ import annotations

import pytest
from recipes.harness import RECIPES, load_recipe, metrics, run_in_process, weights

from composerl.data import ENDINGS

PATH = next(path for path in RECIPES if path.stem == "mbpo_pendulum")


def test_every_termination_has_a_flag():
    recipe = load_recipe(PATH)
    for name in ("none", "learned", *ENDINGS):
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


def test_by_default_the_model_learns_when_real_episodes_end(tmp_path):
    assert run_in_process(PATH, tmp_path / "run", steps=30) == 0
    assert "model/loss_terminated" in metrics(tmp_path / "run")[-1]


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
            "train/alpha", "train/entropy", "train/pred_value"} <= set(fitted)  # fmt: skip
    assert fitted["model/rows"] == 20
    assert fitted["train/imagined"] == 50
