"""Offline to online: shares of a batch, episodes, checkpoints in the middle of one."""

from __future__ import annotations

from copy import deepcopy

import gymnasium as gym
import numpy as np
import pytest
import torch
from composerl.data.offline.buffer import OfflineBuffer

from composerl.data import MixedBuffer, generate
from composerl.envs.spaces import Spaces
from composerl.modules import gaussian_actor


class Counting(gym.Env):
    """Observation and reward are the step's number; terminates after 4 steps."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.full(3, 100.0, np.float32), {"seed": seed}

    def step(self, action):
        assert -2 <= action[0] <= 2
        self.t += 1
        return np.full(3, 100.0 + self.t, np.float32), float(self.t), self.t == 4, False, {}


@pytest.fixture
def offline():
    data = generate("Pendulum-v1", "random", 400, 0)
    return OfflineBuffer(data, batch_size=10, reward_scale=0.5, mc_gamma=0.5)


@pytest.fixture
def actor():
    torch.manual_seed(0)
    return gaussian_actor(Spaces.of("Pendulum-v1"), (8,))


def test_batches_are_mixed_once_an_episode_is_over(offline, actor):
    """Rewards 1 to 4, halved; Monte Carlo with gamma 0.5: 2; 1.5 + 1; 1 + 1.25; 0.5 + 1.125."""
    buffer = MixedBuffer(offline, Counting, offline_fraction=0.3)
    for step in range(1, 4):
        metrics = buffer.collect(actor)
        assert metrics == {"collect/steps": step, "collect/episodes": 0}
        assert (buffer.sample()["observation"] < 50).all()
    metrics = {"collect/steps": 4, "collect/episodes": 1, "collect/return": 10, "collect/length": 4}
    assert buffer.collect(actor) == metrics
    batch = buffer.sample()
    assert batch.batch_size == (10,)
    mine = batch["observation"][:, 0] >= 100
    assert mine.sum() == 7
    rows = batch[mine]
    t = rows["observation"][:, 0] - 100
    torch.testing.assert_close(rows["next", "observation"][:, 0], t + 101)
    torch.testing.assert_close(rows["next", "reward"].squeeze(-1), (t + 1) / 2)
    assert torch.equal(rows["next", "terminated"].squeeze(-1), t == 3)
    expected = torch.tensor([1.625, 2.25, 2.5, 2.0])[t.long()]
    torch.testing.assert_close(rows["mc_return"].squeeze(-1), expected)


@pytest.mark.parametrize(("fraction", "own"), [(1.0, 0), (0.0, 10), (0.5, 5)])
def test_shares(offline, actor, fraction, own):
    buffer = MixedBuffer(offline, Counting, offline_fraction=fraction)
    for _ in range(4):
        buffer.collect(actor)
    assert (buffer.sample()["observation"][:, 0] >= 100).sum() == own
    with pytest.raises(ValueError, match="offline_fraction"):
        MixedBuffer(offline, Counting, offline_fraction=1.5)


@pytest.mark.parametrize("checkpoints", [(250,), (1, 199, 200, 201, 333)])
def test_going_on_equals_resuming_and_checkpoints_change_nothing(offline, actor, checkpoints):
    def play(buffer, steps):
        for _ in range(steps):
            buffer.collect(actor)

    torch.manual_seed(1)
    whole = MixedBuffer(offline, "Pendulum-v1", seed=3)
    play(whole, 500)
    torch.manual_seed(1)
    resumed, done = MixedBuffer(offline, "Pendulum-v1", seed=3), 0
    for step in checkpoints:
        play(resumed, step - done)
        state, done = deepcopy(resumed.state_dict()), step
        resumed = MixedBuffer(offline, "Pendulum-v1", seed=3)
        resumed.load_state_dict(state)
        assert resumed.state_dict()["collector"] is not None  # also before it has collected
    play(resumed, 500 - done)
    a, b = whole.state_dict(), resumed.state_dict()
    assert a["collected"] == b["collected"] == 500
    assert len(a["episodes"]) == len(b["episodes"]) == 2
    assert len(a["episode"]) == len(b["episode"]) == 100
    for x, y in zip(a["episodes"] + a["episode"], b["episodes"] + b["episode"], strict=True):
        assert all(torch.equal(x[key], y[key]) for key in x)
    assert a["episodes"][0]["timeouts"].tolist() == [False] * 199 + [True]
    assert not a["episodes"][0]["terminals"].any()


def test_loads_the_state_of_an_offline_run(offline, actor):
    buffer = MixedBuffer(offline, "Pendulum-v1")
    buffer.load_state_dict(offline.state_dict())
    assert buffer.collected == 0
    with pytest.raises(ValueError, match="fingerprint"):
        buffer.load_state_dict({"fingerprint": "other"})


def test_the_oldest_episodes_go_first(offline, actor):
    buffer = MixedBuffer(offline, Counting, capacity=10)
    for _ in range(20):
        buffer.collect(actor)
    assert len(buffer.state_dict()["episodes"]) == 2


def test_an_episode_that_cannot_be_gone_on_with_is_cut_where_it_was_left(offline, actor):
    """Three steps, a resume that ends up elsewhere, four more: two episodes, the first truncated.

    Rewards 1 2 3, halved, gamma 0.5: 0.5 + 0.5 * (1 + 0.5 * 1.5) = 1.375; 1.75; 1.5.
    """

    class Moody(Counting):
        """Does not repeat itself: each environment has observations of its own."""

        made = 0

        def __init__(self):
            Moody.made += 1
            self.base = 1000.0 * Moody.made

        def reset(self, **options):
            return super().reset(**options)[0] + self.base, {}

        def step(self, action):
            obs, *rest = super().step(action)
            return obs + self.base, *rest

    one = MixedBuffer(offline, Moody, offline_fraction=0.0)
    for _ in range(3):
        one.collect(actor)
    other = MixedBuffer(offline, Moody, offline_fraction=0.0)
    other.load_state_dict(deepcopy(one.state_dict()))
    for _ in range(4):
        other.collect(actor)
    cut, whole = other._episodes
    assert (len(cut), len(whole)) == (3, 4)
    assert cut.timeouts.tolist() == [False, False, True]
    assert not cut.terminals.any()
    assert whole.terminals.tolist() == [False, False, False, True]
    rows = other._online[:]
    assert rows["mc_return"][:3].flatten().tolist() == [1.375, 1.75, 1.5]
