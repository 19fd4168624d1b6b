"""Rows that look several steps ahead, against plain loops and TorchRL's transform."""

from __future__ import annotations

import itertools

import gymnasium as gym
import numpy as np
import pytest
import torch
from rows import EveryRow, assert_all_equal, buffer_of, goes_on, rows, through_a_file
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import MultiStepTransform

from composerl.data import NStep, PackedStorage, PrioritizedSampler, VectorCollector
from composerl.envs import make_env

STORAGES = pytest.mark.parametrize("kind", [PackedStorage, LazyTensorStorage])


def steps(rewards, *, start=0.0, terminated=(), truncated=(), ids=None):
    """One environment: observations start, start + 1, ...; the flags by position."""
    number = len(rewards)
    obs = start + torch.arange(number).float().unsqueeze(1)
    flags = torch.zeros(2, number, 1, dtype=torch.bool)
    flags[0, list(terminated)] = True
    flags[1, list(truncated)] = True
    batch = TensorDict(
        {
            "observation": obs,
            "action": torch.zeros(number, dtype=torch.int64),
            "next": {
                "observation": obs + 1,
                "reward": torch.tensor(rewards).float().unsqueeze(1),
                "terminated": flags[0],
                "truncated": flags[1],
                "done": flags.any(0),
            },
        },
        [number],
    )
    return batch if ids is None else batch.set(("collector", "traj_ids"), torch.tensor(ids))


def ahead(n, gamma, num_envs=1, size=10, kind=PackedStorage):
    """A buffer whose sample is every row, looking ahead."""
    unit = NStep(n, gamma, num_envs)
    return buffer_of(storage=kind(size), sampler=EveryRow(), sample_unit=unit, batch_size=1)


@STORAGES
def test_three_steps_by_hand(kind):
    """gamma 0.5, n 3, rewards 1 2 4 8 16, the third step terminates.

    Row 0: 1 + 0.5*2 + 0.25*4 = 3, 3 steps, terminated. Row 1: 2 + 0.5*4 = 4, 2 steps, terminated.
    Row 2: 4, 1 step, terminated. Row 3: 8 + 0.5*16 = 16, 2 steps (no more are stored), not
    terminated. Row 4: 16, 1 step.
    """
    buffer = ahead(3, 0.5, kind=kind)
    buffer.extend(steps([1, 2, 4, 8, 16], terminated=[2]))
    batch = buffer.sample()
    assert batch["next", "reward"].flatten().tolist() == [3, 4, 4, 16, 16]
    assert batch["steps_to_next_obs"].flatten().tolist() == [3, 2, 1, 2, 1]
    ended = [True, True, True, False, False]
    assert batch["next", "terminated"].flatten().tolist() == ended
    assert batch["next", "observation"].flatten().tolist() == [3, 3, 3, 5, 5]
    assert batch["observation"].flatten().tolist() == [0, 1, 2, 3, 4]
    # what is stored stays as it came
    assert buffer[:]["next", "reward"].flatten().tolist() == [1, 2, 4, 8, 16]


@STORAGES
def test_a_truncated_row_ends_the_look_ahead_and_still_bootstraps(kind):
    buffer = ahead(3, 1.0, kind=kind)
    buffer.extend(steps([1, 1, 1, 1], truncated=[1]))
    batch = buffer.sample()
    assert batch["steps_to_next_obs"].flatten().tolist() == [2, 1, 2, 1]
    assert not batch["next", "terminated"].any()
    assert batch["next", "truncated"].flatten().tolist() == [True, True, False, False]


@STORAGES
def test_an_episode_that_was_left_is_not_gone_on_with(kind):
    """The collector's ids tell; such a row bootstraps, as the episode did not terminate."""
    buffer = ahead(3, 1.0, kind=kind)
    buffer.extend(steps([1, 1], ids=[0, 0]))
    buffer.extend(steps([1, 1], start=2, ids=[0, 0]))  # goes on
    buffer.extend(steps([1, 1], start=9, ids=[1, 1]))  # does not
    batch = buffer.sample()
    assert batch["steps_to_next_obs"].flatten().tolist() == [3, 3, 2, 1, 2, 1]
    assert batch["next", "observation"].flatten().tolist() == [3, 4, 4, 4, 11, 11]
    assert not batch["next", "terminated"].any()


