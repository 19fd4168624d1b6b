"""Fitted Q evaluation: numbers by hand, a plain rendition, a known MDP, gradients, options."""

from __future__ import annotations

import pytest
import torch
from losses.examples import BOX, DISCRETE, action_values, continuous_batch, discrete_batch, fqe
from losses.test_td3_bc import Line
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.modules import QValueActor
from torchrl.objectives import SoftUpdate

from composerl.losses import FQELoss
from composerl.modules import (
    categorical_actor,
    deterministic_actor,
    fqf_network,
    iqn_network,
    q_network,
    tanh_gaussian_actor,
    twin_q,
)
from composerl.testing import check_loss
from composerl.update import Update, linear


def test_numbers_by_hand():
    """pi(s) = s / 2, Q_1 = s + 2 a, Q_2 = 2 s + a, gamma = 0.5; the second row is terminal.

    a' = pi(2) = 1, so that Q_1' = 2 + 2 = 4 and Q_2' = 4 + 1 = 5. Each critic has a target of its
    own: y = (2 + 2, 2 + 2.5) = (4, 4.5) in the first row, (0, 0) in the second. Q(s, a) is (3, 3)
    and (0, 3). Losses: 1 + 2.25 = 3.25 and 0 + 9; priorities 2.25 and 9.

    Gradients by (w_s, w_a), means over the rows of 2 (Q - y) (s, a): of Q_1 -2 (1, 1) and 0, so
    (-1, -1); of Q_2 -3 (1, 1) and 6 (2, -1), so (4.5, -4.5).
    """
    actor = TensorDictModule(Line(0.5), ["observation"], ["action"])
    critics = [
        TensorDictModule(Line(*w), ["observation", "action"], ["state_action_value"])
        for w in ((1.0, 2.0), (2.0, 1.0))
    ]
    terminated = torch.tensor([[False], [True]])
    batch = TensorDict(
        {
            "observation": torch.tensor([[1.0], [2.0]]),
            "action": torch.tensor([[1.0], [-1.0]]),
            "next": {
                "observation": torch.tensor([[2.0], [4.0]]),
                "reward": torch.tensor([[2.0], [0.0]]),
                "terminated": terminated,
                "done": terminated,
            },
        },
        [2],
    )
    loss = FQELoss(actor, critics, num_qvalue_nets=2, gamma=0.5)
    out = loss(batch)
    assert out["loss_qvalue"].item() == pytest.approx((3.25 + 9) / 2)
    assert batch["td_error"].tolist() == [2.25, 9.0]
    assert out["pred_value"].item() == pytest.approx((3 + 3 + 0 + 3) / 4)
    assert out["target_value"].item() == pytest.approx((4 + 4.5) / 4)
    out["loss_qvalue"].backward()
    gradients = [critic.module.weights.grad.tolist() for critic in loss.qvalue_network]
    assert gradients == [[-1.0, -1.0], [4.5, -4.5]]
    assert actor.module.weights.grad is None


def test_a_second_rendition():
    loss, batch = fqe(gamma=0.9, loss_function="smooth_l1")
    for p in loss.target_qvalue_network.parameters():
        p.add_(0.1)
    out = loss(batch.clone())
    later, expected = batch["next"], 0.0
    action = loss.actor_network.greedy(later["observation"])
    for net, target in zip(loss.qvalue_network, loss.target_qvalue_network, strict=True):
        bootstrap = target.module(later["observation"], action) * (~later["terminated"]).float()
        y = (later["reward"] + 0.9 * bootstrap).detach()
        q = net.module(batch["observation"], batch["action"])
        expected += nn.functional.smooth_l1_loss(q, y)
    torch.testing.assert_close(out["loss_qvalue"], expected)


# ---- a known MDP ---------------------------------------------------------------------------

STATES, ACTIONS, GAMMA = 4, 2, 0.8


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.zeros(STATES, ACTIONS))

    def forward(self, observation):
        return self.q[observation.squeeze(-1).long()]


def known_mdp():
    """Every (s, a, s') once, weighted by its probability; state 3 ends the episode with its reward.

    A policy by a table of logits, and its true values: the solution of Q = R + gamma P pi Q.
    """
    generator = torch.Generator().manual_seed(3)
    to = torch.rand(STATES, ACTIONS, STATES, generator=generator, dtype=torch.float64)
    to /= to.sum(-1, keepdim=True)
    reward = torch.randn(STATES, ACTIONS, generator=generator, dtype=torch.float64)
    s, a, later = torch.cartesian_prod(*map(torch.arange, (STATES, ACTIONS, STATES))).T
    ends = (s == 3).unsqueeze(-1)
    batch = TensorDict(
        {
            "observation": s.float().unsqueeze(-1),
            "action": a,
            "priority_weight": to[s, a, later].float(),
            "next": {
                "observation": later.float().unsqueeze(-1),
                "reward": reward[s, a].float().unsqueeze(-1),
                "terminated": ends,
                "done": ends,
            },
        },
        [len(s)],
    )
    logits = Table()
    logits.q.data = torch.randn(STATES, ACTIONS, generator=generator)
    choice = nn.functional.one_hot(logits.q.argmax(-1), ACTIONS).double()
    go_on = (torch.arange(STATES) != 3).double()
    moves = torch.einsum("sat,tb->satb", to * go_on[:, None, None], choice)
    moves = moves.reshape(STATES * ACTIONS, -1)
    truth = torch.linalg.solve(torch.eye(len(moves)).double() - GAMMA * moves, reward.flatten())
    actor = QValueActor(logits, in_keys=["observation"], action_space="categorical")
    return batch, actor, truth.reshape(STATES, ACTIONS).float()


