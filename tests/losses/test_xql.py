"""XQL: the Gumbel regression by hand, its fixed point, its limits, and its kinship with IQL."""

from __future__ import annotations

import math

import pytest
import torch
from losses.examples import BOX, continuous_batch, xql
from tensordict.nn import TensorDictModule
from torch import nn

from composerl.losses import IQLLoss, XQLLoss, gumbel_rescale_loss, xql_value_loss
from composerl.modules import gaussian_actor, twin_q, value
from composerl.testing import check_loss


def networks(seed=0):
    torch.manual_seed(seed)
    return gaussian_actor(BOX, (8,)), twin_q(BOX, (8,)), value(BOX, (8,))


def test_gumbel_loss_by_hand():
    """Differences 2, 0, -2 with beta = 2 give z = 1, 0, -1 and m = 1.

    exp(z - m) - z exp(-m) - exp(-m):
      z =  1:  1 - 1/e - 1/e        = 1 - 2/e
      z =  0:  1/e - 0 - 1/e        = 0
      z = -1:  e^-2 + 1/e - 1/e     = e^-2
    """
    loss = gumbel_rescale_loss(torch.tensor([2.0, 0.0, -2.0]), 2.0, 5.0)
    torch.testing.assert_close(loss, torch.tensor([1 - 2 / math.e, 0.0, math.e**-2]))


def test_clip_from_above_and_floor_of_the_maximum():
    """z = 100 is clipped to 5: loss 1 - 6 e^-5, no gradient. All z at -10: m is -1, not -10,
    so the loss is e^-9 + 10 e - e = e^-9 + 9 e, and its gradient in z is e^-9 - e."""
    diff = torch.tensor([100.0], requires_grad=True)
    loss = gumbel_rescale_loss(diff, 1.0, 5.0)
    assert loss.item() == pytest.approx(1 - 6 * math.exp(-5))
    loss.sum().backward()
    assert diff.grad.item() == 0
    low = torch.tensor([-10.0], requires_grad=True)
    loss = gumbel_rescale_loss(low, 1.0, 5.0)
    assert loss.item() == pytest.approx(math.exp(-9) + 9 * math.e, rel=1e-6)
    loss.sum().backward()
    assert low.grad.item() == pytest.approx(math.exp(-9) - math.e, rel=1e-6)


def test_no_gradient_through_the_rescaling():
    """d/dz of the row with the largest z is 1 - e^-m: m itself is a constant."""
    diff = torch.tensor([1.0, 0.5], requires_grad=True)
    gumbel_rescale_loss(diff, 1.0, 7.0).sum().backward()
    expected = [1 - math.exp(-1), math.exp(-0.5) - math.exp(-1)]
    assert diff.grad.tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("size", [1e6, 1e30, 3e38])
def test_no_overflow(size):
    diff = torch.tensor([size, -size, 0.0], requires_grad=True)
    for temperature in (0.6, 2.0, 5.0):
        loss = gumbel_rescale_loss(diff / 10, temperature, 7.0)
        assert torch.isfinite(loss).all()
        (grad,) = torch.autograd.grad(loss.sum(), diff)
        assert torch.isfinite(grad).all()


@pytest.mark.parametrize("beta", [0.5, 1.0, 3.0])
def test_minimiser_is_the_soft_maximum(beta):
    """V = beta log mean exp(Q / beta), written down before the minimisation."""
    q = torch.tensor([0.0, 1.0, 2.0, 4.0], dtype=torch.float64)
    expected = beta * math.log(sum(math.exp(x / beta) for x in q.tolist()) / 4)
    v = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([v], line_search_fn="strong_wolfe", max_iter=200,
                                   tolerance_grad=1e-12, tolerance_change=1e-15)  # fmt: skip

    def closure():
        optimizer.zero_grad()
        # without the rescaling the objective is the same up to a factor that changes with v
        z = (q - v) / beta
        loss = (z.exp() - z - 1).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert v.item() == pytest.approx(expected, abs=1e-6)
    # and it is where the rescaled loss has its zero gradient
    (grad,) = torch.autograd.grad(gumbel_rescale_loss(q - v, beta, 50.0).mean(), v)
    assert abs(grad.item()) < 1e-6
    w = torch.zeros((), requires_grad=True)
    adam = torch.optim.Adam([w], lr=0.02)
    for _ in range(3000):
        adam.zero_grad()
        gumbel_rescale_loss(q.float() - w, beta, 50.0).mean().backward()
        adam.step()
    assert w.item() == pytest.approx(expected, abs=1e-2)


def test_temperature_goes_from_maximum_to_mean():
    q = torch.tensor([0.0, 1.0, 2.0, 4.0])
    values = [b * math.log((q / b).exp().mean()) for b in (0.05, 1.0, 1000.0)]
    assert values[0] == pytest.approx(4.0, abs=0.1)
    assert values[2] == pytest.approx(1.75, abs=0.01)


def test_value_loss_takes_the_smaller_critic():
    q = torch.tensor([[1.0, 5.0], [2.0, 3.0]], requires_grad=True)
    v = torch.tensor([0.5, 1.0], requires_grad=True)
    loss = xql_value_loss(q, v, 2.0, 7.0)
    torch.testing.assert_close(loss, gumbel_rescale_loss(torch.tensor([0.5, 2.0]), 2.0, 7.0))
    loss.sum().backward()
    assert q.grad is None
    assert v.grad is not None


