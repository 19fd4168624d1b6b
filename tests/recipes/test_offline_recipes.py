"""What only some offline recipes have: choices of the actor, of rewards, of V's pace."""

from __future__ import annotations

import pytest
from recipes.harness import RECIPES, load_recipe, metrics, run_in_process, small_config

import composerl
from composerl.data import load_dataset, return_scale

PATHS = {path.stem: path for path in RECIPES}


@pytest.mark.parametrize("name", ["bc_pendulum", "iql_pendulum"])
def test_either_actor_learns(name, tmp_path):
    for actor in ("gaussian", "tanh"):
        assert run_in_process(PATHS[name], tmp_path / actor, actor=actor) == 0
        made = composerl.load(tmp_path / actor).actor.description["factory"]
        assert made == {"gaussian": "gaussian_actor", "tanh": "tanh_gaussian_actor"}[actor]


def test_v_may_learn_at_a_pace_of_its_own(tmp_path, monkeypatch):
    """Three updates of V for one of the rest: the schedule of the actor counts them all."""
    calls = []
    original = composerl.Update.__call__

    def counted(self, batch):
        before = {name: p.detach().clone() for name, p in self.loss.named_parameters()}
        out = original(self, batch)
        calls.append(
            {
                name.partition(".")[0]
                for name, p in self.loss.named_parameters()
                if not p.equal(before[name])
            }
        )
        return out

    monkeypatch.setattr(composerl.Update, "__call__", counted)
    recipe = load_recipe(PATHS["xql_pendulum"])
    config = small_config(recipe, tmp_path / "run", value_updates=3, steps=20, log_every=1)
    recipe.main(config)
    assert len(calls) == 60
    rest = {"value_network", "actor_network", "qvalue_network"}
    assert calls == [{"value_network"}, {"value_network"}, rest] * 20
    _, *rows = metrics(tmp_path / "run")  # the first is that of step 0, before any update
    rates = [row["train/lr_actor_network"] for row in rows]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.01 * config.lr


def test_rewards_by_the_dataset_s_returns_reach_the_environment_too(tmp_path, monkeypatch):
    scales = []
    original = composerl.envs.make_env

    def noting(*args, transforms=None, **kwargs):
        scales.append(transforms.scale.item())
        return original(*args, transforms=transforms, **kwargs)

    monkeypatch.setattr("composerl.envs.make_env", noting)
    recipe = load_recipe(PATHS["iql_pendulum"])
    config = small_config(recipe, tmp_path / "run", reward_scale="returns", steps=10)
    recipe.main(config)
    data = load_dataset(config.dataset, config.env, size=config.dataset_size)
    assert scales == [pytest.approx(return_scale(data))]


def test_the_weights_of_prioritized_replay_may_grow(tmp_path):
    recipe = load_recipe(PATHS["iqn_cartpole"])
    config = small_config(recipe, tmp_path / "x", steps=100, beta_end=1.0)
    assert [config.beta(step) for step in (0, 50, 100, 108)] == pytest.approx([0.4, 0.7, 1.0, 1.0])
    assert small_config(recipe, tmp_path / "x").beta(60) == 0.4
    for name, changes in (("stays", {}), ("grows", {"beta_end": 1.0})):
        assert run_in_process(PATHS["iqn_cartpole"], tmp_path / name, **changes) == 0
    losses = [metrics(tmp_path / name)[-1]["train/loss_qvalue"] for name in ("stays", "grows")]
    assert losses[0] != losses[1]
