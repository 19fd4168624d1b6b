"""Behaviour cloning: numbers by hand, actions in all forms, what it learns."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from losses.examples import BOX, bc
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import Unbounded
from torchrl.modules import Actor
from torchrl.objectives import BCLoss as StockBCLoss

from composerl.envs.spaces import Spaces
from composerl.losses import BCLoss
from composerl.modules import categorical_actor, gaussian_actor, tanh_gaussian_actor
from composerl.testing import check_loss
from composerl.update import Update


def test_by_hand():
    """Logits (0, log 3): probabilities 1/4 and 3/4; actions 0, 1, 1: -(log 1/4 + 2 log 3/4) / 3."""
    spaces = Spaces(obs_shape=(1,), num_actions=2)
    actor = categorical_actor(spaces, ())
    with torch.no_grad():
        actor.module[0].module.trunk[0].weight.zero_()
        actor.module[0].module.trunk[0].bias.copy_(torch.tensor([0.0, math.log(3)]))
    batch = TensorDict({"observation": torch.zeros(3, 1), "action": torch.tensor([0, 1, 1])}, [3])
    expected = -(math.log(1 / 4) + 2 * math.log(3 / 4)) / 3
    assert BCLoss(actor)(batch)["loss_bc"].item() == pytest.approx(expected, rel=1e-6)


def test_is_the_cross_entropy_of_the_logits():
    loss, batch = bc()
    logits = loss.actor_network.module[0].module(batch["observation"])
    torch.testing.assert_close(loss(batch)["loss_bc"], F.cross_entropy(logits, batch["action"]))


def test_gaussian_clone_finds_mean_and_spread():
    """Actions N(0.5, 0.25) whatever the state: log-likelihood is maximal at that distribution."""
    torch.manual_seed(0)
    actor = gaussian_actor(BOX, ())
    update = Update(BCLoss(actor), lr=0.02)
    for _ in range(400):
        obs = torch.zeros(256, 3)
        update(TensorDict({"observation": obs, "action": 0.5 + 0.25 * torch.randn(256, 2)}, [256]))
    mean, spread = actor.module[0].module(torch.zeros(1, 3))
    torch.testing.assert_close(mean.detach(), torch.full((1, 2), 0.5), atol=0.05, rtol=0)
    torch.testing.assert_close(spread.detach(), torch.full((1, 2), 0.25), atol=0.03, rtol=0)


@pytest.mark.parametrize("make", [gaussian_actor, tanh_gaussian_actor])
def test_conforms_with_float_actions(make):
    check_loss(*bc(None, make))


def test_wrong_actions_are_refused():
    loss, batch = bc(None, gaussian_actor)
    with pytest.raises(ValueError, match=r"'action' must have shape \(8, 2\), got \(8, 1\)"):
        loss(batch.set("action", torch.zeros(8, 1)))
    loss, batch = bc()
    with pytest.raises(ValueError, match=r"'action' must be integers"):
        loss(batch.set("action", torch.rand(8)))


def point(**options):
    """A policy without a distribution: a = 2 o."""
    actor = Actor(nn.Linear(1, 2, bias=False), spec=Unbounded((2,)))
    nn.init.constant_(actor.module.weight, 2.0)
    return BCLoss(actor, **options)


STEPS = TensorDict(
    {"observation": torch.tensor([[0.0], [1.0]]), "action": torch.tensor([[1.0, 3.0], [2.0, 3.0]])},
    [2],
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [(None, [5.0, 0.5]), ("l2", [5.0, 0.5]), ("mse", [5.0, 0.5]), ("l1", [2.0, 0.5])],
)
def test_a_policy_without_a_distribution(name, expected):
    """Actions (0, 0) for (1, 3) and (2, 2) for (2, 3): (1 + 9) / 2 and (0 + 1) / 2, as TorchRL's.

    A density would be infinite or none, without a gradient.
    """
    loss = point(loss_function=name, reduction="none")
    assert loss(STEPS.clone())["loss_bc"].tolist() == expected
    loss = point(loss_function=name)
    mine = loss(STEPS.clone())["loss_bc"]
    stock = StockBCLoss(loss.actor_network, loss_function=name)(STEPS.clone())["loss_bc"]
    torch.testing.assert_close(mine, stock)
    mine.backward()
    assert loss.actor_network.module.weight.grad.norm() > 0
    plain = TensorDictModule(loss.actor_network.module, ["observation"], ["action"])
    torch.testing.assert_close(BCLoss(plain, loss_function=name)(STEPS.clone())["loss_bc"], mine)
    check_loss(loss, STEPS.clone())


def test_distances_are_for_policies_without_a_distribution():
    with pytest.raises(ValueError, match="loss_function='l2' is for a policy without"):
        BCLoss(categorical_actor(Spaces(obs_shape=(3,), num_actions=2)), loss_function="l2")
    with pytest.raises(ValueError, match=r"loss_function must be one of .*'cross_entropy'"):
        point(loss_function="cross_entropy")
    with pytest.raises(ValueError, match=r"'action' must be floats of shape \(2, 2\).*int64"):
        point()(STEPS.clone().set("action", torch.tensor([0, 1])))


def test_a_plain_module_is_told_how_to_be_wrapped():
    """When the loss is made: at the first batch it was an AttributeError of 'in_keys'."""
    module = nn.Linear(3, 1)
    with pytest.raises(TypeError, match=r"actor_network must say .* a plain Linear .*TensorDictMo"):
        BCLoss(module)
    BCLoss(TensorDictModule(module, ["observation"], ["action"]))
