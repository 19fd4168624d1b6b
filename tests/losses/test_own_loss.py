"""Losses from outside the package: that of `composerl new`, and TD3+BC, by public names alone."""

from __future__ import annotations

import importlib
import re
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from losses.examples import BOX, continuous_batch, td3_bc
from torchrl.objectives import SoftUpdate

import composerl
from composerl import Update
from composerl.modules import gaussian_actor, twin_q
from composerl.testing import check_loss


def imported(name, text, directory, monkeypatch):
    """The text as a module of somebody's own, which knows composerl by ``composerl.losses``."""
    names = re.findall(r"^ *(?:from|import) (composerl[.\w]*)", text, re.MULTILINE)
    assert set(names) == {"composerl.losses"}
    (directory / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(directory)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


@pytest.fixture
def template(tmp_path, monkeypatch):
    """The loss that `composerl new` writes."""
    text = Path(composerl.__file__).with_name("cli").joinpath("new", "loss.py.txt").read_text()
    assert len(text.strip().splitlines()) <= 50
    return imported("my_losses", text.replace("CLASS", "AWAC"), tmp_path, monkeypatch)


def awac(module, **options):
    torch.manual_seed(0)
    (critic,) = twin_q(BOX, (8,), number=1)
    return module.AWACLoss(gaussian_actor(BOX, (8,)), critic, **options)


def test_the_template_is_a_native_loss(template):
    check_loss(awac(template), continuous_batch())
    with pytest.raises(ValueError, match=r"beta must be in \[0, inf\), got -1"):
        awac(template, beta=-1)


def test_the_template_by_plain_torch(template):
    """The same equations by hand; with beta 0 it clones, and every weight is 1."""
    loss, batch = awac(template, beta=2.0, gamma=0.9), continuous_batch()
    torch.manual_seed(1)
    out = loss(batch)
    torch.manual_seed(1)
    actor, critic = loss.actor_network, loss.qvalue_network.module
    with torch.no_grad():
        dist, later = actor.get_dist(batch), actor.get_dist(batch["next"])
        next_action, own = later.sample(), dist.sample()
        next_q = critic(batch["next", "observation"], next_action)
        target = batch["next", "reward"] + 0.9 * next_q * ~batch["next", "terminated"]
        q = critic(batch["observation"], batch["action"])
        advantage = (q - critic(batch["observation"], own)).squeeze(-1)
        weight = (2 * advantage).exp() / (2 * advantage).exp().mean()
        log_prob = dist.log_prob(batch["action"])
    torch.testing.assert_close(out["loss_qvalue"], (q - target).square().mean())
    torch.testing.assert_close(out["loss_actor"], -(weight * log_prob).mean())
    torch.testing.assert_close(out["advantage"], advantage.mean())
    torch.testing.assert_close(batch["td_error"], (q - target).square().squeeze(-1))
    cloning = awac(template, beta=0.0)(continuous_batch())["loss_actor"]
    torch.testing.assert_close(cloning, -log_prob.mean())


def test_the_template_trains(template):
    """By Update, and by TorchRL's SoftUpdate with an optimizer of torch's."""
    torch.manual_seed(0)
    loss = awac(template, gamma=0.0)
    update = Update(loss, lr=1e-2)
    values = [update(continuous_batch())["loss_qvalue"].item() for _ in range(100)]
    assert values[-1] < 0.1 * values[0]  # without a bootstrap it learns eight rewards by heart
    loss = awac(template)
    targets, adam = SoftUpdate(loss, tau=0.5), torch.optim.Adam(loss.parameters(), lr=1e-2)
    start = loss.target_qvalue_network.module.trunk[0].weight.clone()
    out = loss(continuous_batch())
    (out["loss_actor"] + out["loss_qvalue"]).backward()
    adam.step()
    targets.step()
    online = loss.qvalue_network.module.trunk[0].weight
    torch.testing.assert_close(loss.target_qvalue_network.module.trunk[0].weight,
                               (start + online) / 2)  # fmt: skip


TD3_BC = """
from dataclasses import dataclass

import torch
from tensordict import NestedKey
from torch import nn

from composerl.losses import RowLoss, TransitionKeys, call_network, read


class OwnTD3BC(RowLoss):
    @dataclass
    class _AcceptedKeys(TransitionKeys):
        q: NestedKey = "state_action_value"

    default_keys = _AcceptedKeys
    out_keys = ["loss_actor", "loss_qvalue"]

    def __init__(self, actor, critics, *, alpha=2.5, reduction=None):
        super().__init__(reduction)
        self.coefficient("alpha", alpha)
        self.actor_network = actor
        self.qvalue_network = nn.ModuleList(critics)
        self.make_target("actor_network")
        self.make_target("qvalue_network")
        space = actor.spec["action"].space
        self.register_buffer("low", space.low)
        self.register_buffer("high", space.high)
        self.make_value_estimator()

    def reads(self):
        networks = [self.actor_network, *self.qvalue_network]
        return self.transition_keys(networks, networks)

    def rows(self, batch, mask):
        half, key = (self.high - self.low) / 2, self.tensor_keys.action
        with torch.no_grad():
            action = call_network(self.target_actor_network, batch, key, next_step=True)
            noise = (0.2 * torch.randn_like(action)).clamp(-0.5, 0.5) * half
            action = (action + noise).clamp(self.low, self.high)
            next_q = self.q(self.target_qvalue_network, batch, action, next_step=True)
            target = self.td_target(batch, next_q.amin(0))
        action, mine = read(batch, key, half.shape), call_network(self.actor_network, batch, key)
        (gain,) = self.q(self.qvalue_network[:1], batch, mine, frozen=True)
        size = gain.detach().abs()
        size = (size if mask is None else size[mask]).mean()
        cloning = ((mine - action) / half).square().mean(-1)
        critics = self.critic_rows(self.q(self.qvalue_network, batch, action), target)
        return {"loss_actor": cloning - self.alpha * gain / size, **critics}

    def q(self, networks, batch, action, **options):
        given, key = {self.tensor_keys.action: action}, self.tensor_keys.q
        return torch.stack([self.value_of(n, batch, key, given=given, **options) for n in networks])
"""


def test_td3_bc_from_outside_is_ours(tmp_path, monkeypatch):
    """Written anew by the public hooks: native, and the same training to rounding."""
    module = imported("my_td3_bc", TD3_BC, tmp_path, monkeypatch)
    ours, batch = td3_bc()
    theirs = module.OwnTD3BC(*deepcopy((ours.actor_network, [*ours.qvalue_network])))
    check_loss(theirs, batch)
    metrics = []
    for loss in (ours, theirs):
        torch.manual_seed(3)
        update = Update(loss, lr=1e-2, every={"actor_network": 2, "target_": 2})
        for _ in range(5):
            metrics.append(update(batch.clone()))
    for mine, other in zip(metrics[:5], metrics[5:], strict=True):
        for key in ("loss_actor", "loss_qvalue", "grad_norm"):
            torch.testing.assert_close(mine[key], other[key])
    for name, p in theirs.named_parameters():
        torch.testing.assert_close(p, ours.get_parameter(name))
