"""Recipes with workers: the numbers of one process, whoever is killed, and whoever goes on."""

from __future__ import annotations

import shutil

import pytest
from recipes.harness import RECIPES, load_recipe, metrics, run_in_process, summary, weights

pytest.importorskip("ray")

PATHS = {
    path.stem: path
    for path in RECIPES
    if "workers" in load_recipe(path).Config.__dataclass_fields__
    and path.stem not in ("dreamer_breakout", "dreamer_crafter", "dreamer_pendulum")
}


def assert_equal_runs(run, other):
    assert metrics(run) == metrics(other)
    assert weights(run) == weights(other)
    assert summary(run) == summary(other)


@pytest.mark.parametrize("name", ["iqn_cartpole", "mbpo_pendulum"])
def test_a_worker_and_the_learner_are_killed_and_the_run_is_that_of_one_process(name, tmp_path):
    """Also if it goes on without workers."""
    path, run = PATHS[name], tmp_path / "run"
    assert run_in_process(path, tmp_path / "whole") == 0
    assert run_in_process(path, run, workers=2, kill_at="worker:8 update:33") == -9
    shutil.copytree(run, tmp_path / "alone")
    assert run_in_process(path, run, workers=2, resume=True) == 0
    assert run_in_process(path, tmp_path / "alone", resume=True) == 0
    for resumed in (run, tmp_path / "alone"):
        assert_equal_runs(resumed, tmp_path / "whole")
        assert any("collect/episodes" in row for row in metrics(resumed))


@pytest.mark.slow
@pytest.mark.parametrize("name", PATHS)
def test_every_recipe_has_the_same_numbers_with_workers(name, tmp_path):
    assert run_in_process(PATHS[name], tmp_path / "one", num_envs=3) == 0
    assert run_in_process(PATHS[name], tmp_path / "two", num_envs=3, workers=2) == 0
    assert_equal_runs(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
def test_async_resumes_as_if_it_had_gone_on(tmp_path):
    """With the same checkpoints; it is not the run of one process."""
    path, options = PATHS["iqn_cartpole"], {"workers": 2, "collect": "async"}
    assert run_in_process(path, tmp_path / "whole", **options) == 0
    assert run_in_process(path, tmp_path / "run", kill_at="worker:8 update:33", **options) == -9
    assert run_in_process(path, tmp_path / "run", resume=True, **options) == 0
    assert_equal_runs(tmp_path / "run", tmp_path / "whole")
    assert run_in_process(path, tmp_path / "sync") == 0
    assert weights(tmp_path / "sync") != weights(tmp_path / "whole")
