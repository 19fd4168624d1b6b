"""Implicit Q-learning: numbers by hand, a second rendition, TorchRL, masks, weights, targets."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn, tensor
from torch.nn.functional import l1_loss, mse_loss, smooth_l1_loss
from torch.testing import assert_close
from torchrl.modules import IndependentNormal, ProbabilisticActor
from torchrl.objectives import HardUpdate, SoftUpdate, ValueEstimators
from torchrl.objectives import IQLLoss as TorchRLIQLLoss

from composerl.envs.spaces import Spaces
from composerl.losses import IQLLoss
from composerl.modules import gaussian_actor, tanh_gaussian_actor, twin_q, value

LOSSES = ("loss_actor", "loss_qvalue", "loss_value")
OUTPUTS = (*LOSSES, "entropy")
SPACES = Spaces(obs_shape=(3,), low=(-2.0, -1.0), high=(2.0, 3.0))
MASK = ("collector", "mask")


class Affine(nn.Module):
    """Weights times the concatenated inputs, plus a bias."""

    def __init__(self, weights: list[float], bias: float = 0.0) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(tensor(weights)), nn.Parameter(tensor(bias))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return (torch.cat(inputs, -1) * self.weight).sum(-1, keepdim=True) + self.bias

    def set(self, weights: list[float], bias: float) -> None:
        with torch.no_grad():
            self.weight.copy_(tensor(weights))
            self.bias.fill_(bias)


class UnitGaussian(nn.Module):
    """Mean ``slope * s``, standard deviation 1."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = nn.Parameter(tensor(slope))

    def forward(self, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.slope * s, torch.ones_like(s)


def gaussian(module: nn.Module) -> ProbabilisticActor:
    return ProbabilisticActor(
        TensorDictModule(module, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=IndependentNormal,
    )


def critic(module: nn.Module, *extra: str) -> TensorDictModule:
    keys = ["observation", *extra, "action"]
    return TensorDictModule(module, in_keys=keys, out_keys=["state_action_value"])


def state_value(module: nn.Module) -> TensorDictModule:
    return TensorDictModule(module, in_keys=["observation"], out_keys=["state_value"])


def hand_loss(**options) -> IQLLoss:
    """The loss all numbers below belong to; its networks are in :func:`test_numbers_by_hand`."""
    options = {"gamma": 0.5, "expectile": 0.8, "temperature": 2.0} | options
    loss = IQLLoss(
        gaussian(UnitGaussian(0.5)),
        [critic(Affine([1.0, 1.0])), critic(Affine([2.0, -1.0]))],
        state_value(Affine([1.0], 0.5)),
        **options,
    )
    loss.target_qvalue_network[0].module.set([1.0, 2.0], 1.0)
    loss.target_qvalue_network[1].module.set([3.0, 1.0], 0.0)
    return loss


def column(*values: float) -> torch.Tensor:
    return tensor(values).unsqueeze(-1)


def hand_batch() -> TensorDict:
    next_ = {
        "observation": column(1.5, 9.5, 3.5, 0.5),
        "reward": column(1.0, 2.0, -1.0, 0.5),
        "done": column(False, True, True, False),
        "terminated": column(False, True, False, False),
        "truncated": column(False, False, True, False),
    }
    state, action = column(0.0, 1.0, 1.0, 2.0), column(1.0, 0.25, -1.0, 2.0)
    return TensorDict({"observation": state, "action": action, "next": next_}, [4])


def networks(actor=gaussian_actor, hidden=(8,)):
    return actor(SPACES, hidden), twin_q(SPACES, hidden), value(SPACES, hidden)


def random_batch(*shape: int, seed: int = 0) -> TensorDict:
    gen = torch.Generator().manual_seed(seed)
    low, high = tensor(SPACES.low), tensor(SPACES.high)
    terminated = torch.rand(*shape, 1, generator=gen) < 0.3
    truncated = ~terminated & (torch.rand(*shape, 1, generator=gen) < 0.3)
    next_ = {
        "observation": torch.randn(*shape, 3, generator=gen),
        "reward": torch.randn(*shape, 1, generator=gen),
        "done": terminated | truncated,
        "terminated": terminated,
        "truncated": truncated,
    }
    action = low + (high - low) * (0.02 + 0.96 * torch.rand(*shape, 2, generator=gen))
    observation = torch.randn(*shape, 3, generator=gen)
    return TensorDict({"observation": observation, "action": action, "next": next_}, shape)


def random_loss(actor=gaussian_actor, seed: int = 0, **options) -> IQLLoss:
    """Random networks whose targets are not the online critics."""
    torch.manual_seed(seed)
    loss = IQLLoss(*networks(actor), **{"gamma": 0.9} | options)
    with torch.no_grad():
        for p in loss.target_qvalue_network.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return loss


def gradients(loss: IQLLoss, batch: TensorDict) -> dict[str, torch.Tensor]:
    loss.zero_grad()
    out = loss(batch.clone())
    sum(out[name] for name in LOSSES).backward()
    return {name: p.grad.clone() for name, p in loss.named_parameters()}


# The numbers -------------------------------------------------------------------------------------


def test_numbers_by_hand():
    """Four transitions, gamma 0.5, tau 0.8, beta 2; one is terminated, one only truncated.

    Networks: V(s) = s + 0.5; Q1 = s + a, Q2 = 2s - a; targets Q1' = s + 2a + 1, Q2' = 3s + a;
    pi(a|s) = N(0.5 s, 1).

    ====  =====  ====  =====  =========  ===  ===  =======  =====  ====
    s     a      r     s'     end        Q1'  Q2'  min Q'   V(s)   u
    0     1      1     1.5    -          3    1    1        0.5    0.5
    1     0.25   2     9.5    terminated 2.5  3.25 2.5      1.5    1
    1     -1     -1    3.5    truncated  0    2    0        1.5    -1.5
    2     2      0.5   0.5    -          7    8    7        2.5    4.5
    ====  =====  ====  =====  =========  ===  ===  =======  =====  ====

    V: 0.8*0.25 + 0.8*1 + 0.2*2.25 + 0.8*20.25 = 0.2 + 0.8 + 0.45 + 16.2 = 17.65; mean 4.4125.

    Q: V(s') = 2, 10, 4, 1; targets 1 + 1 = 2; 2 (terminated: no bootstrap); -1 + 2 = 1 (truncated:
    bootstraps); 0.5 + 0.5 = 1. Q1 = 1, 1.25, 0, 4 errs by -1, -0.75, -1, 3; Q2 = -1, 1.75, 3, 2
    errs by -3, -0.25, 2, 1. Squares 1, 0.5625, 1, 9 and 9, 0.0625, 4, 1; sums over the twins
    10, 0.625, 5, 10; mean 25.625/4 = 6.40625. Their maxima: 9, 0.5625, 4, 9.

    pi: a - 0.5 s = 1, -0.25, -1.5, 1; -log pi = half the square + ln(2 pi)/2 = 1.4189385,
    0.9501885, 2.0439385, 1.4189385. Weights e^1, e^2, e^-3 and e^9 = 8103, cut at 100:
    3.8570748 + 7.0209964 + 0.1017617 + 141.8938533 = 152.8736862; mean 38.2184216.
    The mean of -log pi is 0.9189385 + 2.15625/4 = 1.4580010, that of the critics 12/8 = 1.5.
    """
    batch = hand_batch()
    out = hand_loss()(batch)
    assert_close(out["loss_value"], tensor(4.4125))
    assert_close(out["loss_qvalue"], tensor(6.40625))
    assert_close(out["loss_actor"], tensor(38.2184216))
    assert_close(out["entropy"], tensor(1.4580010))
    assert_close(out["pred_value"], tensor(1.5))
    assert_close(batch["td_error"], tensor([9.0, 0.5625, 4.0, 9.0]))


def test_gradients_by_hand():
    """Same networks and batch.

    V, by its bias: -2 mean(weight * u) = -2 (0.4 + 0.8 - 0.3 + 3.6)/4 = -2.25; by its weight the
    same with s = 0, 1, 1, 2: -2 (0.8 - 0.3 + 7.2)/4 = -3.85.
    Q, by the biases: 2 mean(error) = 2 (-1 - 0.75 - 1 + 3)/4 = 0.125 and
    2 (-3 - 0.25 + 2 + 1)/4 = -0.125.
    pi, by the slope: -mean(weight * (a - 0.5 s) * s) with (a - 0.5 s) s = 0, -0.25, -1.5, 2:
    -(-1.8472640 - 0.0746806 + 200)/4 = -49.5195138.
    """
    loss = hand_loss()
    gradients(loss, hand_batch())
    assert_close(loss.value_network.module.bias.grad, tensor(-2.25))
    assert_close(loss.value_network.module.weight.grad, tensor([-3.85]))
    assert_close(loss.qvalue_network[0].module.bias.grad, tensor(0.125))
    assert_close(loss.qvalue_network[1].module.bias.grad, tensor(-0.125))
    slope = next(loss.actor_network.parameters())
    assert_close(slope.grad, tensor(-49.5195138))


def test_zero_temperature_clones_the_data():
    """Beta 0 weighs every row by 1: the mean of -log pi above, whatever the advantage."""
    out = hand_loss(temperature=0.0)(hand_batch())
    assert_close(out["loss_actor"], tensor(1.4580010))
    assert_close(out["loss_value"], tensor(4.4125))


def test_weight_bound_is_an_argument():
    """Cut at 5, the weights are e, 5, e^-3, 5: 3.8570748 + 4.7509427 + 0.1017617 + 7.0946927."""
    out = hand_loss(max_advantage_weight=5.0)(hand_batch())
    assert_close(out["loss_actor"], tensor(15.8044719 / 4))


@pytest.mark.parametrize(("name", "expected"), [("l1", 12.0 / 4), ("smooth_l1", 8.3125 / 4)])
def test_distances_by_hand(name, expected):
    """The errors of the twins are (-1, -3), (-0.75, -0.25), (-1, 2), (3, 1).

    l1: 4 + 1 + 3 + 4 = 12. smooth l1: (0.5 + 2.5) + (0.28125 + 0.03125) + (0.5 + 1.5)
    + (2.5 + 0.5) = 8.3125. The priority stays the squared error.
    """
    batch = hand_batch()
    assert_close(hand_loss(loss_function=name)(batch)["loss_qvalue"], tensor(expected))
    assert_close(batch["td_error"], tensor([9.0, 0.5625, 4.0, 9.0]))


def test_n_step_by_hand():
    """Steps 3, 3, 2, 1: discounts 1/8, -, 1/4, 1/2 and targets 1.25, 2, 0, 1.

    Errors of the twins (-0.25, -2.25), (-0.75, -0.25), (0, 3), (3, 1); squares 5.125 + 0.625 + 9
    + 10 = 24.75. With three steps in every row the targets are 1.25, 2, -0.5, 0.625: 5.125 + 0.625
    + (0.25 + 12.25) + (11.390625 + 1.890625) = 31.53125. V and pi do not see the next state.
    """
    batch = hand_batch().set("steps_to_next_obs", column(3, 3, 2, 1))
    out = hand_loss()(batch)
    assert_close(out["loss_qvalue"], tensor(24.75 / 4))
    assert_close(batch["td_error"], tensor([5.0625, 0.5625, 9.0, 9.0]))
    assert_close(out["loss_value"], tensor(4.4125))
    out = hand_loss()(hand_batch().set("steps_to_next_obs", column(3, 3, 3, 3)))
    assert_close(out["loss_qvalue"], tensor(31.53125 / 4))


def test_priority_weights_by_hand():
    """Weights 1, 2, 1/2, 1/2 (sum 4), mean = sum(w * loss)/sum(w).

    V: 0.2 + 1.6 + 0.225 + 8.1 = 10.125. Q: 10 + 1.25 + 2.5 + 5 = 18.75.
    pi: 3.8570748 + 14.0419928 + 0.0508809 + 70.9469267 = 88.8968751.
    Gradients, as above with weights: V bias -2 (0.4 + 1.6 - 0.15 + 1.8)/4 = -1.825; Q1 bias
    2 (-1 - 1.5 - 0.5 + 1.5)/4 = -0.75; slope -(-3.6945280 - 0.0373403 + 100)/4 = -24.0670329.
    """
    loss = hand_loss()
    batch = hand_batch().set("priority_weight", tensor([1.0, 2.0, 0.5, 0.5]))
    gradients(loss, batch)
    out = loss(batch)
    assert_close(out["loss_value"], tensor(10.125 / 4))
    assert_close(out["loss_qvalue"], tensor(18.75 / 4))
    assert_close(out["loss_actor"], tensor(88.8968751 / 4))
    assert_close(batch["td_error"], tensor([9.0, 0.5625, 4.0, 9.0]))
    assert_close(loss.value_network.module.bias.grad, tensor(-1.825))
    assert_close(loss.qvalue_network[0].module.bias.grad, tensor(-0.75))
    assert_close(next(loss.actor_network.parameters()).grad, tensor(-24.0670329))


# A second rendition ------------------------------------------------------------------------------


def log_prob_of(loss: IQLLoss, batch: TensorDict) -> torch.Tensor:
    """Of the data's actions, from the densities' textbook form."""
    loc, scale = loss.actor_network.module[0].module(batch["observation"])
    normal = torch.distributions.Normal(loc, scale)
    if loss.actor_network.description["factory"] == "gaussian_actor":
        return normal.log_prob(batch["action"]).sum(-1)
    low, high = tensor(SPACES.low), tensor(SPACES.high)
    squashed = 2 * (batch["action"] - low) / (high - low) - 1
    slope = (high - low) / 2 * (1 - squashed**2)
    return (normal.log_prob(squashed.atanh()) - slope.log()).sum(-1)


def rendition(loss: IQLLoss, b: TensorDict, distance, *, tau, beta, gamma) -> dict:
    """IQL in plain torch."""
    s, a, s_next = b["observation"], b["action"], b["next", "observation"]
    with torch.no_grad():
        q_target = torch.stack([q.module(s, a) for q in loss.target_qvalue_network]).amin(0)
        not_terminated = 1 - b["next", "terminated"].float()
        backup = b["next", "reward"] + gamma * not_terminated * loss.value_network.module(s_next)
    u = (q_target - loss.value_network.module(s)).squeeze(-1)
    qs = [q.module(s, a) for q in loss.qvalue_network]
    log_prob = log_prob_of(loss, b)
    weight = (beta * u.detach()).exp().clamp(max=100.0)
    return {
        "loss_value": torch.where(u < 0, (1 - tau) * u**2, tau * u**2).mean(),
        "loss_qvalue": sum(distance(q, backup) for q in qs),
        "loss_actor": -(weight * log_prob).mean(),
        "entropy": -log_prob.mean().detach(),
        "td_error": torch.stack([(q - backup) ** 2 for q in qs]).amax(0).squeeze(-1).detach(),
    }


@pytest.mark.parametrize("actor", [gaussian_actor, tanh_gaussian_actor])
@pytest.mark.parametrize(
    ("name", "distance"), [("l2", mse_loss), ("l1", l1_loss), ("smooth_l1", smooth_l1_loss)]
)
def test_second_rendition(actor, name, distance):
    loss = random_loss(actor, loss_function=name, expectile=0.7, temperature=3.0)
    batch = random_batch(32)
    assert 0 < batch["next", "terminated"].sum() < 32
    expected = rendition(loss, batch, distance, tau=0.7, beta=3.0, gamma=0.9)
    params = dict(loss.named_parameters())
    total = sum(expected[key] for key in LOSSES)
    expected_grads = dict(zip(params, torch.autograd.grad(total, params.values()), strict=True))

    out = loss(batch)
    for key in OUTPUTS:
        assert_close(out[key], expected[key], atol=1e-5, rtol=1e-5)
    assert not out["entropy"].requires_grad
    assert_close(batch["td_error"], expected["td_error"], atol=1e-5, rtol=1e-5)
    grads = gradients(loss, batch)
    for key, grad in expected_grads.items():
        assert_close(grads[key], grad, atol=1e-5, rtol=1e-5, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("name", ["l2", "l1", "smooth_l1"])
def test_agrees_with_torchrl(name):
    """On a plain batch, where TorchRL's own loss is right."""
    torch.manual_seed(0)
    actor, critics, v = networks()
    options = {"loss_function": name, "temperature": 2.0, "expectile": 0.8}
    theirs = TorchRLIQLLoss(copy.deepcopy(actor), copy.deepcopy(critics), v, **options)
    ours = IQLLoss(actor, critics, copy.deepcopy(v), **options)
    other = twin_q(SPACES, (8,))
    for critic_, new in zip(ours.qvalue_network, other, strict=True):
        critic_.load_state_dict(new.state_dict())
    stacked = torch.stack([TensorDict.from_module(c).data for c in other])
    theirs.qvalue_network_params.data.update_(stacked)
    batch = random_batch(16)
    batch_theirs = batch.clone()
    for loss in (ours, theirs):
        loss.make_value_estimator(gamma=0.8)
    out, expected = ours(batch), theirs(batch_theirs)
    assert set(out.keys()) == {*expected.keys(), "pred_value"}
    for key in OUTPUTS:
        assert_close(out[key], expected[key], atol=1e-5, rtol=1e-5)
    assert_close(batch["td_error"], batch_theirs["td_error"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("estimator", [ValueEstimators.TD1, ValueEstimators.TDLambda])
def test_other_estimators_agree_with_torchrl(estimator):
    """On sequences, time last: the targets reach beyond one step."""
    torch.manual_seed(0)
    actor, critics, v = networks()
    options = {"loss_function": "l2", "temperature": 2.0, "expectile": 0.8}
    theirs = TorchRLIQLLoss(copy.deepcopy(actor), copy.deepcopy(critics), v, **options)
    ours = IQLLoss(actor, critics, copy.deepcopy(v), **options)
    for loss in (ours, theirs):
        loss.make_value_estimator(estimator, gamma=0.8)
    out, expected = ours(random_batch(4, 5)), theirs(random_batch(4, 5))
    for key in OUTPUTS:
        assert_close(out[key], expected[key], atol=1e-5, rtol=1e-5)


def test_gamma_by_argument_or_by_value_estimator():
    loss = random_loss(gamma=0.5)
    first = loss(random_batch(8))["loss_qvalue"]
    loss.make_value_estimator(gamma=0.9)
    assert_close(
        loss(random_batch(8))["loss_qvalue"], random_loss()(random_batch(8))["loss_qvalue"]
    )
    assert abs(first - loss(random_batch(8))["loss_qvalue"]) > 1e-3


# Who is trained by what --------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_trains_its_own_network_only(name):
    loss = random_loss()
    loss(random_batch(16))[name].backward()
    owner = name.removeprefix("loss_") + "_network"
    for key, p in loss.named_parameters():
        if key.startswith(owner + "."):
            assert p.grad is not None, key
            assert p.grad.abs().sum() > 0, key
        else:
            assert p.grad is None or not p.grad.any(), key
    for p in loss.target_qvalue_network.parameters():
        assert not p.requires_grad
        assert p.grad is None


def test_targets_are_not_among_the_parameters():
    loss = random_loss()
    targets = {id(p) for p in loss.target_qvalue_network.parameters()}
    assert len(targets) == 8
    assert not targets & {id(p) for p in loss.parameters()}
    online = {id(p) for net in (loss.actor_network, loss.value_network, loss.qvalue_network)
              for p in net.parameters()}  # fmt: skip
    assert online == {id(p) for p in loss.parameters()}


def test_value_and_actor_use_the_target_critics():
    batch, loss = random_batch(16), random_loss()
    before = loss(batch)
    with torch.no_grad():
        for p in loss.qvalue_network.parameters():
            p.add_(1.0)
    online = loss(batch)
    assert_close(online["loss_value"], before["loss_value"], atol=0, rtol=0)
    assert_close(online["loss_actor"], before["loss_actor"], atol=0, rtol=0)
    assert abs(online["loss_qvalue"] - before["loss_qvalue"]) > 0.1
    with torch.no_grad():
        for p in loss.target_qvalue_network.parameters():
            p.add_(0.2)
    target = loss(batch)
    assert_close(target["loss_qvalue"], online["loss_qvalue"], atol=0, rtol=0)
    assert abs(target["loss_value"] - online["loss_value"]) > 1e-3
    assert abs(target["loss_actor"] - online["loss_actor"]) > 1e-3


def test_soft_update():
    """Polyak 0.1 moves the target bias 1 a tenth of the way to 5: 1.4; then 1.4 to 5: 1.76."""
    loss = hand_loss()
    updater = SoftUpdate(loss, tau=0.1)
    online, target = loss.qvalue_network[0].module, loss.target_qvalue_network[0].module
    online.set([5.0, 0.0], 5.0)
    target.set([0.0, 0.0], 1.0)
    updater.step()
    assert_close(target.bias.detach(), tensor(1.4))
    assert_close(target.weight.detach(), tensor([0.5, 0.0]))
    updater.step()
    assert_close(target.bias.detach(), tensor(1.76))
    assert online.bias.item() == 5.0


def test_hard_update():
    loss = hand_loss()
    updater = HardUpdate(loss, value_network_update_interval=1)
    loss.qvalue_network[1].module.set([7.0, 8.0], 9.0)
    for _ in range(2):  # TorchRL fires one call later than its argument says
        updater.step()
    target = loss.target_qvalue_network[1].module
    assert_close(target.weight.detach(), tensor([7.0, 8.0]))
    assert target.bias.item() == 9.0
    # the copy is a copy, not an alias
    loss.qvalue_network[1].module.set([0.0, 0.0], 0.0)
    assert target.bias.item() == 9.0


# Shapes of data ----------------------------------------------------------------------------------


@pytest.fixture
def padded() -> TensorDict:
    """``random_batch(12)`` with five rows of NaN, as padding may hold, strewn in."""
    padding = random_batch(5, seed=1)
    padding.apply_(lambda x: x.fill_(math.nan) if x.is_floating_point() else x)
    order = torch.randperm(17, generator=torch.Generator().manual_seed(0))
    padded = torch.cat([random_batch(12), padding])[order]
    padded[MASK] = order < 12
    return padded


def test_masked_rows_change_no_output(padded):
    loss = random_loss()
    out, expected = loss(padded), loss(random_batch(12))
    for key in OUTPUTS:
        assert_close(out[key], expected[key])


def test_masked_rows_change_no_gradient(padded):
    loss = random_loss()
    expected = gradients(loss, random_batch(12))
    for key, grad in gradients(loss, padded).items():
        assert_close(grad, expected[key], msg=lambda m, key=key: f"{key}: {m}")


def test_masked_rows_have_finite_priorities(padded):
    """A NaN would poison the whole sum tree of a prioritized buffer."""
    loss, batch = random_loss(), random_batch(12)
    loss(batch)
    loss(padded)
    kept = padded["td_error"][padded[MASK]]
    assert_close(kept.sort().values, batch["td_error"].sort().values)
    assert padded["td_error"].isfinite().all()


@pytest.mark.parametrize("padding", [7.0, math.nan])
def test_mask_and_weights_together(padding):
    loss, batch = random_loss(), random_batch(8)
    batch["priority_weight"] = tensor([0.1, 0.4, 1.0, 0.3, 0.7, padding, padding, padding])
    batch[MASK] = tensor([True] * 5 + [False] * 3)
    kept = batch[:5].exclude(MASK)
    out, expected = loss(batch), loss(kept)
    for key in LOSSES:
        assert_close(out[key], expected[key])


@pytest.mark.parametrize("shape", [(8,), (8, 1)])
def test_priority_weight_with_or_without_a_last_dimension(shape):
    loss = random_loss()
    weights = torch.rand(8) + 0.1
    per_row = random_loss(reduction="none")(random_batch(8))
    out = loss(random_batch(8).set("priority_weight", weights.reshape(shape)))
    for key in LOSSES:
        assert_close(out[key], (weights * per_row[key]).sum() / weights.sum())


def test_critic_with_inputs_of_its_own():
    """Q(s, privileged, a) = s + 3 p + a: p = 1, 0, 0, -1 moves both sides of the hand numbers.

    Q1 and its target (equal here) are 4, 1.25, 0, 1, Q2 = 10 + ... never the minimum. u = min Q'
    - V(s) = 3.5, -0.25, -1.5, -1.5: V loss 0.8*12.25 + 0.2*(0.0625 + 2.25 + 2.25) = 10.7125.
    Q1 errs from 2, 2, 1, 1 by 2, -0.75, -1, 0; Q2, 10 above, by 12, 9.25, 9, 10: 4 + 0.5625 + 1
    + 144 + 85.5625 + 81 + 100 = 416.125.
    """
    loss = IQLLoss(
        gaussian(UnitGaussian(0.5)),
        [critic(Affine([1.0, 3.0, 1.0], bias), "privileged") for bias in (0.0, 10.0)],
        state_value(Affine([1.0], 0.5)),
        gamma=0.5, expectile=0.8, temperature=2.0,
    )  # fmt: skip
    batch = hand_batch().set("privileged", column(1.0, 0.0, 0.0, -1.0))
    out = loss(batch)
    assert_close(out["loss_value"], tensor(10.7125 / 4))
    assert_close(out["loss_qvalue"], tensor(416.125 / 4))
    assert_close(batch["td_error"], tensor([144.0, 85.5625, 81.0, 100.0]))


def test_two_batch_dimensions_are_one_long_batch():
    loss = random_loss()
    batch = random_batch(4, 3)
    flat = batch.reshape(12)
    out, expected = loss(batch), loss(flat)
    for key in OUTPUTS:
        assert_close(out[key], expected[key])
    assert batch["td_error"].shape == (4, 3)
    assert_close(batch["td_error"].flatten(), flat["td_error"])


@pytest.mark.parametrize("shape", [(12,), (4, 3)])
def test_reductions(shape):
    mean, total, none = (
        random_loss(reduction=r)(random_batch(*shape)) for r in (None, "sum", "none")
    )
    for key in LOSSES:
        assert mean[key].shape == total[key].shape == ()
        assert none[key].shape == shape
        assert_close(none[key].mean(), mean[key])
        assert_close(total[key], 12 * mean[key])


def test_entropy_is_a_plain_mean():
    """A metric, as TorchRL has it: neither the reduction nor the weights change its meaning."""
    expected = random_loss()(random_batch(8))["entropy"]
    assert_close(random_loss(reduction="sum")(random_batch(8))["entropy"], expected)
    weighted = random_batch(8).set("priority_weight", torch.arange(8.0))
    assert_close(random_loss()(weighted)["entropy"], expected)


def test_batch_keeps_its_content():
    """Only ``td_error`` is added: the next loss on the same batch must see the same data."""
    batch = random_batch(6)
    before = batch.clone()
    random_loss()(batch)
    assert (batch.exclude("td_error") == before).all()
    assert batch["td_error"].shape == (6,)
    assert not batch["td_error"].requires_grad


# Construction ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "bad"),
    [
        ("expectile", 0.0),
        ("expectile", 1.5),
        ("expectile", math.nan),
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("max_advantage_weight", 0.0),
        ("max_advantage_weight", math.nan),
        ("gamma", -0.1),
        ("gamma", 1.5),
        ("gamma", math.nan),
        ("loss_function", "foo"),
        ("reduction", "foo"),
    ],
)
def test_bad_options_are_refused(option, bad):
    with pytest.raises(ValueError, match=rf"(?s){option}.*{bad}"):
        IQLLoss(*networks(), **{option: bad})


def test_wrong_number_of_critics_is_refused():
    actor, critics, v = networks()
    with pytest.raises(ValueError, match="3"):
        IQLLoss(actor, critics, v, num_qvalue_nets=3)
    with pytest.raises(ValueError, match="0"):
        IQLLoss(actor, critics[0], v, num_qvalue_nets=0)


def test_three_critics():
    """The minimum is over all of them: a third target far below the others decides u."""
    torch.manual_seed(0)
    loss = IQLLoss(gaussian_actor(SPACES, (8,)), twin_q(SPACES, (8,), number=3),
                   value(SPACES, (8,)), num_qvalue_nets=3, expectile=0.5, gamma=0.9)  # fmt: skip
    batch = random_batch(8)
    with torch.no_grad():
        loss.target_qvalue_network[2].module.trunk[-1].bias.sub_(50.0)
        u = loss.target_qvalue_network[2](batch.clone())["state_action_value"]
        u = u - loss.value_network(batch.clone())["state_value"]
    assert_close(loss(batch)["loss_value"], (0.5 * u**2).mean())


def test_single_critic_is_kept_and_joined_by_another():
    torch.manual_seed(0)
    actor, (given, _), v = networks()
    weights = copy.deepcopy(given.state_dict())
    loss = IQLLoss(actor, given, v)
    assert len(loss.qvalue_network) == 2
    first, second = loss.qvalue_network
    for p, q in zip(first.parameters(), given.parameters(), strict=True):
        assert p is q
    assert_close(dict(given.state_dict()), dict(weights), atol=0, rtol=0)
    for p, q in zip(first.parameters(), second.parameters(), strict=True):
        assert p is not q
        assert not torch.equal(p, q)
    for online, target in zip(loss.qvalue_network, loss.target_qvalue_network, strict=True):
        assert_close(dict(online.state_dict()), dict(target.state_dict()), atol=0, rtol=0)


@pytest.mark.parametrize(
    "key",
    ["observation", "action", ("next", "observation"), ("next", "reward"), ("next", "terminated")],
)
def test_missing_key_is_named(key):
    batch = random_batch(4)  # without "terminated", "done" must not silently take its place
    del batch[key]
    with pytest.raises((ValueError, KeyError), match=key if isinstance(key, str) else key[1]):
        random_loss()(batch)


@pytest.mark.parametrize(("shape", "named"), [((4, 3), "4, 3"), ((4,), "4,"), ((4, 1), "4, 1")])
def test_wrong_action_shape_is_named(shape, named):
    batch = random_batch(4).set("action", torch.zeros(shape))
    with pytest.raises(ValueError, match=rf"(?s)action.*\({named}"):
        random_loss()(batch)


@pytest.mark.parametrize("key", ["reward", "terminated"])
def test_flat_column_is_named(key):
    """(batch,) against (batch, 1) must not become (batch, batch), and the user must find it."""
    batch = random_batch(4)
    batch["next", key] = batch["next", key].squeeze(-1)
    with pytest.raises(ValueError, match=key):
        random_loss()(batch)


@pytest.mark.parametrize("which", ["state_value", "state_action_value"])
def test_wrong_network_output_is_named(which):
    actor, critics, v = networks()
    if which == "state_value":
        v = state_value(nn.Linear(3, 2))
    else:
        critics = [critic(nn.Bilinear(3, 2, 2)) for _ in range(2)]
    with pytest.raises(ValueError, match=rf"(?s){which}.*\(4, 2\)"):
        IQLLoss(actor, critics, v)(random_batch(4))


# What it learns ----------------------------------------------------------------------------------


class Quadratic(nn.Module):
    """Any value for each of the actions -1, 0, 1: a table in the form of a function."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Linear(3, 1)

    def forward(self, s: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return self.table(torch.cat([a, a**2, s], -1))


def test_learns_the_expectile_of_the_best_actions():
    """One state, actions -1, 0, 1 with rewards 0, 1, 3, each ends the episode; tau 0.9, beta 1.

    Q becomes the rewards. V becomes their 0.9-expectile v: 0.9 (3 - v) = 0.1 (v + v - 1), so
    v = 2.8/1.1 = 2.5454545. The actor's mean becomes the mean of the actions under weights
    e^(Q - V), in which V cancels: (e^3 - 1)/(1 + e + e^3) = 19.0855/23.8038 = 0.8017844.
    """
    torch.manual_seed(0)
    loss = IQLLoss(
        gaussian(UnitGaussian(0.0)),
        [critic(Quadratic()), critic(Quadratic())],
        state_value(Affine([0.0])),
        gamma=0.99, expectile=0.9, temperature=1.0,
    )  # fmt: skip
    ends = torch.ones(3, 1, dtype=torch.bool)
    next_ = {"observation": torch.full((3, 1), 100.0), "reward": column(0.0, 1.0, 3.0)}
    next_ |= {"done": ends, "terminated": ends}
    action = column(-1.0, 0.0, 1.0)
    batch = TensorDict({"observation": torch.ones(3, 1), "action": action, "next": next_}, [3])
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.05)
    targets = SoftUpdate(loss, tau=0.1)
    for _ in range(600):
        optimizer.zero_grad()
        out = loss(batch)
        sum(out[name] for name in LOSSES).backward()
        optimizer.step()
        targets.step()
    with torch.no_grad():
        for net in (*loss.qvalue_network, *loss.target_qvalue_network):
            assert_close(net(batch.clone())["state_action_value"], column(0.0, 1.0, 3.0),
                         atol=0.01, rtol=0)  # fmt: skip
        assert loss.value_network(batch.clone())["state_value"][0].item() == pytest.approx(
            2.5454545, abs=0.01
        )
        assert loss.actor_network.get_dist(batch.clone()).mean[0].item() == pytest.approx(
            0.8017844, abs=0.01
        )
