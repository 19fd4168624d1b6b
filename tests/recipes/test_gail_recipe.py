"""What is particular to the GAIL recipe: rewards it must not see, cloning, other tasks by flags."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from recipes.harness import load_recipe, metrics, small_config, weights

import composerl
from composerl.data import load_experts
from composerl.data.offline.behaviours import cartpole
from composerl.data.offline.checks import KEYS
from composerl.data.offline.generation import play_episodes

RECIPE = load_recipe(Path(__file__).parents[2] / "recipes" / "gail_cartpole.py")
NOISY = "composerl-tests/NoisyCartPole-v0"


class Noise(gym.RewardWrapper):
    """Rewards that say nothing, from a generator that the dynamics do not share."""

    def __init__(self, env):
        super().__init__(env)
        self._noise = np.random.default_rng(0)

    def reward(self, reward):
        return float(self._noise.normal())


gym.register(NOISY, entry_point=lambda **kwargs: Noise(gym.make("CartPole-v1", **kwargs)))


@pytest.fixture(scope="module")
def expert(tmp_path_factory):
    """Two demonstrations as a file, which fits both environments."""
    path = tmp_path_factory.mktemp("expert") / "expert.npz"
    data = play_episodes("CartPole-v1", cartpole, 2, 0, "scripted")
    np.savez(path, **{key: getattr(data, key) for key in KEYS})
    return str(path)


def run(out, **changes):
    RECIPE.main(small_config(RECIPE, out, **changes))
    return metrics(out)


def test_the_environment_s_reward_changes_nothing_but_the_log(expert, tmp_path):
    plain = run(tmp_path / "plain", expert=expert)
    noisy = run(tmp_path / "noisy", expert=expert, env=NOISY)
    assert weights(tmp_path / "plain") == weights(tmp_path / "noisy")
    for a, b in zip(plain, noisy, strict=True):
        changed = {key for key in a if a[key] != b[key]}
        assert changed <= {"collect/return", "eval/return", "eval/return_std"}
    assert plain[-1]["eval/return"] != noisy[-1]["eval/return"]


def test_cloning_is_reported_and_is_where_training_starts(tmp_path):
    rows = run(tmp_path / "bc", bc_steps=300, steps=10, judge_updates=1, ppo_epochs=1, lr=1e-2)
    assert rows[-1]["expert/return"] == 500
    assert rows[-1]["bc/return"] > 150
    assert rows[-1]["eval/return"] > 0.5 * rows[-1]["bc/return"]
    assert "bc/return" not in run(tmp_path / "none")[-1]


def test_pendulum_by_flags(tmp_path):
    rows = run(tmp_path / "run", env="Pendulum-v1", steps=20, reward="airl", gradient_penalty=1.0,
               spectral_norm=True, value_clip=0.2, subsample=20, bc_steps=2)  # fmt: skip
    assert rows[-1]["judge/loss_gradient_penalty"] >= 0
    assert composerl.load(tmp_path / "run").predict(np.zeros(3)).shape == (1,)


def test_a_trained_policy_is_an_expert(tmp_path):
    run(tmp_path / "teacher", steps=10)
    rows = run(tmp_path / "pupil", steps=10, expert=str(tmp_path / "teacher"))
    teacher = composerl.load(tmp_path / "teacher")
    taught = load_experts(teacher, "CartPole-v1", episodes=2)
    assert rows[-1]["expert/return"] == taught.mean_return


def test_warns_when_living_itself_is_paid_for(tmp_path):
    options = {"expert": "random", "steps": 200, "rollout": 100}
    with pytest.warns(UserWarning, match="living is paid for"):
        run(tmp_path / "run", absorbing=False, **options)


def test_mistakes_leave_nothing_behind(tmp_path):
    for changes, message in (
        ({"expert": "nobody"}, "unknown dataset 'nobody'"),
        ({"gradient_penalty": -1.0}, "gradient_penalty must be at least 0"),
        ({"demonstrations": 0}, "demonstrations must be at least 1"),
        ({"clip": 0.0}, "clip must be positive"),
    ):
        with pytest.raises(ValueError, match=message):
            run(tmp_path / "run", **changes)
    assert not list(tmp_path.iterdir())
