"""Atari's preparation, by keyword arguments; MinAtar as an image."""

from __future__ import annotations

from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
import torch

from composerl.data import RecordCollector
from composerl.envs import make_env
from composerl.envs.spaces import Spaces, open_gym

BREAKOUT = "ALE/Breakout-v5"
DREAMER = {"size": 64, "stack": 1}


@pytest.fixture
def ale():
    """The real emulator, where it is installed."""
    return pytest.importorskip("ale_py")


def play(env, steps, seed=3):
    rng = np.random.default_rng(seed)
    seen = [(env.reset(seed=seed)[0].copy(), 0.0, False, {})]
    while len(seen) < steps:
        obs, reward, ended, cut, info = env.step(int(rng.integers(env.action_space.n)))
        seen.append((obs.copy(), reward, ended, dict(info)))
        if ended or cut:
            break
    return seen


def test_a_limit_cuts_a_game(ale):
    env = open_gym(BREAKOUT, **DREAMER, limit=5)
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"color": True}, "does not take color; it takes size, colour, .*difficulty"),
        ({"size": 0}, "size must be a number of at least 1, got 0"),
        ({"size": True}, "size must be a number of at least 1, got True"),
        ({"stack": "x"}, "stack must be a number of at least 1, got 'x'"),
        ({"stack": 1.5}, "stack must be a number of at least 1, got 1.5"),
        ({"sticky": 2}, "sticky must be a number from 0 to 1, got 2"),
        ({"sticky": float("nan")}, "sticky must be a number from 0 to 1, got nan"),
        ({"colour": "yes"}, "colour must be true or false, got 'yes'"),
        ({"frameskip": 2}, "does not take frameskip; say it by repeat"),
    ],
)
def test_wrong_settings_are_refused_by_name(ale, settings, words):
    for use in (Spaces.of, open_gym, make_env):
        with pytest.raises(ValueError, match=f"environment 'ALE/Breakout-v5':? {words}"):
            use(BREAKOUT, **settings)


def test_settings_behind_the_id_are_shown_in_their_new_spelling():
    spelling = """--env ALE/Pong-v5 --env-kwargs '{"size": 64, "colour": true}'"""
    with pytest.raises(ValueError, match=spelling):
        Spaces.of("ALE/Pong-v5,size=64,colour=true")


def test_arguments_of_the_emulator_reach_it(ale):
    assert Spaces.of(BREAKOUT).num_actions == 4
    assert Spaces.of(BREAKOUT, full_action_space=True).num_actions == 18
    assert open_gym(BREAKOUT, render_mode="rgb_array", **DREAMER).render_mode == "rgb_array"


def test_without_settings_it_is_gymnasium_s_preparation(ale):
    gym.register_envs(ale)
    game = gym.make("ALE/Breakout-v5", frameskip=1)
    prepared = gym.wrappers.AtariPreprocessing(game, frame_skip=4)
    theirs = play(gym.wrappers.FrameStackObservation(prepared, 4), 120)
    ours = play(open_gym("ALE/Breakout-v5"), 120)
    assert len(theirs) == len(ours) == 120
    for a, b in zip(theirs, ours, strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        assert a[1:] == b[1:]


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        (DREAMER, (1, 64, 64)),
        ({**DREAMER, "colour": True}, (3, 64, 64)),
        ({"size": 48, "stack": 2, "colour": True}, (6, 48, 48)),
        ({}, (4, 84, 84)),
    ],
)
def test_shapes(ale, settings, shape):
    assert Spaces.of(BREAKOUT, **settings) == Spaces(
        obs_shape=shape, obs_dtype="uint8", num_actions=4
    )
    seen = play(open_gym(BREAKOUT, **settings), 20)
    assert all(obs.shape == shape and obs.dtype == np.uint8 for obs, *_ in seen)
    assert seen[-1][0].max() > 50
    # the newest frame of a stack is the last
    if shape[0] == 6:
        np.testing.assert_array_equal(seen[-1][0][:3], seen[-2][0][3:])
        assert (seen[-1][0][:3] != seen[-1][0][3:]).any()


