"""Recipes learn with their defaults, on several seeds, and a broken one would not (slow)."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from recipes.harness import RECIPES, load_recipe

from composerl.data import load_dataset
from composerl.data.checks import KEYS
from composerl.data.generate import play_episodes

PATHS = {path.stem: path for path in RECIPES}

#: Recipe -> mean return over 20 episodes that its defaults must reach, CPU seconds they may take.
GOALS = {
    "cql_pendulum": (-200.0, 300.0),
    "fqf_cartpole": (475.0, 150.0),
    "gail_cartpole": (450.0, 60.0),
    "iql_pendulum": (-200.0, 120.0),
    "iqn_cartpole": (475.0, 90.0),
    "mbpo_pendulum": (-200.0, 240.0),
    "xql_pendulum": (-200.0, 120.0),
}

#: Recipe -> environment steps within which two consecutive evaluations must reach 475.
EARLY = {"fqf_cartpole": 15_000, "gail_cartpole": 25_000, "iqn_cartpole": 15_000}

pytestmark = pytest.mark.slow


def train(name, out, **changes):
    recipe = load_recipe(PATHS[name])
    recipe.main(recipe.Config(out=out, wandb="disabled", **changes))
    return json.loads((out / "summary.json").read_text())


def solved_at(run, goal):
    """The step of the first of two consecutive evaluations at the goal, or None."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scores = [(row["step"], row["eval/return"]) for row in rows if "eval/return" in row]
    for (step, first), (_, second) in pairwise(scores):
        if min(first, second) >= goal:
            return step
    return None


def test_every_recipe_has_a_goal():
    assert set(PATHS) == set(GOALS)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", GOALS)
def test_defaults_reach_the_goal(name, seed, tmp_path):
    goal, seconds = GOALS[name]
    summary = train(name, tmp_path / "run", seed=seed)
    assert summary["final"]["episodes"] == 20
    assert summary["final"]["return"] >= goal
    assert summary["time/cpu_seconds"] <= seconds
    if name in EARLY:
        assert solved_at(tmp_path / "run", 475.0) <= EARLY[name]


def test_iql_does_better_than_its_data_and_than_cloning_it(tmp_path):
    """The goal is out of reach of the data's behaviour, and of IQL without its weights."""
    data = load_dataset("mixed", "Pendulum-v1")
    assert data.mean_return <= -600
    cloned = train("iql_pendulum", tmp_path / "bc", beta=0.0)
    assert cloned["final"]["return"] < -300


@pytest.mark.parametrize("seed", range(3))
def test_gail_imitates_a_bad_expert_too(seed, tmp_path):
    """Always left falls after 9 steps; a reward for mere survival would climb to hundreds."""
    left = play_episodes("CartPole-v1", lambda obs: np.zeros(len(obs), np.int64), 20, 0, "left")
    np.savez(tmp_path / "left.npz", **{key: getattr(left, key) for key in KEYS})
    summary = train("gail_cartpole", tmp_path / "run", seed=seed, expert=str(tmp_path / "left.npz"))
    assert summary["final"]["return"] < 60


@pytest.mark.parametrize("seed", range(3))
def test_gail_imitates_continuous_actions(seed, tmp_path):
    """The settings that the recipe's help gives for Pendulum; the expert has -214."""
    summary = train(
        "gail_cartpole", tmp_path / "run", seed=seed, env="Pendulum-v1", demonstrations=20,
        steps=100_000, rollout=2048, gamma=0.9, entropy_coeff=0.0,
        judge_updates=32, judge_lr=1e-3, gradient_penalty=1.0, eval_every=10_000,
    )  # fmt: skip
    assert summary["final"]["return"] >= -300


def test_the_penalty_saves_cql_from_narrow_data(tmp_path):
    """The same run without it, offline SAC, believes in actions that nobody tried."""
    flags = {"dataset": "noisy", "bc_steps": 1000, "num_random": 4, "steps": 2000}
    careful = train("cql_pendulum", tmp_path / "cql", alpha=10.0, **flags)
    careless = train("cql_pendulum", tmp_path / "sac", alpha=0.0, **flags)
    assert careful["best"]["return"] > -300
    assert careless["best"]["return"] < careful["best"]["return"] - 500