def test_its_fixed_point_is_the_true_value_of_the_policy():
    batch, actor, truth = known_mdp()
    critic = TensorDictModule(Table(), ["observation"], ["action_value"])
    loss = FQELoss(actor, critic, gamma=GAMMA)
    update = Update(loss, lr=0.05, tau=0.2, schedule=linear(1000, final=0.01))
    for _ in range(1000):
        update(batch.clone())
    torch.testing.assert_close(critic.module.q.detach(), truth, atol=0.02, rtol=0)
    for table in (critic.module.q, loss.target_qvalue_network[0].module.q):
        table.data.copy_(truth)
    loss.zero_grad()
    loss(batch)["loss_qvalue"].backward()
    torch.testing.assert_close(critic.module.q.grad, torch.zeros_like(truth), atol=1e-6, rtol=0)


def test_a_stochastic_policy_is_evaluated_by_samples():
    """Two actions of logits 0 and log 3: a' is 1 with probability 3/4, where Q' = 4; Q'(0) = 0."""
    torch.manual_seed(0)
    actor = categorical_actor(DISCRETE, (4,))
    batch = discrete_batch(4000, actions=2)
    batch["next", "terminated"].fill_(False)
    batch["next", "reward"].zero_()
    logits = torch.tensor([0.0, torch.tensor(3.0).log(), -50.0])
    for p in actor.parameters():
        p.data.zero_()
    actor.module[0].module.trunk[-1].bias.data.copy_(logits)
    critic = TensorDictModule(nn.Linear(3, 3), ["observation"], ["action_value"])
    critic.module.weight.data.zero_()
    critic.module.bias.data.copy_(torch.tensor([0.0, 4.0, 0.0]))
    means = {
        only: FQELoss(actor, critic, gamma=0.5, deterministic=only)(batch)["target_value"].item()
        for only in (True, False)
    }
    assert means[True] == 2.0
    assert means[False] == pytest.approx(1.5, abs=0.05)  # deviation 0.87 / sqrt(4000): 0.014


# ---- gradients, networks, conventions ------------------------------------------------------


def test_the_policy_is_neither_trained_nor_copied():
    loss, batch = fqe()
    actor = loss.actor_network
    assert {name.split(".")[0] for name, _ in loss.named_parameters()} == {"qvalue_network"}
    before = [p.clone() for p in actor.parameters()]
    update = Update(loss, lr=0.1)
    update(batch)
    loss.reset_parameters_recursive()
    assert all(map(torch.equal, before, actor.parameters()))
    assert all(p.requires_grad and p.grad is None for p in actor.parameters())
    assert loss.to(torch.float64).actor_network is actor  # it moves with the loss
    assert next(actor.parameters()).dtype == torch.float64


@pytest.mark.parametrize(
    "make",
    [
        lambda: categorical_actor(DISCRETE, (8,)),
        lambda: q_network(DISCRETE, (8,)),
        lambda: iqn_network(DISCRETE, (8, 8), embedding_dim=4),
        lambda: fqf_network(DISCRETE, (8, 8), embedding_dim=4, num_quantiles=5),
    ],
)
def test_every_policy_of_discrete_actions(make):
    """Greedily: the value at s' is that of the action which the policy deploys."""
    torch.manual_seed(0)
    actor, batch = make().eval(), discrete_batch(32)
    if hasattr(actor, "epsilon"):
        actor.epsilon = 0.9
    batch["next", "terminated"].fill_(False)
    loss = FQELoss(actor, action_values(), gamma=0.5, reduction="none")
    out = loss(batch)["target_value"]
    every = loss.target_qvalue_network[0].module(batch["next", "observation"])
    chosen = every.gather(-1, actor.greedy(batch["next", "observation"]).unsqueeze(-1))
    torch.testing.assert_close(out, (batch["next", "reward"] + 0.5 * chosen).squeeze(-1))


@pytest.mark.parametrize("make", [tanh_gaussian_actor, deterministic_actor])
def test_other_policies_of_continuous_actions(make):
    torch.manual_seed(0)
    check_loss(FQELoss(make(BOX, (8,)), twin_q(BOX, (8,), number=1)), continuous_batch())


def test_conventions_for_discrete_actions():
    torch.manual_seed(0)
    loss = FQELoss(categorical_actor(DISCRETE, (8,)), action_values())
    check_loss(loss, discrete_batch(), num_actions=3)
    SoftUpdate(loss, tau=0.1).step()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_qvalue_nets": 3}, "needs as many networks"),
        ({"gamma": 1.5}, r"gamma must be in \[0, 1\]"),
        ({"loss_function": "l3"}, "loss_function must be one of"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        fqe(**options)
