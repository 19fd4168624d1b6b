"""composerl/Catch-v0: its rules, what can be had, and that one frame is not enough."""

from __future__ import annotations

import time

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from composerl.bookkeeping.evaluation import Evaluator
from composerl.envs import make_env
from composerl.envs.catch import BALL, CATCH, PADDLE, SIDE, SPEEDS, STEPS, STRIDE, Catch
from composerl.envs.spaces import Spaces, open_gym

STARTS = [(x, speed) for x in range(SIDE - BALL + 1) for speed in SPEEDS]


def find(image):
    """Left edges of ball and paddle, and the ball's top, from the pixels alone."""
    rows, columns = np.nonzero(image[0] == 255)
    return columns.min(), np.nonzero(image[0, -1])[0].min(), rows.min()


def toward(paddle, x):
    """The action that brings the paddle's middle nearer to that of a ball at x."""
    far = (x + BALL / 2) - (paddle + PADDLE / 2)
    return 1 + int(np.sign(far)) * (abs(far) > STRIDE / 2)


def landing(x, speed, steps):
    """A second rendition of the bounces: on an unfolded floor of twice the width."""
    wall = SIDE - BALL
    unfolded = (x + speed * steps) % (2 * wall)
    return min(unfolded, 2 * wall - unfolded)


class Reader:
    """Scripted optimum: the speed from the first frames, then straight to where the ball lands.

    Two frames tell the speed, three where the first step may have been a bounce or none.
    """

    def __call__(self, image):
        x, paddle, top = find(image)
        t = top // 2
        if t == 0:
            self.start, self.speeds = x, set(SPEEDS)
        self.speeds = {s for s in self.speeds if landing(self.start, s, t) == x}
        ends = {landing(self.start, s, STEPS) for s in self.speeds}
        return 1 if len(ends) > 1 else toward(paddle, *ends)


def follow(image):
    x, paddle, _ = find(image)
    return toward(paddle, x)


def play(act, x, speed):
    env = Catch()
    env.reset(seed=0)
    env._x, env._speed = x, speed
    image, total, steps, over = env._image(), 0.0, 0, False
    while not over:
        image, reward, over, _, _ = env.step(act(image))
        total, steps = total + reward, steps + 1
    assert steps == STEPS == 13
    return total


def test_the_optimum_catches_every_ball():
    reader = Reader()
    assert [play(reader, x, speed) for x, speed in STARTS] == [1.0] * 116


def test_following_the_ball_is_no_better_than_chance():
    assert np.mean([play(follow, x, speed) for x, speed in STARTS]) == pytest.approx(38 / 116)


def test_random_play_by_counting():
    """The paddle's place after 13 random steps is a distribution: 0.318 of the balls are caught."""
    places = np.zeros(SIDE - PADDLE + 1)
    places[(SIDE - PADDLE) // 2] = 1
    for _ in range(STEPS):
        after = np.zeros_like(places)
        for at, share in enumerate(places):
            for move in (-STRIDE, 0, STRIDE):
                after[np.clip(at + move, 0, SIDE - PADDLE)] += share / 3
        places = after
    caught = np.mean(
        [
            sum(
                places[p]
                for p in range(len(places))
                if p - BALL < landing(x, v, STEPS) < p + PADDLE
            )
            for x, v in STARTS
        ]
    )
    assert caught == pytest.approx(0.318, abs=5e-4)
    rng = np.random.default_rng(0)
    acted = Evaluator(CATCH)(lambda obs: torch.from_numpy(rng.integers(0, 3, len(obs))), 2000, 0)
    assert acted.mean == pytest.approx(caught, abs=0.04)


def test_one_frame_is_not_enough():
    """At every place of the ball, a start to the left and one to the right look the same."""
    env = Catch()
    for x in range(SIDE - BALL + 1):
        images, ends = [], []
        for speed in SPEEDS:
            env.reset(seed=0)
            env._x, env._speed = x, speed
            images.append(env._image())
            ends.append(landing(x, speed, STEPS))
        assert all(np.array_equal(images[0], image) for image in images)
        assert max(ends) - min(ends) > 3


def test_what_it_shows_and_gives():
    env = gym.make(CATCH)
    check_env(env.unwrapped, skip_render_check=True)
    assert Spaces.of(CATCH) == Spaces(obs_shape=(1, 32, 32), obs_dtype="uint8", num_actions=3)
    obs, _ = env.reset(seed=5)
    assert (obs == 255).sum() == 16
    assert (obs == 160).sum() == 12
    paddle = find(obs)[1]
    obs, reward, terminated, truncated, _ = env.step(2)
    assert find(obs)[1] == paddle + 2
    assert find(obs)[2] == 2
    assert (reward, terminated, truncated) == (0.0, False, False)
    for _ in range(11):
        assert env.step(2)[1:4] == (0.0, False, False)
    obs, _, terminated, truncated, _ = env.step(2)
    assert (terminated, truncated) == (True, False)
    assert find(obs)[1] == SIDE - PADDLE  # the wall holds the paddle
    with pytest.raises(RuntimeError, match="reset the environment"):
        env.step(1)
    env.reset()
    with pytest.raises(ValueError, match="action must be 0"):
        env.step(3)
    with pytest.raises(ValueError, match="render_mode"):
        Catch(render_mode="human")


def test_seeds_repeat_and_reach_every_start():
    env = open_gym(CATCH)
    one, other = (env.reset(seed=7)[0] for _ in range(2))
    np.testing.assert_array_equal(one, other)
    found = set()
    for _ in range(3000):
        env.reset()
        found.add((env.unwrapped._x, env.unwrapped._speed))
    assert found == set(STARTS)


def test_as_a_torchrl_environment_and_rendered():
    rollout = make_env(CATCH, 2, seed=0).rollout(20)
    assert rollout["observation"].shape == (2, 13, 1, 32, 32)
    assert rollout["observation"].dtype == torch.uint8
    env = gym.make(CATCH, render_mode="rgb_array")
    obs, _ = env.reset(seed=0)
    frame = env.render()
    assert frame.shape == (256, 256, 3)
    np.testing.assert_array_equal(frame[::8, ::8, 1], obs[0])


def test_it_is_cheap():
    env = gym.make(CATCH)
    env.reset(seed=0)
    begin = time.process_time()
    for _ in range(5000):
        if env.step(1)[2]:
            env.reset()
    assert 5000 / (time.process_time() - begin) > 20_000