def test_colour_is_that_of_the_screen(ale):
    """Breakout's topmost row of bricks is (200, 72, 72)."""
    obs = play(open_gym(BREAKOUT, size=210, stack=1, colour=True), 2)[0][0]
    assert obs[:, 60, 100].tolist() == [200, 72, 72]


def test_sticky_and_repeat_take_effect(ale):
    game = open_gym(BREAKOUT, **DREAMER, sticky=0.5, repeat=2).unwrapped
    assert game.ale.getFloat("repeat_action_probability") == 0.5
    assert open_gym(BREAKOUT, **DREAMER).unwrapped.ale.getFloat("repeat_action_probability") == 0.25
    for repeat in (1, 3):
        env = open_gym(BREAKOUT, **DREAMER, repeat=repeat)
        env.reset(seed=0)
        before = env.step(0)[4]["frame_number"]
        assert env.step(0)[4]["frame_number"] == before + repeat


def test_a_lost_life_is_told_and_the_game_goes_on(ale):
    env = open_gym(BREAKOUT, **DREAMER, life_loss=True)
    seen = play(env, 2000)
    lives = [5] + [info["lives"] for *_, info in seen[1:]]
    lost = [info["life_loss"] for *_, info in seen[1:]]
    assert lost == [now < then for then, now in pairwise(lives)]
    assert sum(lost) == 5
    assert [ended for *_, ended, _ in seen[1:]].index(True) == len(seen) - 2
    # and the last frame is that of the end
    last = env.unwrapped.ale.getScreenGrayscale()
    assert abs(float(last.mean()) - float(seen[-1][0].mean())) < 1
    assert "life_loss" not in play(open_gym(BREAKOUT, **DREAMER), 3)[-1][3]


def test_records_of_breakout_and_their_resume(ale):
    def make():
        return RecordCollector(
            make_env(BREAKOUT, 2, **DREAMER, life_loss=True), None, seed=0, frames_per_batch=2 * 60
        )

    one = make()
    torch.manual_seed(0)
    first = one.next()
    assert first["observation"].shape == (2, 60, 1, 64, 64)
    assert first["terminal"].any()
    assert first["first"].sum() == 2
    state = one.state_dict()
    torch.manual_seed(1)
    expected = one.next()
    other = make()
    other.load_state_dict(state)
    torch.manual_seed(1)
    found = other.next()
    for key in expected.keys():  # noqa: SIM118
        assert torch.equal(expected[key], found[key]), key


def test_minatar_is_an_image_of_planes():
    pytest.importorskip("minatar")
    env = open_gym("MinAtar/Breakout-v1")
    obs, _ = env.reset(seed=0)
    assert Spaces.of(env) == Spaces(obs_shape=(4, 10, 10), obs_dtype="uint8", num_actions=3)
    assert obs.dtype == np.uint8
    assert set(np.unique(obs)) == {0, 255}


@pytest.mark.parametrize("game", ["Breakout", "Asterix", "Seaquest", "SpaceInvaders", "Freeway"])
def test_minatar_episodes_depend_on_their_seed_alone(game):
    """Sticky actions, one in ten, would repeat the last action of the episode before."""
    pytest.importorskip("minatar")

    def play(env, seed):
        seen = [env.reset(seed=seed)[0]]
        seen += [env.step(k % env.action_space.n)[0] for k in range(30)]
        return np.stack(seen)

    fresh, used = (open_gym(f"MinAtar/{game}-v1") for _ in range(2))
    for seed in range(12):
        play(used, 100 + seed)
        used.step(used.action_space.n - 1)
        one = play(fresh, seed) if seed == 0 else play(open_gym(f"MinAtar/{game}-v1"), seed)
        assert np.array_equal(one, play(used, seed)), seed


def test_minatar_has_a_limit():
    pytest.importorskip("minatar")
    env = open_gym("MinAtar/Seaquest-v1", limit=7)
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(7)] == [False] * 6 + [True]
    with pytest.raises(ValueError, match="does not take size; it takes limit"):
        open_gym("MinAtar/Seaquest-v1", size=7)
    with pytest.raises(ValueError, match="'MinAtar/Seaquest-v1' does not take difficulty"):
        open_gym("MinAtar/Seaquest-v1", difficulty=7)