@STORAGES
def test_the_oldest_rows_go_and_the_ring_s_seam_is_not_crossed(kind):
    buffer = ahead(3, 1.0, size=4, kind=kind)
    for t in range(6):
        buffer.extend(steps([t], start=t))
    batch = buffer.sample()
    assert len(buffer) == 4
    assert batch["observation"].flatten().tolist() == [4, 5, 2, 3]
    assert batch["steps_to_next_obs"].flatten().tolist() == [2, 1, 3, 3]
    assert batch["next", "reward"].flatten().tolist() == [9, 5, 9, 12]


@STORAGES
@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_random_episodes_against_a_plain_loop(seed, with_ids, kind):
    """Several environments that take turns, a ring of any size, ends of both sorts, and gaps."""
    rng = np.random.default_rng(seed)
    envs, n = int(rng.integers(1, 5)), int(rng.integers(2, 7))
    size = int(rng.integers(envs * 3, 60))
    buffer = ahead(n, 0.9, envs, size, kind)
    written = []  # all rows ever, in the order of writing
    ids, next_id = list(range(envs)), envs
    for t in range(80):
        batch = []
        for i in range(envs):
            terminated, truncated = rng.random() < 0.1, rng.random() < 0.1
            row = steps([rng.random()], start=1000 * i + t, ids=[ids[i]])
            row["next", "terminated"][:], row["next", "truncated"][:] = terminated, truncated
            row["next", "done"][:] = terminated or truncated
            batch.append(row if with_ids else row.exclude("collector"))
            # a gap: the environment is reset without an end
            if terminated or truncated or (with_ids and rng.random() < 0.05):
                ids[i], next_id = next_id, next_id + 1
        written += batch
        buffer.extend(torch.cat(batch))
        if t % 13 == 12 or t == 79:
            check(buffer, written, envs, n, size)


def check(buffer, written, envs, n, size):
    drawn = buffer.sample()
    oldest = max(0, len(written) - size)
    assert len(drawn) == len(written) - oldest
    for k in range(oldest, len(written)):
        total, m = 0.0, 0
        while True:
            row = written[k + m * envs]
            total += 0.9**m * row["next", "reward"].item()
            m += 1
            following = k + m * envs
            if m == n or row["next", "done"] or following >= len(written):
                break
            if "collector" in row and (
                row["collector", "traj_ids"] != written[following]["collector", "traj_ids"]
            ):
                break
        got = drawn[k % size]
        assert got["steps_to_next_obs"].item() == m
        assert got["next", "reward"].item() == pytest.approx(total, rel=1e-5)
        assert torch.equal(got["observation"], written[k]["observation"][0])
        for key in ("observation", "terminated", "truncated", "done"):
            assert torch.equal(got["next", key], row["next", key][0]), key


def test_a_collector_that_is_reset_leaves_a_gap():
    """The episodes under way are left: no row leads from one into the next."""
    torch.manual_seed(0)
    collector = VectorCollector(make_env("CartPole-v1", 3), None, frames_per_batch=3, seed=0)
    buffer = ahead(4, 1.0, 3, 1000)
    for t in range(60):
        if t % 7 == 6:
            collector.reset()
        buffer.extend(collector.next().reshape(-1))
    drawn, stored = buffer.sample(), buffer[:]
    crossed = 0
    for k in range(len(drawn) - 3):
        path = [k + 3 * j for j in range(int(drawn["steps_to_next_obs"][k]))]
        for a, b in itertools.pairwise(path):
            assert torch.equal(stored["next", "observation"][a], stored["observation"][b])
        if drawn["steps_to_next_obs"][k] < 4 and not drawn["next", "done"][k]:
            crossed += 1
    assert crossed > 20  # rows that stopped at a gap


