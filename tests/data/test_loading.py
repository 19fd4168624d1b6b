"""Datasets by name: behaviours and files, rewards scaled, actions inside their bounds."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

import composerl.data
from composerl.data import load_dataset


@pytest.fixture
def file(raw, tmp_path):
    np.savez(tmp_path / "data.npz", **raw)
    return str(tmp_path / "data.npz")


def test_rewards_are_scaled_then_shifted(file):
    data = load_dataset(file, "Pendulum-v1", reward_scale=0.5, reward_shift=-1.0)
    assert data.rewards.tolist() == [-0.5, 0.0, 0.5, 1.0, 1.5]
    assert data.rewards.dtype == np.float32
    assert load_dataset(file, "Pendulum-v1").returns().tolist() == [6.0, 9.0]


def test_float_actions_are_just_inside_the_bounds(file):
    """1e-3 of half a range of 4: 2e-3. A squashed policy has to reach atanh(0.999), no further."""
    actions = torch.from_numpy(load_dataset(file, "Pendulum-v1").actions)
    expected = torch.tensor([[-1.998], [-1.0], [0.0], [1.0], [1.998]])
    torch.testing.assert_close(actions, expected, rtol=0, atol=1e-6)
    assert torch.atanh(actions / 2).abs().max() < 4


def test_rewards_are_scaled_by_the_returns(file):
    """Returns 6 and 9: 1000 / 3, and a shift of -1 after it."""
    data = load_dataset(file, "Pendulum-v1", reward_scale="returns", reward_shift=-1.0)
    assert data.reward_scale == pytest.approx(1000 / 3)
    np.testing.assert_allclose(data.rewards, np.arange(1, 6) * 1000 / 3 - 1, rtol=1e-6)
    assert load_dataset(file, "Pendulum-v1", reward_scale=0.5).reward_scale == 0.5


def test_rows_that_had_to_go_are_told(raw, tmp_path, caplog):
    del raw["next_observations"]
    np.savez(tmp_path / "data.npz", **raw)
    data = load_dataset(str(tmp_path / "data.npz"), "Pendulum-v1")
    assert data.dropped == 1
    assert "data.npz: 1 rows dropped" in caplog.text


def test_a_behaviour_by_name_prints_nothing(capfd, monkeypatch):
    # A run in this process shows what is logged, from then on.
    monkeypatch.setattr(logging.getLogger("composerl"), "handlers", [])
    data = load_dataset("mixed", "CartPole-v1", size=300, seed=4)
    assert len(data) == 300
    assert data.actions.dtype == np.int64
    assert data.fingerprint == load_dataset("mixed", "CartPole-v1", size=300, seed=4).fingerprint
    assert data.fingerprint != load_dataset("mixed", "CartPole-v1", size=300).fingerprint
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("expert", ValueError, "unknown dataset 'expert'.*random, scripted, noisy, mixed"),
        ("nothing.npz", FileNotFoundError, r"dataset nothing.npz does not exist"),
        ("some/where", FileNotFoundError, r"dataset some/where does not exist"),
    ],
)
def test_unknown_names(name, error, message):
    with pytest.raises(error, match=message):
        load_dataset(name, "Pendulum-v1")


def test_a_file_of_another_environment(file):
    with pytest.raises(ValueError, match=r"data.npz: observations has rows of shape \(3,\)"):
        load_dataset(file, "CartPole-v1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reward_scale": 0.0}, "reward_scale must be finite and not 0"),
        ({"reward_scale": float("inf")}, "reward_scale must be finite and not 0"),
        ({"reward_shift": float("nan")}, "reward_shift finite"),
    ],
)
def test_bad_arguments(file, arguments, message):
    with pytest.raises(ValueError, match=message):
        load_dataset(file, "Pendulum-v1", **arguments)


def test_the_public_names_are_all_there():
    for name in composerl.data.__all__:
        assert getattr(composerl.data, name) is not None
    assert set(composerl.data.__all__) <= set(dir(composerl.data))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        composerl.data.nonsense  # noqa: B018
