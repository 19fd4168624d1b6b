"""The dynamics loss: by hand, in plain torch, per member, its decay groups and its metric."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from losses.examples import BOX, continuous_batch, dynamics
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from composerl.losses import DynamicsLoss, gaussian_nll
from composerl.modules import ensemble
from composerl.testing import check_loss


class Fixed(nn.Module):
    """Two members that predict constants: the network of the example by hand."""

    members, terminates = 2, True

    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.tensor([[[0.0, 1.0]], [[2.0, 0.0]]]))
        self.log_var = nn.Parameter(torch.tensor([[[0.0, math.log(2)]], [[math.log(4), 0.0]]]))
        self.logit = nn.Parameter(torch.tensor([[0.0], [math.log(3)]]))
        self.min_log_var = nn.Parameter(torch.full((2, 1, 2), -3.0))
        self.max_log_var = nn.Parameter(torch.full((2, 1, 2), 1.0))
        self.target_std = torch.tensor([1.0, 0.5])

    def predict(self, observation, action):
        rows = observation.shape[-2]
        return (
            self.mean.expand(2, rows, 2),
            self.log_var.expand(2, rows, 2),
            self.logit.expand(2, rows),
        )


def one_row(terminated=True):
    """From s = 1 to s' = 3 with reward -1: the target is (2, -1)."""
    data = {"observation": torch.ones(1, 1), "action": torch.zeros(1, 1)}
    following = {
        "observation": torch.full((1, 1), 3.0),
        "reward": torch.full((1, 1), -1.0),
        "terminated": torch.full((1, 1), terminated),
    }
    return TensorDict({**data, "next": following}, [1])


def test_by_hand():
    """Target (2, -1). Member 0 predicts (0, 1) with variances (1, 2): squared errors 4 and 4,
    (4/1 + log 1 + 4/2 + log 2) / 2 = 3 + log(2)/2. Member 1 predicts (2, 0) with variances
    (4, 1): squared errors 0 and 1, (0 + log 4 + 1 + log 1) / 2 = 0.5 + log 2. Bounds:
    0.01 * 2 members * 2 entries * 4. Termination: -log(1/2) - log(3/4).
    MSE, with the second entry in units of 0.5: (4 + 4 / 0.25 + 0 + 1 / 0.25) / 4 = 6."""
    network = TensorDictModule(Fixed(), ["observation", "action"], [("next", "observation")])
    loss = DynamicsLoss(network)
    out = loss(one_row())
    assert out["loss_dynamics"].item() == pytest.approx(3.5 + 1.5 * math.log(2), rel=1e-6)
    assert out["loss_bounds"].item() == pytest.approx(0.16, rel=1e-6)
    assert out["loss_terminated"].item() == pytest.approx(math.log(2) - math.log(0.75), rel=1e-6)
    assert out["mse"].item() == pytest.approx(6, rel=1e-6)
    torch.testing.assert_close(loss.holdout_mse(one_row()), torch.tensor([10.0, 2.0]))
    alive = loss(one_row(terminated=False))["loss_terminated"]
    assert alive.item() == pytest.approx(math.log(2) - math.log(0.25), rel=1e-6)


def test_nll_is_the_gaussian_density_and_least_at_the_squared_error():
    error, log_var = torch.randn(50), torch.randn(50)
    density = torch.distributions.Normal(0.0, (0.5 * log_var).exp()).log_prob(error)
    torch.testing.assert_close(
        gaussian_nll(error, log_var), -2 * density - math.log(2 * math.pi), rtol=1e-4, atol=1e-5
    )
    log_mse = error.square().mean().log()
    assert gaussian_nll(error, log_mse).mean() == pytest.approx(1 + log_mse.item(), rel=1e-5)
    for step in (-0.1, 0.1):
        assert gaussian_nll(error, log_mse + step).mean() > gaussian_nll(error, log_mse).mean()


def plain_rendition(loss, batch):
    model, total, ended = loss.model, 0.0, 0.0
    target = torch.cat(
        [batch["next", "observation"] - batch["observation"], batch["next", "reward"]], -1
    )
    x = torch.cat([batch["observation"], batch["action"]], -1)
    for e in range(model.members):
        h = (x - model.mean) / model.std
        for layer in model.layers[:-1]:
            h = F.silu(h @ layer.weight[e] + layer.bias[e])
        out = h @ model.layers[-1].weight[e] + model.layers[-1].bias[e]
        low, high = model.min_log_var, model.max_log_var
        lv = low + F.softplus(high - F.softplus(high - out[:, 4:8]) - low)
        mean = model.target_mean + model.target_std * out[:, :4]
        lv = lv + torch.log(model.target_std**2)
        total = total + ((target - mean) ** 2 / lv.exp() + lv).mean()
        p = torch.sigmoid(out[:, 8])
        truth = batch["next", "terminated"].squeeze(-1)
        ended = ended - torch.where(truth, p.log(), (1 - p).log()).mean()
    bounds = 0.01 * (model.max_log_var.sum() - model.min_log_var.sum())
    return {"loss_dynamics": total, "loss_terminated": ended, "loss_bounds": bounds}


