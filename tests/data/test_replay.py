"""The replay buffer: what it keeps, n-step returns, gaps, priorities, its state."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import MultiStepTransform

from composerl.bookkeeping.checkpoint import load_tree, save_tree
from composerl.data import ReplayBuffer, VectorCollector
from composerl.envs import make_env


def steps(rewards, *, start=0.0, terminated=(), truncated=()):
    """One environment: observations start, start + 1, ...; the flags by position."""
    number = len(rewards)
    obs = start + torch.arange(number).float().unsqueeze(1)
    flags = torch.zeros(2, number, 1, dtype=torch.bool)
    flags[0, list(terminated)] = True
    flags[1, list(truncated)] = True
    return TensorDict(
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


def every_row(buffer):
    """Each row once, in the order of storage."""
    buffer._draw = lambda size: (torch.arange(len(buffer)), {})
    return buffer.sample()


def test_three_steps_by_hand():
    """gamma 0.5, n 3, rewards 1 2 4 8 16, the third step terminates.

    Row 0: 1 + 0.5*2 + 0.25*4 = 3, 3 steps, terminated. Row 1: 2 + 0.5*4 = 4, 2 steps, terminated.
    Row 2: 4, 1 step, terminated. Row 3: 8 + 0.5*16 = 16, 2 steps (no more are stored), not
    terminated. Row 4: 16, 1 step.
    """
    buffer = ReplayBuffer(10, 2, n_step=3, gamma=0.5)
    buffer.extend(steps([1, 2, 4, 8, 16], terminated=[2]))
    batch = every_row(buffer)
    assert batch["next", "reward"].flatten().tolist() == [3, 4, 4, 16, 16]
    assert batch["steps_to_next_obs"].flatten().tolist() == [3, 2, 1, 2, 1]
    ended = [True, True, True, False, False]
    assert batch["next", "terminated"].flatten().tolist() == ended
    assert batch["next", "observation"].flatten().tolist() == [3, 3, 3, 5, 5]
    assert batch["observation"].flatten().tolist() == [0, 1, 2, 3, 4]


def test_a_truncated_row_ends_the_look_ahead_and_still_bootstraps():
    buffer = ReplayBuffer(10, 2, n_step=3, gamma=1.0)
    buffer.extend(steps([1, 1, 1, 1], truncated=[1]))
    batch = every_row(buffer)
    assert batch["steps_to_next_obs"].flatten().tolist() == [2, 1, 2, 1]
    assert not batch["next", "terminated"].any()
    assert batch["next", "truncated"].flatten().tolist() == [True, True, False, False]


def test_a_gap_between_batches_is_not_crossed():
    buffer = ReplayBuffer(10, 2, n_step=3, gamma=1.0)
    buffer.extend(steps([1, 1]))
    buffer.extend(steps([1, 1], start=2))  # goes on
    buffer.extend(steps([1, 1], start=9))  # does not
    batch = every_row(buffer)
    assert batch["steps_to_next_obs"].flatten().tolist() == [3, 3, 2, 1, 2, 1]
    assert batch["next", "truncated"].flatten().tolist() == [False, True, True, True, False, False]


def test_the_oldest_rows_go_and_the_ring_s_seam_is_not_crossed():
    buffer = ReplayBuffer(4, 2, n_step=3, gamma=1.0)
    for t in range(6):
        buffer.extend(steps([t], start=t))
    batch = every_row(buffer)
    assert len(buffer) == 4
    assert batch["observation"].flatten().tolist() == [4, 5, 2, 3]
    assert batch["steps_to_next_obs"].flatten().tolist() == [2, 1, 3, 3]
    assert batch["next", "reward"].flatten().tolist() == [9, 5, 9, 12]


@pytest.mark.parametrize("chunk", [1, 5])
def test_several_environments_against_a_plain_loop(chunk):
    torch.manual_seed(0)
    collector = VectorCollector(make_env("CartPole-v1", 3), None, frames_per_batch=3 * 5, seed=0)
    batches = [collector.next() for _ in range(12)]
    played = torch.cat(batches, 1)
    buffer = ReplayBuffer(1000, 64, n_step=4, gamma=0.9)
    for batch in batches:
        for part in batch.split(chunk, 1):
            buffer.extend(part)
    got = every_row(buffer)
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
    ours = ReplayBuffer(1000, 8, n_step=3, gamma=0.9)
    for _ in range(4):
        batch = collector.next()
        ours.extend(batch)
        theirs.extend(batch.clone())
    stored = theirs[:].reshape(-1)
    expected = {
        tuple(row["observation"].tolist()): row
        for row in stored
        if row["observation"].any() and not row["next", "truncated"].any()
    }
    checked = 0
    for row in every_row(ours):
        found = expected.get(tuple(row["observation"].tolist()))
        if found is None or row["steps_to_next_obs"] < 3:
            continue
        checked += 1
        assert torch.allclose(row["next", "reward"], found["next", "reward"])
        assert torch.equal(row["next", "observation"], found["next", "observation"])
    assert checked > 200


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("n_step", [1, 3])
def test_its_state_goes_on_exactly(n_step, prioritized, tmp_path):
    def make():
        return ReplayBuffer(50, 16, n_step=n_step, gamma=0.9, prioritized=prioritized)

    def go_on(buffer):
        torch.manual_seed(0)
        import numpy as np

        np.random.seed(0)
        samples = []
        for k in range(6):
            buffer.extend(steps([1.0, 2, 3], start=100 + 3 * k))
            batch = buffer.sample()
            samples.append(batch.clone())
            batch["td_error"] = torch.rand(16)
            buffer.update_tensordict_priority(batch)
        return torch.stack(samples)

    one = make()
    for k in range(25):
        one.extend(steps([1.0, 2, 3], start=3 * k, terminated=[2] if k % 4 == 0 else []))
    batch = one.sample()
    batch["td_error"] = torch.rand(16)
    one.update_tensordict_priority(batch)
    save_tree(tmp_path / "state", "checkpoint", deepcopy(one.state_dict()))
    other = make()
    other.load_state_dict(load_tree(tmp_path / "state", "checkpoint"))
    assert len(other) == len(one) == 50
    a, b = go_on(one), go_on(other)
    for key in a.keys(True, True):
        assert torch.equal(a[key], b[key]), key


def test_an_empty_state_and_pixels():
    buffer = ReplayBuffer(20, 4)
    other = ReplayBuffer(20, 4)
    other.load_state_dict(buffer.state_dict())
    pixels = steps([1.0] * 5)
    for where in (pixels, pixels["next"]):
        where["observation"] = torch.randint(0, 255, (5, 1, 8, 8), dtype=torch.uint8)
    other.extend(pixels)
    assert other.sample()["observation"].dtype == torch.uint8
    assert torch.equal(other[:]["observation"], pixels["observation"])
    assert other.add(pixels[0]) == 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"capacity": 0}, "capacity must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"n_step": 0}, "n_step must be at least 1, got 0"),
        ({"gamma": 1.5}, r"gamma must be in \[0, 1\], got 1.5"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises(ValueError, match=words):
        ReplayBuffer(**({"capacity": 10, "batch_size": 2} | arguments))


def test_misuse_is_said():
    buffer = ReplayBuffer(4, 2)
    with pytest.raises(RuntimeError, match="empty"):
        buffer.sample()
    with pytest.raises(ValueError, match="6 rows does not fit into 4"):
        buffer.extend(steps([1.0] * 6))
    buffer.extend(steps([1.0]))
    with pytest.raises(ValueError, match="batches of 1 environments"):
        buffer.extend(torch.stack([steps([1.0]), steps([1.0])]))
    larger = ReplayBuffer(8, 2)
    larger.extend(steps([1.0] * 8))
    with pytest.raises(ValueError, match="capacity of 8, this one takes 4"):
        buffer.load_state_dict(larger.state_dict())
    with pytest.raises(ValueError, match="capacity of 4, this one takes 8"):
        larger.load_state_dict(buffer.state_dict())


@pytest.mark.parametrize("prioritized", [False, True])
def test_emptied_it_starts_anew(prioritized):
    buffer = ReplayBuffer(8, 20, prioritized=prioritized)
    buffer.extend(steps([1.0] * 5))
    buffer.empty()
    assert len(buffer) == 0
    buffer.extend(steps([7.0, 8.0]))
    assert set(buffer.sample()["next", "reward"].flatten().tolist()) == {7.0, 8.0}


def test_transforms_apply_to_samples():
    from torchrl.envs import RewardScaling

    buffer = ReplayBuffer(8, 20)
    buffer.append_transform(RewardScaling(0.0, 10.0, in_keys=[("next", "reward")]))
    buffer.extend(steps([1.0] * 5))
    assert buffer.sample()["next", "reward"].eq(10).all()