def test_loss_module_equals_a_plain_rendition():
    loss, batch = xql()
    with torch.no_grad():
        for p in loss.target_qvalue_network.parameters():
            p.mul_(1.5)
    out = loss(batch.clone())
    s, a, s2 = batch["observation"], batch["action"], batch["next", "observation"]
    v, q = loss.value_network.module, [net.module for net in loss.qvalue_network]
    target = [net.module for net in loss.target_qvalue_network]
    u = torch.minimum(target[0](s, a), target[1](s, a)) - v(s)
    z = (u / 2.0).clamp(max=7.0)
    m = max(z.max().item(), -1.0)
    value_loss = (torch.exp(z - m) - z * math.exp(-m) - math.exp(-m)).mean()
    y = batch["next", "reward"] + 0.99 * (~batch["next", "terminated"]).float() * v(s2)
    huber = sum(torch.nn.functional.huber_loss(net(s, a), y, delta=20.0) for net in q)
    log_prob = loss.actor_network.get_dist(batch).log_prob(a)
    actor_loss = -((3 * u.squeeze(-1)).exp().clamp(max=100) * log_prob).mean()
    torch.testing.assert_close(out["loss_value"], value_loss)
    torch.testing.assert_close(out["loss_qvalue"], huber)
    torch.testing.assert_close(out["loss_actor"], actor_loss)


def test_huber_is_linear_beyond_twenty():
    loss, batch = xql()
    batch["next", "reward"] = torch.full((8, 1), 1e3)
    batch["next", "terminated"] = torch.ones(8, 1, dtype=torch.bool)
    q = torch.stack([net(batch.clone())["state_action_value"] for net in loss.qvalue_network])
    expected = (20 * ((1e3 - q).abs() - 10)).mean(1).sum()
    torch.testing.assert_close(loss(batch)["loss_qvalue"], expected)


def test_vanilla_value_loss_is_iql_to_the_bit():
    batch = continuous_batch()
    iql = IQLLoss(*networks(), expectile=0.8, temperature=2.0)
    vanilla = XQLLoss(*networks(), vanilla_value_loss=True, expectile=0.8, temperature=2.0)
    a, b = iql(batch.clone()), vanilla(batch.clone())
    for key in iql.out_keys:
        assert torch.equal(a[key], b[key]), key
    extreme = XQLLoss(*networks(), expectile=0.8)(batch.clone())
    assert not torch.equal(extreme["loss_value"], a["loss_value"])
    # the Huber loss changes the critics only
    options = {"vanilla_value_loss": True, "expectile": 0.8, "loss_function": "huber"}
    huber = XQLLoss(*networks(), **options)(batch.clone())
    assert torch.equal(huber["loss_value"], a["loss_value"])
    assert not torch.equal(huber["loss_qvalue"], a["loss_qvalue"])


@pytest.mark.parametrize("knob", ["loss_temperature", "max_value_diff_exp", "max_advantage_weight"])
def test_every_knob_takes_effect(knob):
    batch = continuous_batch()
    torch.manual_seed(0)
    batch["action"] = torch.randn(8, 2)
    losses = []
    for number in (0.05, 5.0):
        loss = XQLLoss(*networks(), **{knob: number})
        with torch.no_grad():
            for net in loss.target_qvalue_network:
                net.module.trunk[-1].bias.add_(1.0)
        losses.append(loss(batch.clone()))
    a, b = losses
    changed = {key for key in a.keys() if not torch.equal(a[key], b[key])}  # noqa: SIM118
    expected = {"loss_actor"} if knob == "max_advantage_weight" else {"loss_value"}
    assert changed == expected


@pytest.mark.parametrize("number", [0.0, -1.0, math.nan])
@pytest.mark.parametrize("knob", ["loss_temperature", "max_value_diff_exp", "max_advantage_weight"])
def test_bad_knobs_are_refused(knob, number):
    with pytest.raises(ValueError, match=f"{knob} must be in"):
        XQLLoss(*networks(), **{knob: number})


def test_random_actions_and_noise_enter_the_value_loss_only():
    batch = continuous_batch()
    plain = XQLLoss(*networks())(batch.clone())
    for options in ({"sample_random_times": 4}, {"action_noise": 0.1}):
        torch.manual_seed(0)
        out = XQLLoss(*networks(), **options)(batch.clone())
        assert not torch.equal(out["loss_value"], plain["loss_value"])
        for key in ("loss_actor", "loss_qvalue"):
            assert torch.equal(out[key], plain[key]), key
        check_loss(XQLLoss(*networks(), **options), batch, compile=False)


def test_random_actions_by_hand():
    """Critics Q = a_0 (first action, box +-2), V = 0, beta = 1, one data action 0 and k random
    ones: the row's loss is the mean of the Gumbel loss at 0 and at the k draws."""

    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, observation, action):
            return action[..., :1] * self.scale

    critics = [
        TensorDictModule(First(), ["observation", "action"], ["state_action_value"])
        for _ in range(2)
    ]
    actor, _, v = networks()
    with torch.no_grad():
        for p in v.parameters():
            p.zero_()
    loss = XQLLoss(actor, critics, v, loss_temperature=1.0, sample_random_times=5)
    batch = continuous_batch()[:1]
    batch["action"] = torch.zeros(1, 2)
    torch.manual_seed(0)
    out = loss(batch)["loss_value"]
    torch.manual_seed(0)
    torch.randn(1, 2)
    draws = torch.tensor(BOX.low) + 2 * torch.tensor([2.0, 1.0]) * torch.rand(5, 1, 2)
    q = torch.cat([torch.zeros(1), draws[:, 0, 0]])
    torch.testing.assert_close(out, gumbel_rescale_loss(q, 1.0, 7.0).mean())


@pytest.mark.parametrize("knob", ["sample_random_times", "action_noise"])
def test_negative_options_are_refused(knob):
    with pytest.raises(ValueError, match=knob):
        XQLLoss(*networks(), **{knob: -1})
    with pytest.raises(ValueError, match="sample_random_times must be an integer"):
        XQLLoss(*networks(), sample_random_times=0.5)
