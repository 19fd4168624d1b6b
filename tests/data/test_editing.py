"""Datasets made of datasets: mixed, and filtered by return."""

from __future__ import annotations

import numpy as np
import pytest

from composerl.data import Dataset, filter_episodes, generate, mix, validate


def episodes(returns, length=2, kind=0.0):
    """Episodes of that many rows with these returns; the observations tell which dataset it is."""
    number = len(returns)
    ends = np.arange(number * length) % length == length - 1
    observations = np.full((number * length, 3), kind, np.float32)
    return Dataset(
        observations=observations,
        actions=np.zeros((number * length, 1), np.float32),
        rewards=np.repeat(np.asarray(returns, np.float32) / length, length),
        next_observations=observations,
        terminals=np.zeros_like(ends),
        timeouts=ends,
        source=f"file {kind:g}",
    )


def test_without_a_share_all_of_both_are_there():
    mixed = mix(episodes([1, 2]), episodes([3], kind=1.0))
    assert mixed.returns().tolist() == [1.0, 2.0, 3.0]
    assert mixed.observations[:, 0].tolist() == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("share", "counts"),
    [(0.5, (30, 30)), (0.25, (10, 30)), (0.75, (30, 10)), (0.01, (1, 30))],
)
def test_share_of_the_rows(share, counts):
    """One of 30 and 30 episodes stays whole; of the other at least one is taken."""
    mixed = mix(episodes(range(30)), episodes(range(30), kind=1.0), share)
    kinds = mixed.observations[mixed.episodes()[:, 0], 0]
    assert ((kinds == 0).sum(), (kinds == 1).sum()) == counts
    assert (mixed.observations[:, 0] == 0).mean() == pytest.approx(share, abs=0.03)


def test_episodes_of_other_lengths_and_the_seed():
    first, second = episodes(range(30)), episodes(range(30), length=4, kind=1.0)
    one, same, other = (mix(first, second, 0.5, seed=seed) for seed in (0, 0, 1))
    assert len(one) == 120
    assert one.fingerprint == same.fingerprint != other.fingerprint
    drawn = one.returns()[30:]
    assert (np.diff(drawn) > 0).all()  # in their order


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, float("nan")])
def test_bad_share(share):
    with pytest.raises(ValueError, match="between 0 and 1"):
        mix(episodes([1]), episodes([2]), share)


def test_what_does_not_mix():
    with pytest.raises(ValueError, match=r"observations of CartPole.* shape \(4,\), .* do not mix"):
        mix(generate("CartPole-v1", "random", 50, 0), generate("Pendulum-v1", "random", 50, 0))


def test_returns_in_a_range():
    data = episodes([3, 1, 2, 5, 4])
    assert filter_episodes(data, min_return=3).returns().tolist() == [3, 5, 4]
    assert filter_episodes(data, max_return=2).returns().tolist() == [1, 2]
    assert filter_episodes(data, 2, 4).returns().tolist() == [3, 2, 4]
    assert filter_episodes(data, top=0.5).returns().tolist() == [3, 5, 4]
    assert filter_episodes(data, max_return=4, top=0.01).returns().tolist() == [4]


def test_rows_are_named_as_the_source_counts_them():
    data = episodes([1, 2, 3])
    data.actions[4] = 9.0
    kept = filter_episodes(data, min_return=2)
    with pytest.raises(ValueError, match=r"file 0: row 4 of actions is 9\.0"):
        validate(kept, "Pendulum-v1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "say what to keep"),
        ({"min_return": 9}, "none of 2 episodes has a return from 9 to inf; they have 1 to 2"),
        ({"top": 0.0}, "top must be a share"),
        ({"top": 1.5}, "top must be a share"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        filter_episodes(episodes([1, 2]), **options)
