"""Whole episodes: stored when they are over, with returns; checkpoints in the middle of one."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from rows import assert_equal, buffer_of, rows, through_a_file
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import RewardScaling

from composerl.data import (
    DatasetStorage,
    MixedReplayBuffer,
    PackedStorage,
    VectorCollector,
    WholeEpisodes,
    generate,
)
from composerl.envs import make_env
from composerl.envs.spaces import Spaces
from composerl.modules import gaussian_actor


class Counting(gym.Env):
    """Observation and reward are the step's number; terminates after 4 steps."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.full(3, 100.0, np.float32), {}

    def step(self, action):
        assert -2 <= action[0] <= 2
        self.t += 1
        return np.full(3, 100.0 + self.t, np.float32), float(self.t), self.t == 4, False, {}


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


@pytest.fixture
def actor():
    torch.manual_seed(0)
    return gaussian_actor(Spaces.of("Pendulum-v1"), (8,))


def online(gamma=0.5, size=1000):
    return TensorDictReplayBuffer(storage=PackedStorage(size), transform=WholeEpisodes(gamma))


def collecting(env, actor, seed=0):
    """Its rewards are halved, by TorchRL's transform."""
    env = make_env(env, transforms=RewardScaling(loc=0.0, scale=0.5))
    return VectorCollector(env, actor, frames_per_batch=1, seed=seed)


def test_batches_are_mixed_once_an_episode_is_over(actor):
    """Rewards 1 to 4, halved; Monte Carlo with gamma 0.5: 2; 1.5 + 1; 1 + 1.25; 0.5 + 1.125."""
    data = generate("Pendulum-v1", "random", 400, 0)
    offline = TensorDictReplayBuffer(storage=DatasetStorage(data, mc_gamma=0.5))
    buffer = MixedReplayBuffer(offline, online(), offline_fraction=0.3, batch_size=10)
    collector = collecting(Counting, actor)
    for _ in range(3):
        buffer.extend(collector.next())
        assert len(buffer.online_buffer) == 0
        assert (buffer.sample()["observation"] < 50).all()
    buffer.extend(collector.next())
    batch = buffer.sample()
    assert batch.batch_size == (10,)
    mine = batch["observation"][:, 0] >= 100
    assert mine.sum() == 7
    drawn = batch[mine]
    t = drawn["observation"][:, 0] - 100
    torch.testing.assert_close(drawn["next", "observation"][:, 0], t + 101)
    torch.testing.assert_close(drawn["next", "reward"].squeeze(-1), (t + 1) / 2)
    assert torch.equal(drawn["next", "terminated"].squeeze(-1), t == 3)
    expected = torch.tensor([1.625, 2.25, 2.5, 2.0])[t.long()]
    torch.testing.assert_close(drawn["mc_return"].squeeze(-1), expected)


@pytest.mark.parametrize("chunk", [1, 3, 7, 20])
@pytest.mark.parametrize("kind", [PackedStorage, LazyTensorStorage])
def test_every_step_is_stored_once_and_in_order(chunk, kind):
    buffer = buffer_of(storage=kind(100), transform=WholeEpisodes())
    for k in range(0, 40, chunk):
        buffer.extend(rows(k, min(chunk, 40 - k)))
    assert len(buffer) == 35  # the sixth episode of seven is under way
    assert_equal(buffer[:], rows(0, 35).exclude("collector"))


