"""Discrete CQL: numbers by hand, double targets, the value it learns from narrow data."""

from __future__ import annotations

import math

import pytest
import torch
from losses.examples import action_values, discrete_batch, discrete_cql
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from composerl.losses import DiscreteCQLLoss
from composerl.update import Update


class Table(nn.Module):
    """Q(s, .) as a table; the observation is the state's number."""

    def __init__(self, rows):
        super().__init__()
        self.q = nn.Parameter(torch.tensor(rows))

    def forward(self, observation):
        return self.q[observation.squeeze(-1).long()]


def table(rows):
    return TensorDictModule(Table(rows), in_keys=["observation"], out_keys=["action_value"])


def transition(state, action, reward, next_state, terminated=False):
    return TensorDict(
        {
            "observation": torch.tensor([[float(state)]]),
            "action": torch.tensor([action]),
            "next": {
                "observation": torch.tensor([[float(next_state)]]),
                "reward": torch.tensor([[reward]]),
                "done": torch.tensor([[terminated]]),
                "terminated": torch.tensor([[terminated]]),
            },
        },
        [1],
    )


@pytest.mark.parametrize(("double", "target"), [(True, 1 + 0.5 * 10.0), (False, 1 + 0.5 * 20.0)])
def test_by_hand(double, target):
    """Q(0, .) = (1, 2), Q(1, .) = (3, 4) online; targets Q(1, .) = (20, 10).

    From s = 0, a = 0, r = 1 to s' = 1 with gamma 0.5. Double: online prefers a' = 1, whose target
    value is 10, y = 6; else the target's own best, 20, y = 11. Q(s, a) = 1.
    Penalty: log(e + e^2) - 1 with T = 1, weight 1.
    """
    loss = DiscreteCQLLoss(table([[1.0, 2.0], [3.0, 4.0]]), double_dqn=double, gamma=0.5)
    with torch.no_grad():
        loss.target_value_network.module.q.copy_(torch.tensor([[0.0, 0.0], [20.0, 10.0]]))
    batch = transition(0, 0, 1.0, 1)
    out = loss(batch)
    assert out["loss_qvalue"].item() == pytest.approx((1 - target) ** 2)
    assert out["loss_cql"].item() == pytest.approx(math.log(math.e + math.e**2) - 1, rel=1e-6)
    assert out["target_value"].item() == pytest.approx(target)
    assert batch["td_error"].item() == pytest.approx((1 - target) ** 2)
    ended = loss(transition(0, 0, 1.0, 1, terminated=True))
    assert ended["target_value"].item() == 1.0


def test_temperature_and_weight():
    """T = 2: 2 log(e^0.5 + e^1) - 1, times 3."""
    loss = DiscreteCQLLoss(table([[1.0, 2.0]]), temperature=2.0, min_q_weight=3.0)
    expected = 3 * (2 * math.log(math.exp(0.5) + math.e) - 1)
    out = loss(transition(0, 0, 0.0, 0))
    assert out["loss_cql"].item() == pytest.approx(expected, rel=1e-6)


def test_learns_the_value_of_the_data_and_stays_below_it_elsewhere():
    """One state, two actions, only a = 0 in the data, reward 1, terminated.

    With Q0, Q1 the loss is (1 - Q0)^2 + log(e^Q0 + e^Q1) - Q0. In Q1 it falls for ever as Q1
    falls, so Q1 goes down without bound and Q0 to 1; without the penalty Q1 stays where it was.
    """
    for weight in (1.0, 0.0):
        loss = DiscreteCQLLoss(table([[5.0, 5.0]]), min_q_weight=weight)
        update = Update(loss, lr=0.05)
        for _ in range(1000):
            update(transition(0, 0, 1.0, 0, terminated=True))
        taken, other = loss.value_network.module.q[0].tolist()
        if weight:
            assert taken == pytest.approx(1.0, abs=0.02)
            assert other < -2
        else:
            assert taken == pytest.approx(1.0, abs=1e-3)
            assert other == 5.0


def test_wrong_actions_are_refused():
    loss, batch = discrete_cql()
    with pytest.raises(
        ValueError, match=r"'action' must be integers .* got torch.float32 of shape \(8,\)"
    ):
        loss(batch.clone().set("action", torch.rand(8)))
    with pytest.raises(ValueError, match=r"shape \(8, 5\)"):
        loss(batch.clone().set("action", torch.zeros(8, 5, dtype=torch.long)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_q_weight": -1.0}, "min_q_weight"),
        ({"temperature": 0.0}, "temperature"),
        ({"gamma": -0.1}, "gamma"),
        ({"loss_function": "l3"}, "loss_function"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        DiscreteCQLLoss(action_values(), **options)


def test_works_with_a_qvalue_actor():
    from torchrl.data import OneHot
    from torchrl.modules import QValueActor

    torch.manual_seed(0)
    net = nn.Linear(3, 3)
    actor = QValueActor(net, in_keys=["observation"], spec=OneHot(3))
    plain = TensorDictModule(net, in_keys=["observation"], out_keys=["action_value"])
    a = DiscreteCQLLoss(actor)(discrete_batch())
    b = DiscreteCQLLoss(plain)(discrete_batch())
    for key in ("loss_qvalue", "loss_cql"):
        torch.testing.assert_close(a[key], b[key])
