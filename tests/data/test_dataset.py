"""What is derived and dropped, on arrays small enough to read."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from composerl.data import Dataset


def firsts(array):
    return array[:, 0].tolist()


def make(raw, *without, **changes):
    return Dataset.from_arrays(
        {key: value for key, value in {**raw, **changes}.items() if key not in without}, "file"
    )


def test_a_whole_dataset_is_left_as_it_is(raw):
    data = make(raw)
    for key, value in raw.items():
        np.testing.assert_array_equal(getattr(data, key), value)
    assert (data.dropped, data.replaced, data.source) == (0, 0, "file")
    assert data.episodes().tolist() == [[0, 3], [3, 5]]
    assert data.returns().tolist() == [6.0, 9.0]


def test_timeouts_are_derived_where_the_next_row_does_not_follow(raw):
    data = make(raw, "timeouts")
    assert data.timeouts.tolist() == [False, False, True, False, False]
    assert data.dropped == 0
    assert firsts(data.next_observations) == [1, 2, 3, 11, 12]


def test_the_last_row_ends_its_episode_by_truncation(raw):
    data = make(raw, terminals=np.zeros(5), timeouts=np.zeros(5))
    assert data.timeouts.tolist() == [False, False, False, False, True]
    assert not data.terminals.any()


def test_next_observations_are_derived_within_an_episode(raw):
    """Row 2 was cut and has no successor; terminal row 4 keeps its own observation."""
    data = make(raw, "next_observations")
    assert firsts(data.observations) == [0, 1, 10, 11]
    assert firsts(data.next_observations) == [1, 2, 11, 11]
    assert data.timeouts.tolist() == [False, True, False, False]
    assert data.terminals.tolist() == [False, False, False, True]
    assert data.rewards.tolist() == [1, 2, 4, 5]
    assert (data.dropped, data.rows.tolist()) == (1, [0, 1, 3, 4])
    assert data.episodes().tolist() == [[0, 2], [2, 4]]


def test_an_unfinished_last_row_without_successor_is_dropped(raw):
    data = make(raw, "next_observations", terminals=np.zeros(5))
    assert firsts(data.observations) == [0, 1, 10]
    assert data.timeouts.tolist() == [False, True, True]
    assert data.dropped == 2


def test_neither_timeouts_nor_next_observations_warns_and_splits_at_terminals(raw):
    terminals = np.array([0, 0, 1, 0, 0])
    with pytest.warns(UserWarning, match="file has neither timeouts nor next_observations"):
        data = make(raw, "next_observations", "timeouts", terminals=terminals)
    assert firsts(data.next_observations) == [1, 2, 2, 11]
    assert data.terminals.tolist() == [False, False, True, False]
    assert data.timeouts.tolist() == [False, False, False, True]


def test_a_truncated_row_that_leads_into_the_next_episode_is_dropped(raw):
    leaked = raw["next_observations"].copy()
    leaked[2] = raw["observations"][3]
    data = make(raw, next_observations=leaked)
    assert firsts(data.observations) == [0, 1, 10, 11]
    assert firsts(data.next_observations) == [1, 2, 11, 12]
    assert data.timeouts.tolist() == [False, True, False, False]
    assert (data.dropped, data.replaced) == (1, 0)


def test_a_terminal_row_that_leads_into_the_next_episode_is_kept_with_a_placeholder(raw):
    leaked = raw["next_observations"].copy()
    leaked[2] = raw["observations"][3]
    flags = {"terminals": raw["timeouts"], "timeouts": raw["terminals"]}
    before = leaked.copy()
    data = make(raw, next_observations=leaked, **flags)
    # All ends that can be checked leak, so the last, cut row holds a filler and goes too.
    assert firsts(data.next_observations) == [1, 2, 2, 11]
    assert data.terminals.tolist() == [False, False, True, False]
    assert data.timeouts.tolist() == [False, False, False, True]
    assert (data.dropped, data.replaced) == (1, 1)
    np.testing.assert_array_equal(leaked, before)  # the caller's array is not written to


def test_the_last_row_stays_where_some_end_is_sound():
    """Episodes of one row each: the first leaks, the second does not, the third is the last."""
    obs = np.array([[0.0], [5.0], [9.0]])
    following = np.array([[5.0], [6.0], [10.0]])
    arrays = {
        "observations": obs,
        "next_observations": following,
        "actions": np.zeros(3),
        "rewards": np.arange(3.0),
        "terminals": np.zeros(3),
        "timeouts": np.ones(3),
    }
    data = Dataset.from_arrays(arrays, "file")
    assert firsts(data.observations) == [5, 9]
    assert data.dropped == 1


def test_no_row_left_is_refused(raw):
    with pytest.raises(ValueError, match="none of the 5 rows has a next observation"):
        make(raw, "next_observations", terminals=np.zeros(5), timeouts=np.ones(5))


def test_terminal_wins_over_timeout(raw):
    data = make(raw, timeouts=raw["timeouts"] | raw["terminals"])
    assert data.terminals[4]
    assert not data.timeouts[4]


def test_fingerprint_is_of_content(raw):
    data = make(raw)
    assert data.fingerprint == dataclasses.replace(data, source="elsewhere").fingerprint
    for key, value in raw.items():
        changed = value.copy()
        changed[1] = ~changed[1] if value.dtype == bool else changed[1] + 1
        other = dataclasses.replace(data, **{key: changed})
        assert other.fingerprint != data.fingerprint, key