def test_equals_a_plain_rendition():
    loss, batch = dynamics()
    loss.model.set_normalizer(*loss.columns(batch))
    assert (loss.model.target_std != 1).all()
    out, expected = loss(batch), plain_rendition(loss, batch)
    parameters = list(loss.parameters())
    for key, value in expected.items():
        torch.testing.assert_close(out[key], value, rtol=1e-5, atol=1e-6)
        mine, theirs = (
            torch.autograd.grad(x, parameters, retain_graph=True, allow_unused=True)
            for x in (out[key], value)
        )
        for a, b in zip(mine, theirs, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_per_member_rows():
    """The same rows for all members give the same losses; other rows reach one member only."""
    loss, batch = dynamics()
    own = DynamicsLoss(loss.dynamics_network, per_member=True)
    shared, repeated = loss(batch), own(batch.expand(3, 8).clone())
    for key in shared.keys():  # noqa: SIM118
        torch.testing.assert_close(shared[key], repeated[key], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(own.holdout_mse(batch), loss.holdout_mse(batch))
    changed = batch.expand(3, 8).clone()
    changed["next", "reward"][1] += 5.0
    gradients = []
    for rows in (batch.expand(3, 8).clone(), changed):
        loss.zero_grad()
        own(rows)["loss_dynamics"].backward()
        gradients.append([p.grad.clone() for p in loss.model.layers.parameters()])
    for before, after in zip(*gradients, strict=True):
        assert not torch.equal(before[1], after[1])
        assert torch.equal(before[[0, 2]], after[[0, 2]])


def test_per_member_conforms():
    """The conformance suite with two batch dimensions, the first of them the member."""
    loss, _ = dynamics(per_member=True)
    batch = torch.stack([continuous_batch(6) for _ in range(3)])
    check_loss(loss, batch)
    with pytest.raises(ValueError, match=r"shape \(3, rows...\), got \(6, 3\)"):
        loss(batch.transpose(0, 1).contiguous())
    with pytest.raises(ValueError, match=r"got \(6,\)"):
        loss(continuous_batch(6))
    rows = DynamicsLoss(loss.dynamics_network, per_member=True, reduction="none")(batch)
    assert rows["loss_dynamics"].shape == (3, 6)
    torch.testing.assert_close(rows["loss_dynamics"].mean(), loss(batch)["loss_dynamics"])


def test_conforms_without_a_head():
    torch.manual_seed(0)
    check_loss(DynamicsLoss(ensemble(BOX, (8,), members=2, elites=1)), continuous_batch())


def test_several_batch_dimensions():
    loss, batch = dynamics()
    torch.testing.assert_close(
        loss(batch.reshape(2, 4))["loss_dynamics"], loss(batch)["loss_dynamics"]
    )


def test_weight_decay_grows_by_layer_and_spares_biases():
    loss = DynamicsLoss(ensemble(BOX))
    groups = loss.parameter_groups(lr=2e-3)
    decays = [group["weight_decay"] for group in groups]
    assert decays == pytest.approx([2.5e-5, 4.375e-5, 6.25e-5, 8.125e-5, 1e-4, 0.0])
    assert all(group["lr"] == 2e-3 for group in groups)
    for group, layer in zip(groups, loss.model.layers, strict=False):
        assert len(group["params"]) == 1
        assert group["params"][0] is layer.weight
    listed = [p for group in groups for p in group["params"]]
    assert {id(p) for p in listed} == {id(p) for p in loss.parameters()}
    assert len(listed) == len(list(loss.parameters()))
    with pytest.raises(ValueError, match="weight_decay"):
        loss.parameter_groups(weight_decay=(0.0, -1.0))


def test_bad_arguments():
    with pytest.raises(ValueError, match="bounds_weight"):
        DynamicsLoss(ensemble(BOX, (8,)), bounds_weight=-0.1)
    with pytest.raises(ValueError, match="reduction"):
        DynamicsLoss(ensemble(BOX, (8,)), reduction="max")
