"""Generated datasets: quality and determinism."""

from __future__ import annotations

import os
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest

from composerl.data import generate, validate
from composerl.data.offline.behaviours import cartpole, pendulum
from composerl.data.offline.checks import KEYS
from composerl.envs.spaces import Spaces


@pytest.fixture(scope="module")
def mixed():
    return generate("Pendulum-v1", "mixed", 10_000, 0, cache=False)


class Counter(gym.Env):
    """Counts steps from a random start; terminal after ``start + 3`` steps, or never."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gym.spaces.Discrete(3)
    ends = True

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.start = int(self.np_random.integers(5))
        # One buffer for all observations: a generator that keeps references is found out.
        self.state = np.full(1, 100.0 * self.start)
        self.left = self.start + 3
        return self.state, {}

    def step(self, action):
        self.state += 1
        self.left -= 1
        return self.state, float(action), self.ends and self.left == 0, False, {}


class Endless(Counter):
    ends = False


def test_scripted_pendulum_swings_up():
    assert generate("Pendulum-v1", "scripted", 10_000, 0).returns().mean() > -250


def test_scripted_cartpole_balances():
    data = generate("CartPole-v1", "scripted", 5_000, 0)
    assert data.returns().mean() > 450
    assert data.actions.dtype == np.int64


def test_noisy_pendulum_is_good_and_narrow():
    """Nearly as good as the controller, and near it: 0.15 of half the range is 0.3."""
    data = generate("Pendulum-v1", "noisy", 10_000, 0)
    assert data.returns().mean() > -250
    error = (data.actions - pendulum(data.observations))[np.abs(data.actions) < 1.9]
    assert abs(error.mean()) < 0.02
    assert 0.27 < error.std() < 0.31  # those that end at the bounds are cut


def test_noisy_cartpole_slips_now_and_then():
    """A twentieth of the actions is random, and half of those are what was wanted anyway."""
    data = generate("CartPole-v1", "noisy", 5_000, 0)
    slips = (data.actions != cartpole(data.observations)).mean()
    assert 0.015 < slips < 0.035
    assert data.returns().mean() > 400


def test_mixed_pendulum_is_poor_but_covers_states_and_actions(mixed):
    returns = mixed.returns()
    assert -950 < returns.mean() <= -600
    assert returns.max() > -300  # some episodes show how it is done
    cos, sin, speed = mixed.observations.T
    cells = np.histogramdd(
        np.stack([np.arctan2(sin, cos), speed, mixed.actions[:, 0]], 1),
        bins=(6, 4, 4),
        range=((-np.pi, np.pi), (-8, 8), (-2, 2)),
    )[0]
    assert (cells > 0).mean() > 0.95


def test_mixed_has_every_level_in_each_run_of_episodes():
    from composerl.data.offline.behaviours import LEVELS, random_share

    shares = [random_share("mixed", 3, k) for k in range(3 * len(LEVELS))]
    for turn in range(3):
        part = shares[turn * len(LEVELS) : (turn + 1) * len(LEVELS)]
        assert sorted(part) == sorted(LEVELS)
    assert shares != shares[: len(LEVELS)] * 3


def test_rows_follow_the_environment(mixed):
    """Replay the first episodes: reset as seeded, then the stored actions, give the stored rows."""
    env = gym.make("Pendulum-v1")
    for index, (start, stop) in enumerate(mixed.episodes()[:3]):
        sequence = np.random.SeedSequence(0, spawn_key=(index,))
        obs, _ = env.reset(seed=int(sequence.generate_state(1)[0]))
        for row in range(start, stop):
            np.testing.assert_array_equal(mixed.observations[row], obs)
            obs, reward, terminated, truncated, _ = env.step(mixed.actions[row])
            np.testing.assert_array_equal(mixed.next_observations[row], obs)
            assert mixed.rewards[row] == np.float32(reward)
            assert (mixed.terminals[row], mixed.timeouts[row]) == (terminated, truncated)
    env.close()


def test_no_row_crosses_an_episode():
    data = generate(Counter, "random", 200, 1)
    assert (data.next_observations == data.observations + 1).all()
    start, stop = data.episodes().T
    first = data.observations[start, 0]
    assert (first % 100 == 0).all()
    lengths = first / 100 + 3
    assert ((stop - start)[:-1] == lengths[:-1]).all()
    assert data.terminals[stop[:-1] - 1].all()
    assert set(data.actions.tolist()) == {0, 1, 2}
    np.testing.assert_array_equal(data.rewards, data.actions)
    assert len(set(first.tolist())) > 1  # episodes differ


class Greedy(Counter):
    """Scales the action it is given in place, as careless environments do."""

    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action):
        reward = float(action[0])
        action *= 0.0
        return super().step(reward)


def test_stored_actions_are_those_that_were_chosen():
    data = generate(Greedy, "random", 40, 0)
    np.testing.assert_array_equal(data.actions[:, 0], data.rewards)
    assert data.actions.std() > 0.3


def test_size_cuts_the_last_episode_and_nothing_else():
    large, small = (generate("CartPole-v1", "random", size, 2) for size in (500, 200))
    for key in KEYS:
        long, short = getattr(large, key), getattr(small, key)
        np.testing.assert_array_equal(long[:199], short[:199])
        assert len(short) == 200
    assert small.timeouts[-1] != small.terminals[-1]
    assert not small.timeouts[:-1].any()  # CartPole falls long before its time limit


def test_a_cut_at_a_true_end_is_no_timeout():
    whole = generate(Counter, "random", 50, 1)
    data = generate(Counter, "random", int(whole.episodes()[2, 1]), 1)
    assert data.terminals[-1]
    assert not data.timeouts.any()
    assert len(data.episodes()) == 3


def test_an_endless_environment_is_cut_at_size():
    data = generate(Endless, "random", 50, 0)
    assert len(data) == 50
    assert data.episodes().tolist() == [[0, 50]]
    assert data.timeouts[-1]


@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
@pytest.mark.parametrize("behaviour", ["random", "scripted", "noisy", "mixed"])
def test_what_is_generated_is_valid(env, behaviour):
    data = generate(env, behaviour, 300, 0)
    checked = validate(data, Spaces.of(env))
    assert checked.fingerprint == data.fingerprint


def test_same_arguments_same_bytes_in_another_process(cache):
    code = (
        "from composerl.data import generate\n"
        "print(generate('Pendulum-v1', 'mixed', 1000, 5, cache=False).fingerprint)\n"
        "import sys; assert 'torch' not in sys.modules"
    )
    env = {**os.environ, "PYTHONHASHSEED": "123"}
    there = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    here = generate("Pendulum-v1", "mixed", 1000, 5, cache=False)
    assert there.stdout.strip() == here.fingerprint
    assert not cache.exists()
    others = [("mixed", 1000, 6), ("mixed", 999, 5), ("random", 1000, 5)]
    prints = {generate("Pendulum-v1", *other, cache=False).fingerprint for other in others}
    assert len(prints | {here.fingerprint}) == 4


@pytest.mark.filterwarnings("ignore:.*share an object:UserWarning")
def test_environments_of_unknown_version_are_not_cached(cache):
    gym.register("Counter-v0", entry_point=Counter)
    try:
        generate("Counter-v0", "random", 10, 0)
        generate(Counter, "random", 10, 0)
    finally:
        gym.registry.pop("Counter-v0")
    assert not cache.exists()


class Unbounded(Counter):
    action_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Pendulum-v1", "expert", 10, 0), r"'expert'.*scripted, noisy, mixed.*path of a dataset"),
        (("Acrobot-v1", "scripted", 10, 0), "Acrobot-v1 does not.*CartPole-v1 and Pendulum-v1 do"),
        ((Counter, "mixed", 10, 0), "Counter does not have"),
        (("Pendulum-v1", "random", 0, 0), "size of a generated dataset.*at least 1, got 0"),
        (("Pendulum-v1", "random", 1.5, 0), "size of a generated dataset.*got 1.5"),
        (("Pendulum-v1", "random", 10, -1), "seed of a generated dataset.*at least 0, got -1"),
        (("Pendulun-v1", "random", 10, 0), "environment 'Pendulun-v1' cannot be made"),
        ((Unbounded, "random", 10, 0), "Unbounded has no bounds to its actions"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        generate(*arguments)
