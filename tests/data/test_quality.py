"""What a dataset's quality looks like, and which traps are told."""

from __future__ import annotations

import numpy as np
import pytest

from composerl.data import Dataset, cautions, filter_episodes, generate, summarize
from composerl.data.offline.quality import at_bounds, returns_by_bin


def walks(speeds, length=100, noise=0.02, seed=0):
    """Episodes that leave the origin at their speed, which is also their reward per step."""
    rng = np.random.default_rng(seed)
    steps = np.arange(length + 1)
    paths = [np.stack([speed * steps, np.sqrt(speed * steps)], 1) for speed in speeds]
    paths = [(path + noise * rng.standard_normal(path.shape)).astype(np.float32) for path in paths]
    ends = np.arange(len(speeds) * length) % length == length - 1
    return Dataset(
        observations=np.concatenate([path[:-1] for path in paths]),
        actions=rng.uniform(-0.5, 0.5, (len(ends), 1)).astype(np.float32),
        rewards=np.repeat(np.asarray(speeds, np.float32), length),
        next_observations=np.concatenate([path[1:] for path in paths]),
        terminals=np.zeros_like(ends),
        timeouts=ends,
        source="walks",
    )


def test_returns_by_bin(raw):
    """Returns 6 (3 rows) and 9 (2 rows): the first and the last of eight ranges."""
    bins = returns_by_bin(Dataset(**raw))
    assert len(bins) == 8
    assert bins[0] == {"from": 6.0, "to": 6.375, "episodes": 1, "rows": 3}
    assert bins[-1] == {"from": 8.625, "to": 9.0, "episodes": 1, "rows": 2}
    assert sum(part["episodes"] for part in bins) == 2
    alike = walks([1.0] * 3)
    assert returns_by_bin(alike) == [{"from": 100.0, "to": 100.0, "episodes": 3, "rows": 300}]


def test_actions_at_their_bounds(raw):
    """-2 and 2 of five in [-2, 2]; none if the range is [-3, 3]; two if the data's own is taken."""
    data, wide = Dataset(**raw), (np.array([-3.0]), np.array([3.0]))
    assert at_bounds(data) == pytest.approx(0.4)
    assert at_bounds(data, wide) == 0.0
    assert at_bounds(generate("CartPole-v1", "random", 50, 0)) is None
    (sentence,) = cautions(data)
    assert sentence.startswith("40% of the rows have an action at an end of its range")
    assert cautions(data, wide) == []


def test_timeouts_taken_for_ends():
    """CartPole's scripted episodes last for 500 steps, which is its time limit."""
    data = generate("CartPole-v1", "scripted", 2500, 0)
    assert cautions(data) == []
    data.terminals[:], data.timeouts[:] = data.terminals | data.timeouts, False
    (sentence,) = cautions(data)
    assert sentence.startswith("5 episodes have a terminal after exactly 500 steps, and none is")
    falls = generate("CartPole-v1", "random", 2500, 0)
    assert cautions(falls) == []


def test_few_bad_episodes_that_hold_the_start():
    """Two of twenty never leave: they have nearly all of the rows where the others begin."""
    data = walks([0.0, 0.0] + [1.0] * 18)
    (sentence,) = cautions(data)
    assert sentence.startswith("the 2 worst of 20 episodes (returns 0 to 0) hold 9")
    assert "data filter --min-return" in sentence
    assert cautions(filter_episodes(data, min_return=1.0)) == []


def test_nothing_is_said_where_all_leave_or_starts_are_spread():
    assert cautions(walks(np.linspace(0.8, 1.2, 20))) == []
    assert cautions(walks([0.0] * 20)) == []
    assert cautions(walks([0.0] + [1.0] * 5)) == []  # too few to speak of classes
    for behaviour in ("random", "noisy", "mixed"):
        assert cautions(generate("Pendulum-v1", behaviour, 4000, 0)) == []


def test_summary_has_it_all(raw):
    summary = summarize(Dataset(**raw))
    assert summary["rows_with_action_at_bound"] == pytest.approx(0.4)
    assert len(summary["episodes_by_return"]) == 8
    assert len(summary["warnings"]) == 1
