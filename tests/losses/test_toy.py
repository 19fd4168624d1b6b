"""Two states, known values: what each algorithm must converge to, written down beforehand.

State 0 leads to state 1 with reward 0 whatever is done; in state 1 the actions -1, 0 and 1 earn
0, 1 and 3 and end the episode. The data hold each of the three actions equally often in both
states. gamma is 0.5, so Q(0, a) = V(1) / 2.
"""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from composerl.envs.spaces import Spaces
from composerl.losses import CQLLoss, DiscreteCQLLoss, IQLLoss, XQLLoss
from composerl.modules import gaussian_actor, tanh_gaussian_actor
from composerl.update import Update, linear

SPACES = Spaces(obs_shape=(1,), low=(-1.5,), high=(1.5,))
REWARDS = (0.0, 1.0, 3.0)


def data():
    state = torch.tensor([0.0] * 3 + [1.0] * 3).unsqueeze(-1)
    action = torch.tensor([-1.0, 0.0, 1.0] * 2).unsqueeze(-1)
    reward = torch.tensor([0.0] * 3 + list(REWARDS)).unsqueeze(-1)
    ends = state.bool()
    return TensorDict(
        {"observation": state, "action": action,
         "next": {"observation": torch.ones(6, 1), "reward": reward,
                  "done": ends, "terminated": ends}},
        [6],
    )  # fmt: skip


class TableV(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.zeros(2))

    def forward(self, observation):
        return self.v[observation.squeeze(-1).long()].unsqueeze(-1)


class TableQ(nn.Module):
    """A number per state and action of the data."""

    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.zeros(2, 3))

    def forward(self, observation, action):
        row, column = observation.squeeze(-1).long(), action.squeeze(-1).round().long() + 1
        return self.q[row, column].unsqueeze(-1)


def train(loss, steps=700, lr=0.05, batch=None):
    update = Update(loss, lr=lr, tau=0.1, schedule=linear(steps, final=0.01))
    for _ in range(steps):
        update((data() if batch is None else batch).clone())
    return loss


def tables():
    critics = [
        TensorDictModule(TableQ(), ["observation", "action"], ["state_action_value"])
        for _ in range(2)
    ]
    return critics, TensorDictModule(TableV(), ["observation"], ["state_value"])


def check_values(loss, best):
    v, q = loss.value_network.module.v, loss.qvalue_network[0].module.q
    assert v[1].item() == pytest.approx(best, abs=0.01)
    assert q[1].tolist() == pytest.approx(REWARDS, abs=0.01)
    assert q[0].tolist() == pytest.approx([best / 2] * 3, abs=0.01)
    assert v[0].item() == pytest.approx(best / 2, abs=0.01)


def test_iql_finds_the_expectile():
    """0.9-expectile of (0, 1, 3): 0.1 (v + (v - 1)) = 0.9 (3 - v), so 1.1 v = 2.8, v = 28/11."""
    critics, value = tables()
    loss = IQLLoss(gaussian_actor(SPACES, (4,)), critics, value, expectile=0.9, gamma=0.5)
    check_values(train(loss), 28 / 11)


def test_xql_finds_the_soft_maximum():
    """beta log mean exp(r / beta) with beta = 1: log((1 + e + e^3) / 3) = 2.07123."""
    critics, value = tables()
    loss = XQLLoss(
        gaussian_actor(SPACES, (4,)), critics, value,
        loss_temperature=1.0, max_value_diff_exp=20.0, gamma=0.5,
    )  # fmt: skip
    assert math.log((1 + math.e + math.e**3) / 3) == pytest.approx(2.0712337)
    check_values(train(loss), 2.0712337)


def test_discrete_cql_finds_its_fixed_point():
    """Stationarity of (Q - y)^2 + alpha (logsumexp Q - Q(a)) with data frequency 1/3 per action:

        2/3 (Q_a - y_a) + alpha (softmax(Q)_a - 1/3) = 0  <=>  Q_a = y_a + alpha/2 (1 - 3 p_a).

    Solved by iteration for y = (0, 1, 3), alpha = 1: Q = (0.366479, 1.194423, 2.439098). At state
    0, y = 2.439098 / 2 for each action: by symmetry p = 1/3 and Q = y = 1.219549.
    """

    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Parameter(torch.zeros(2, 3))

        def forward(self, observation):
            return self.q[observation.squeeze(-1).long()]

    batch = data()
    batch["action"] = (batch["action"].squeeze(-1) + 1).long()
    network = TensorDictModule(Table(), ["observation"], ["action_value"])
    loss = train(DiscreteCQLLoss(network, min_q_weight=1.0, gamma=0.5), batch=batch)
    q = loss.value_network.module.q
    assert q[1].tolist() == pytest.approx([0.366479, 1.194423, 2.439098], abs=0.01)
    assert q[0].tolist() == pytest.approx([1.219549] * 3, abs=0.01)


def test_continuous_cql_is_pessimistic_outside_the_data_and_right_about_the_best_action():
    """The same problem with a network critic and actions anywhere in [-1.5, 1.5].

    The penalty must lower Q at actions between the data's (+-0.5) below the line through its
    neighbours, which the same critic without it does not have to be; the policy goes to a = 1.
    """
    from composerl.modules import twin_q

    gaps = {}
    for alpha in (1.0, 0.0):
        torch.manual_seed(0)
        actor, critics = tanh_gaussian_actor(SPACES, (32,)), twin_q(SPACES, (64, 64))
        loss = train(CQLLoss(actor, critics, min_q_weight=alpha, gamma=0.5), steps=500, lr=6e-3)
        with torch.no_grad():
            state = torch.ones(5, 1)
            action = torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0]).unsqueeze(-1)
            q = torch.stack([net.module(state, action) for net in loss.qvalue_network]).mean(0)
            q = q.squeeze(-1)
        gaps[alpha] = ((q[1] - (q[0] + q[2]) / 2) + (q[3] - (q[2] + q[4]) / 2)).item()
        if alpha:
            assert actor.greedy(torch.ones(1, 1)).item() == pytest.approx(1.0, abs=0.15)
            assert q[4] > q[2] > q[0]
        else:
            assert q[[0, 2, 4]].tolist() == pytest.approx(REWARDS, abs=0.1)
    assert gaps[1.0] < gaps[0.0] - 0.5
