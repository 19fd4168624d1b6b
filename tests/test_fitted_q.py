"""Fitted Q evaluation of policies: values that are known, seeds, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from composerl import Policy
from composerl.analysis import fitted_q
from composerl.data import Dataset, generate
from composerl.envs import Spaces
from composerl.modules import categorical_actor, gaussian_actor

PENDULUM = Spaces.of("Pendulum-v1")
QUICK = {"steps": 300, "hidden": (16,), "gamma": 0.8, "lr": 3e-3}


def pendulum(seed=0):
    torch.manual_seed(seed)
    return Policy(gaussian_actor(PENDULUM, (8,)).eval(), None, PENDULUM)


@pytest.fixture(scope="module")
def data():
    return generate("Pendulum-v1", "mixed", 1400, 0, cache=False)


def test_a_reward_of_three_for_ever(data):
    """3 / (1 - 0.8) = 15, whatever the policy does: the cuts of the data end nothing."""
    paid = replace(data, rewards=np.full(len(data), 3.0, np.float32))
    estimate = fitted_q(pendulum(), paid, **QUICK)
    assert estimate.value == pytest.approx(15.0, rel=0.05)
    assert estimate.apart < 0.5


def test_what_ends_earns_no_more():
    """Each step ends its episode: the value is the reward of the action that the policy takes.

    The observation tells which of two actions is paid, 1 or 0; a policy that always takes action 0
    is paid in half of the states.
    """
    rng = np.random.default_rng(0)
    obs = rng.choice([-1.0, 1.0], (400, 1)).astype(np.float32)
    actions = rng.integers(2, size=400)
    ends = np.ones(400, bool)
    data = Dataset(
        observations=obs, actions=actions, next_observations=obs, terminals=ends, timeouts=~ends,
        rewards=((obs[:, 0] > 0) == (actions == 1)).astype(np.float32),
    )  # fmt: skip
    spaces = Spaces(obs_shape=(1,), num_actions=2)
    actor = categorical_actor(spaces, (4,))
    for p in actor.parameters():
        p.data.zero_()
    actor.module[0].module.trunk[-1].bias.data[0] = 1.0
    estimate = fitted_q(Policy(actor.eval(), None, spaces), data, **QUICK)
    assert estimate.value == pytest.approx((obs[:, 0] < 0).mean(), abs=0.05)


def test_same_seed_same_numbers_and_the_caller_s_are_untouched(data):
    policy, options = pendulum(), QUICK | {"steps": 20}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, same = (fitted_q(policy, data, **options) for _ in range(2))
    assert torch.equal(torch.rand(3), expected)
    assert first == same != fitted_q(policy, data, **options, seed=1)


def test_the_way_is_shown(data):
    shown = []
    options = QUICK | {"steps": 250, "show": lambda step, note: shown.append((step, note))}
    fitted_q(pendulum(), data, **options)
    assert [step for step, _ in shown] == [100, 200, 250]
    assert all(note.startswith("Q ") for _, note in shown)


def test_refusals(data):
    policy = pendulum()
    policy.recurrent = True
    with pytest.raises(ValueError, match="memory"):
        fitted_q(policy, data)
    images = Spaces(obs_shape=(1, 16, 16), obs_dtype="uint8", num_actions=3)
    with pytest.raises(ValueError, match="must be vectors"):
        fitted_q(Policy(pendulum().actor, None, images), data)
    with pytest.raises(RuntimeError, match="diverged"):
        fitted_q(pendulum(), data, steps=30, lr=1e30)
