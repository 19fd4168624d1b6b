"""Replay buffers as datasets: order, episodes, ends; what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from data.rows import rows
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from composerl.data import LatestStorage, MixedReplayBuffer, PackedStorage, replay_dataset


def buffer(size, *batches, storage=PackedStorage):
    made = TensorDictReplayBuffer(storage=storage(size), batch_size=4)
    for batch in batches:
        made.extend(batch)
    return made


def test_rows_in_time_and_the_last_one_cut():
    """Episodes of 7: a terminal at row 6, a timeout at row 13, the third cut after two steps."""
    data = replay_dataset(buffer(50, rows(0, 16)).state_dict(), "run")
    assert data.actions.tolist() == list(range(16))
    assert np.flatnonzero(data.terminals).tolist() == [6]
    assert np.flatnonzero(data.timeouts).tolist() == [13, 15]
    assert data.rewards.tolist() == [t / 8 for t in range(16)]


def test_a_full_buffer_starts_with_its_oldest_row():
    data = replay_dataset(buffer(10, rows(0, 8), rows(8, 8)).state_dict(), "run")
    assert data.actions.tolist() == list(range(6, 16))
    assert data.episodes().tolist() == [[0, 1], [1, 8], [8, 10]]


def test_environments_stepped_in_turns():
    """Rows 0 and 100, 1 and 101, ...: each environment's episodes are put together."""
    pairs = [torch.cat([rows(t, 1), rows(98 + t, 1)]) for t in range(10)]
    data = replay_dataset(buffer(50, *pairs).state_dict(), "run")
    assert data.actions.tolist() == [
        *range(7), *range(98, 105), *range(7, 10), *range(105, 108),
    ]  # fmt: skip
    assert data.episodes()[:, 1].tolist() == [7, 14, 17, 20]
    joined = ~(data.terminals | data.timeouts)[:-1]
    assert (data.next_observations[:-1] == data.observations[1:]).all(1)[joined].all()


def test_without_trajectories_what_does_not_follow_is_a_cut():
    batch = torch.cat([rows(0, 3), rows(20, 3)]).exclude("collector")
    data = replay_dataset(buffer(50, batch).state_dict(), "run")
    assert np.flatnonzero(data.timeouts).tolist() == [2, 5]


def test_scaled_rewards_are_undone_and_the_buffer_untouched():
    made = buffer(50, rows(0, 5))
    before = made[:].clone()
    data = replay_dataset(made.state_dict(), "run", reward_scale=0.5, reward_shift=1.0)
    np.testing.assert_allclose(data.rewards, (np.arange(5) / 8 - 1) / 0.5)
    data.rewards[:] = 7
    assert (made[:] == before).all()


def test_imagined_rows_are_no_data():
    real, imagined = buffer(9, rows(0, 3)), buffer(2, rows(50, 8), storage=LatestStorage)
    state = {"buffer": MixedReplayBuffer(real, imagined).state_dict(), "update": {"x": [1, 2]}}
    assert replay_dataset(state, "run").actions.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (buffer(9), "run holds no replay buffer: its recipe keeps none, or no rows"),
        (buffer(9, rows(0, 3), storage=LazyTensorStorage), "rows in a PackedStorage"),
        (
            buffer(9, rows(0, 3).exclude("next")),
            r"no transitions, as next.reward, .* is not in it; it has action, coll",
        ),
        (
            buffer(9, rows(0, 3).set(("next", "reward"), torch.tensor([[0.0], [torch.nan], [0]]))),
            "run: row 1 of rewards is nan, expected finite numbers",
        ),
    ],
)
def test_refusals(made, message):
    with pytest.raises(ValueError, match=message):
        replay_dataset(made.state_dict(), "run")


def test_the_state_may_be_anything():
    with pytest.raises(ValueError, match="no replay buffer"):
        replay_dataset({"a": {"rows": 3}, "b": TensorDict(), "c": None}, "run")
