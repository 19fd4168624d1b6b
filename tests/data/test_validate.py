"""What is refused, with source, key and row, and what is put right."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from composerl.data import Dataset, validate
from composerl.envs.spaces import Spaces

PENDULUM = Spaces(obs_shape=(3,), low=(-2.0,), high=(2.0,))
CARTPOLE = Spaces(obs_shape=(3,), num_actions=2)


def make(raw, *without, **changes):
    return Dataset.from_arrays(
        {key: value for key, value in {**raw, **changes}.items() if key not in without}, "file"
    )


def test_columns_and_flat_actions_get_their_shape(raw):
    column = {key: raw[key][:, None] for key in ("rewards", "terminals", "timeouts")}
    data = validate(make(raw, actions=raw["actions"][:, 0].astype(np.float64), **column), PENDULUM)
    assert data.rewards.tolist() == [1, 2, 3, 4, 5]
    assert data.actions.shape == (5, 1)
    assert data.actions.dtype == np.float32
    assert data.actions[:, 0].tolist() == [-2, -1, 0, 1, 2]
    discrete = validate(make(raw, actions=np.array([[0], [1], [1], [0], [1]])), CARTPOLE)
    assert discrete.actions.tolist() == [0, 1, 1, 0, 1]
    assert discrete.actions.dtype == np.int64


def test_pixels_stay_uint8_and_other_numbers_become_float32(raw):
    spaces = Spaces(obs_shape=(3,), obs_dtype="uint8", low=(-2.0,), high=(2.0,))
    pixels = {k: raw[k].astype(np.uint8) for k in ("observations", "next_observations")}
    assert validate(make(raw, **pixels), spaces).observations.dtype == np.uint8
    assert validate(make(raw, **pixels), PENDULUM).observations.dtype == np.float32
    assert validate(make(raw), spaces).observations.dtype == np.uint8
    raw["observations"][1, 0] = 0.5
    with pytest.raises(ValueError, match=r"row 1 of observations is 0.5 at \(0,\), expected a pi"):
        validate(make(raw), spaces)


def bad(key, value):
    def change(raw):
        raw[key] = value(raw[key]) if callable(value) else value

    return change


def put(key, row, value):
    def change(raw):
        raw[key] = raw[key].astype(np.float64)
        raw[key][row] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.pop("actions"), "no actions in the file; it has next_obs.*observations"),
        (bad("rewards", lambda v: v[:4]), "rewards has 4 rows, but observations has 5"),
        (bad("terminals", lambda v: v[:4]), "terminals has 4 rows, but observations has 5"),
        (bad("rewards", lambda v: np.stack([v, v], 1)), r"rewards has shape \(5, 2\)"),
        (bad("observations", np.zeros((0, 3))), "observations is empty"),
        (bad("observations", np.float32(1)), "observations is a single number"),
        (bad("next_observations", lambda v: v[:, :2]), r"next_observations has shape \(5, 2\)"),
        (bad("actions", np.array([None] * 5)), "actions has type object.*never unpickled"),
        (bad("actions", np.array(list("abcde"))), "actions has type <U1, expected plain numbers"),
        (bad("rewards", np.ones(5, complex)), "rewards has type complex128"),
        (put("rewards", 3, np.nan), "row 3 of rewards is nan, expected finite"),
        (put("observations", (2, 1), np.inf), r"row 2 of observations is inf at \(1,\)"),
        (put("next_observations", (4, 0), -np.inf), "row 4 of next_observations is -inf"),
        (put("actions", 1, np.nan), "row 1 of actions is nan"),
        (put("rewards", 0, 1e60), r"row 0 of rewards is 1e\+60, expected finite"),
        (put("terminals", 2, 3), "row 2 of terminals is 3.0, expected 0 or 1"),
    ],
)
def test_bad_arrays_are_refused_with_key_and_row(raw, change, message):
    change(raw)
    with pytest.raises(ValueError, match=f"^file: {message}"):
        Dataset.from_arrays(raw, "file")


@pytest.mark.parametrize(
    ("change", "spaces", "message"),
    [
        (
            lambda raw: None,
            Spaces(obs_shape=(4,), low=(-2.0,), high=(2.0,)),
            r"observations has rows of shape \(3,\).*have \(4,\); it is a dataset of another env",
        ),
        (
            lambda raw: None,
            Spaces(obs_shape=(3,), low=(-2.0,) * 2, high=(2.0,) * 2),
            r"actions has rows of shape \(1,\).*have \(2,\); it is a dataset of another env",
        ),
        (lambda raw: None, CARTPOLE, "actions are floats, but the environment's are integers"),
        (
            bad("actions", np.array([0, 1, 1, 0, 1])),
            PENDULUM,
            "actions are integers, but the environment's are floats",
        ),
        (bad("actions", np.array([0, 1, 2, 0, 1])), CARTPOLE, "row 2 of actions is 2, expected an"),
        (bad("actions", np.array([0, -1, 1, 0, 1])), CARTPOLE, "row 1 of actions is -1, expected"),
        (bad("actions", np.zeros((5, 2), int)), CARTPOLE, r"actions has rows of shape \(2,\)"),
        (
            put("actions", 3, 2.1),
            PENDULUM,
            r"row 3 of actions is 2.0999.* at \(0,\), outside.*\[-2.0\] to \[2.0\]",
        ),
        (put("actions", 0, -2.001), PENDULUM, r"row 0 of actions is -2.00\d* at \(0,\), outside"),
    ],
)
def test_what_does_not_fit_the_environment_is_refused(raw, change, spaces, message):
    change(raw)
    with pytest.raises(ValueError, match=f"^file: {message}"):
        validate(make(raw), spaces)


def test_rows_are_counted_as_in_the_file(raw):
    """Row 2 is dropped, so that row 4 of the file is row 3 of the dataset."""
    raw["actions"][4] = 3.0
    data = make(raw, "next_observations")
    with pytest.raises(ValueError, match=r"row 4 of actions is 3\.0"):
        validate(data, PENDULUM)


def test_rounding_is_clipped(raw):
    raw["actions"][4] = 2.0003  # the tolerance is 1e-4 of a range of 4
    raw["actions"][0] = -2.0003
    assert validate(make(raw), PENDULUM).actions[:, 0].tolist() == [-2, -1, 0, 1, 2]


def test_unbounded_actions_are_not_clipped(raw):
    spaces = Spaces(obs_shape=(3,), low=(-np.inf,), high=(np.inf,))
    raw["actions"][4] = 1e6
    assert validate(make(raw), spaces).actions[4, 0] == 1e6


def test_a_dataset_made_by_hand_is_checked_as_well(raw):
    data = dataclasses.replace(make(raw), rewards=np.array([1, 2, np.nan, 4, 5]))
    with pytest.raises(ValueError, match="row 2 of rewards is nan"):
        validate(data, PENDULUM)
    data = dataclasses.replace(make(raw), rewards=np.zeros(3))
    with pytest.raises(ValueError, match="rewards has 3 rows"):
        validate(data, PENDULUM)