@pytest.mark.parametrize("checkpoints", [(250,), (1, 199, 200, 201, 333)])
def test_going_on_equals_resuming_and_checkpoints_change_nothing(actor, checkpoints, tmp_path):
    def play(buffer, collector, steps):
        for _ in range(steps):
            buffer.extend(collector.next())

    torch.manual_seed(1)
    whole = online(), collecting("Pendulum-v1", actor, 3)
    play(*whole, 500)
    torch.manual_seed(1)
    resumed, done = (online(), collecting("Pendulum-v1", actor, 3)), 0
    for step in checkpoints:
        play(*resumed, step - done)
        fresh, done = (online(), collecting("Pendulum-v1", actor, 3)), step
        for old, new in zip(resumed, fresh, strict=True):
            through_a_file(tmp_path, old, new)
        resumed = fresh
    play(*resumed, 500 - done)
    a, b = whole[0], resumed[0]
    assert len(a) == len(b) == 400
    assert_equal(b[:], a[:])
    ends = a[:]["next", "truncated"].flatten().nonzero().flatten()
    assert ends.tolist() == [199, 399]
    assert not a[:]["next", "terminated"].any()
    left, right = (buffer.transform[0].get_extra_state()["steps"] for buffer in (a, b))
    assert [len(column) for column in left] == 7 * [100]
    assert all(torch.equal(*columns) for columns in zip(left, right, strict=True))


def test_the_oldest_rows_go_first(actor):
    buffer, collector = online(size=10), collecting(Counting, actor)
    for _ in range(20):
        buffer.extend(collector.next())
    assert len(buffer) == 10
    seen = buffer[:]["observation"][:, 0].tolist()
    assert sorted(seen) == sorted([102.0, 103.0] + 2 * [100.0, 101.0, 102.0, 103.0])


def test_an_episode_that_cannot_be_gone_on_with_is_cut_where_it_was_left(actor, tmp_path):
    """Three steps, a resume that ends up elsewhere, four more: two episodes, the first truncated.

    Rewards 1 2 3, halved, gamma 0.5: 0.5 + 0.5 * (1 + 0.5 * 1.5) = 1.375; 1.75; 1.5.
    """
    one = online(), collecting(Moody, actor)
    for _ in range(3):
        one[0].extend(one[1].next())
    other = online(), collecting(Moody, actor)
    for old, new in zip(one, other, strict=True):
        through_a_file(tmp_path, old, new)
    for _ in range(4):
        other[0].extend(other[1].next())
    stored = other[0][:]
    assert len(stored) == 7
    assert stored["next", "truncated"].flatten().tolist() == [False, False, True] + 4 * [False]
    assert stored["next", "terminated"].flatten().tolist() == 6 * [False] + [True]
    assert stored["next", "done"].flatten().nonzero().flatten().tolist() == [2, 6]
    assert stored["mc_return"][:3].flatten().tolist() == [1.375, 1.75, 1.5]


@pytest.mark.parametrize(
    ("worst", "expected"), [(0.0, [-2.0, -2.0, -2.0]), (-4.0, [-2.75, -3.5, -5.0])]
)
def test_a_cut_episode_counts_what_it_gains_at_least(worst, expected):
    """Rewards of -1, cut after three; gamma 0.5: for ever after -1 / 0.5 = -2, or -8."""
    buffer = TensorDictReplayBuffer(
        storage=PackedStorage(10), transform=WholeEpisodes(0.5, worst=worst)
    )
    batch = rows(0, 3)
    batch["next", "reward"] = -torch.ones(3, 1)
    batch["next", "truncated"] = batch["next", "done"] = torch.tensor([[False], [False], [True]])
    buffer.extend(batch)
    assert buffer[:]["mc_return"].flatten().tolist() == expected


def test_what_is_under_way_is_not_the_collector_s_memory():
    """A batch that is written to again afterwards does not change an episode."""
    buffer = online(gamma=None)
    first = rows(0, 3)
    buffer.extend(first)
    first["observation"].fill_(-5.0)
    buffer.extend(rows(3, 4))
    assert_equal(buffer[:], rows(0, 7).exclude("collector"))


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"gamma must be in \[0, 1\], got 1.5"):
        WholeEpisodes(1.5)
    with pytest.raises(ValueError, match=r"one environment, \(time,\), is needed, got \(2, 3\)"):
        online().extend(rows(0, 6).reshape(2, 3))