class Moody(gym.Env):
    """Does not repeat itself: each environment has observations of its own."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    made = 0

    def __init__(self):
        Moody.made += 1
        self.base = 1000.0 * Moody.made

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.full(1, self.base, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.full(1, self.base + self.t, np.float32), 1.0, False, False, {}


def test_environments_that_cannot_be_brought_back_leave_a_gap(tmp_path):
    """Five steps of two environments, a resume that ends up elsewhere, five more."""

    def make():
        collector = VectorCollector(make_env(Moody, 2), None, frames_per_batch=2, seed=0)
        return ahead(3, 1.0, 2, 100), collector

    one, other = make(), make()
    for _ in range(5):
        one[0].extend(one[1].next().reshape(-1))
    for old, new in zip(one, other, strict=True):
        through_a_file(tmp_path, old, new)
    for _ in range(5):
        other[0].extend(other[1].next().reshape(-1))
    batch = other[0].sample()
    assert batch["steps_to_next_obs"].view(10, 2).tolist() == 2 * ([[3, 3]] * 3 + [[2, 2], [1, 1]])
    gone = batch["next", "observation"] - batch["observation"]
    assert torch.equal(gone, batch["steps_to_next_obs"].float())


@pytest.mark.parametrize("chunk", [1, 5])
def test_batches_of_a_collector_against_a_plain_loop(chunk):
    torch.manual_seed(0)
    collector = VectorCollector(make_env("CartPole-v1", 3), None, frames_per_batch=3 * 5, seed=0)
    batches = [collector.next() for _ in range(12)]
    played = torch.cat(batches, 1)
    buffer = ahead(4, 0.9, 3, 1000)
    for batch in batches:
        for part in batch.split(chunk, 1):
            buffer.extend(part.transpose(0, 1).reshape(-1))  # step by step
    got = buffer.sample()
    row = 0
    for t in range(60):
        for i in range(3):
            reward, m = 0.0, 0
            while True:
                reward += 0.9**m * played["next", "reward"][i, t + m].item()
                m += 1
                if m == 4 or t + m == 60 or played["next", "done"][i, t + m - 1]:
                    break
            last = played[i, t + m - 1]
            assert got["steps_to_next_obs"][row].item() == m
            assert got["next", "reward"][row].item() == pytest.approx(reward, rel=1e-6)
            assert torch.equal(got["next", "observation"][row], last["next", "observation"])
            assert torch.equal(got["observation"][row], played["observation"][i, t])
            row += 1


def test_agrees_with_torchrl_s_multi_step_transform():
    torch.manual_seed(0)
    collector = VectorCollector(make_env("CartPole-v1", 2), None, frames_per_batch=2 * 40, seed=0)
    theirs = TensorDictReplayBuffer(
        storage=LazyTensorStorage(1000, ndim=2),
        transform=MultiStepTransform(n_steps=3, gamma=0.9),
        batch_size=8,
    )
    ours = ahead(3, 0.9, 2, 1000)
    for _ in range(4):
        batch = collector.next()
        ours.extend(batch.transpose(0, 1).reshape(-1))
        theirs.extend(batch.clone())
    stored = theirs[:].reshape(-1)
    expected = {
        tuple(row["observation"].tolist()): row
        for row in stored
        if row["observation"].any() and not row["next", "truncated"].any()
    }
    checked = 0
    for row in ours.sample():
        found = expected.get(tuple(row["observation"].tolist()))
        if found is None or row["steps_to_next_obs"] < 3:
            continue
        checked += 1
        assert torch.allclose(row["next", "reward"], found["next", "reward"])
        assert torch.equal(row["next", "observation"], found["next", "observation"])
    assert checked > 200


def test_one_step_is_the_row_itself():
    buffer = ahead(1, 0.9)
    buffer.extend(steps([1, 2, 3]))
    batch = buffer.sample()
    assert batch["next", "reward"].flatten().tolist() == [1, 2, 3]
    assert "steps_to_next_obs" not in batch


@STORAGES
@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_it_goes_on_exactly(n, prioritized, kind, tmp_path):
    def make():
        sampler = {"sampler": PrioritizedSampler(50, 0.6, 0.4)} if prioritized else {}
        return buffer_of(storage=kind(50), sample_unit=NStep(n, 0.9), batch_size=16, **sampler)

    one, other = make(), make()
    for k in range(25):
        one.extend(rows(3 * k, 3))
    batch = one.sample()
    batch["td_error"] = torch.rand(16)
    one.update_tensordict_priority(batch)
    through_a_file(tmp_path, one, other)
    assert len(other) == len(one) == 50
    assert_all_equal(goes_on(other, 75), goes_on(one, 75))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 0.9), "n must be at least 1, got 0"),
        ((3, 1.5), r"gamma must be in \[0, 1\], got 1.5"),
        ((3, 0.9, 0), "num_envs must be at least 1, got 0"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises(ValueError, match=words):
        NStep(*arguments)
