"""SAC: by hand, in plain torch, against TorchRL's own, and what it learns on a known problem."""

from __future__ import annotations

import math

import pytest
import torch
from losses.examples import BOX, continuous_batch, sac
from losses.test_cql import uniform_actor
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import Bounded
from torchrl.modules import ProbabilisticActor, TanhNormal
from torchrl.objectives import SACLoss as StockSACLoss

from composerl.envs.spaces import Spaces
from composerl.losses import SACLoss, squashed_sample
from composerl.modules import gaussian_actor, tanh_gaussian_actor, twin_q
from composerl.testing import check_loss
from composerl.update import Update


class Constant(nn.Module):
    """A critic with one value everywhere."""

    def __init__(self, level):
        super().__init__()
        self.level = nn.Parameter(torch.tensor(float(level)))

    def forward(self, observation, action):
        return self.level.expand(*observation.shape[:-1], 1) + 0 * action[..., :1]


def constant(level):
    return TensorDictModule(Constant(level), ["observation", "action"], ["state_action_value"])


def one_row(terminated):
    no = torch.zeros(1, 1, dtype=torch.bool)
    following = {
        "observation": torch.zeros(1, 3),
        "reward": torch.ones(1, 1),
        "terminated": no | terminated,
        "truncated": ~no,
        "done": ~no,
    }
    data = {"observation": torch.zeros(1, 3), "action": torch.zeros(1, 2)}
    return TensorDict({**data, "next": following}, [1])


@pytest.mark.parametrize("terminated", [False, True])
def test_by_hand(terminated):
    """A uniform policy over [-1, 1]^2 has log-probability -2 log 2 everywhere. Target critics 3
    and 5, critics 1 and 2, alpha 1/2, r = 1, gamma = 0.9. The value of s' is 3 + 0.5 * 2 log 2 =
    3 + log 2, so y = 1 + 0.9 (3 + log 2), or 1 where s' is terminal (truncation does not count).
    L_Q = (y - 1)^2 + (y - 2)^2, L_pi = -log 2 - 1, and with H = -2
    L_alpha = log 2 * (-2 log 2 - 2)."""
    spaces = Spaces(obs_shape=(3,), low=(-1.0, -1.0), high=(1.0, 1.0))
    loss = SACLoss(uniform_actor(spaces), [constant(1), constant(2)], alpha_init=0.5, gamma=0.9)
    for target, level in zip(loss.target_qvalue_network, (3.0, 5.0), strict=True):
        target.module.level.fill_(level)
    batch = one_row(terminated)
    out = loss(batch)
    y = 1.0 if terminated else 1 + 0.9 * (3 + math.log(2))
    assert out["loss_qvalue"].item() == pytest.approx((y - 1) ** 2 + (y - 2) ** 2, rel=1e-5)
    assert out["loss_actor"].item() == pytest.approx(-math.log(2) - 1, rel=1e-5)
    assert out["loss_alpha"].item() == pytest.approx(math.log(2) * (-2 * math.log(2) - 2), rel=1e-5)
    assert out["alpha"].item() == pytest.approx(0.5)
    assert out["entropy"].item() == pytest.approx(2 * math.log(2), rel=1e-5)
    assert batch["td_error"].item() == pytest.approx(max((y - 1) ** 2, (y - 2) ** 2), rel=1e-5)


def plain_rendition(loss, batch):
    """The losses once more with nothing but torch, drawing in the same order."""
    s, a, s2 = batch["observation"], batch["action"], batch["next", "observation"]
    r = batch["next", "reward"].squeeze(-1)
    live = (~batch["next", "terminated"]).float().squeeze(-1)
    low, high = torch.tensor(BOX.low), torch.tensor(BOX.high)

    def sample(obs):
        mean, std = loss.actor_network.module[0].module(obs)
        u = mean + std * torch.randn(mean.shape)
        normal = torch.distributions.Normal(mean, std).log_prob(u)
        slope = (high - low) / 2 * (1 - u.tanh() ** 2)
        return low + (high - low) * (u.tanh() + 1) / 2, (normal - slope.log()).sum(-1)

    def q(networks, obs, action):
        return torch.stack([net.module(obs, action).squeeze(-1) for net in networks])

    alpha = loss.log_alpha.exp().detach()
    new, log_pi = sample(s)
    with torch.no_grad():
        a2, log_pi2 = sample(s2)
        least = q(loss.target_qvalue_network, s2, a2).amin(0)
        y = r + 0.99 * live * (least - alpha * log_pi2)
    return {
        "loss_qvalue": (q(loss.qvalue_network, s, a) - y).square().sum(0).mean(),
        "loss_actor": (alpha * log_pi - q(loss.qvalue_network, s, new).amin(0)).mean(),
        "loss_alpha": (-loss.log_alpha * (log_pi.detach() - 2)).mean(),
    }


def test_equals_a_plain_rendition():
    loss, batch = sac(alpha_init=0.3)
    torch.manual_seed(3)
    out = loss(batch.clone())
    torch.manual_seed(3)
    expected = plain_rendition(loss, batch)
    for key, network in (
        ("loss_qvalue", loss.qvalue_network),
        ("loss_actor", loss.actor_network),
        ("loss_alpha", None),
    ):
        torch.testing.assert_close(out[key], expected[key], rtol=1e-4, atol=1e-5)
        params = [loss.log_alpha] if network is None else list(network.parameters())
        mine = torch.autograd.grad(out[key], params, retain_graph=True)
        theirs = torch.autograd.grad(expected[key], params, retain_graph=True)
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_agrees_with_torchrl_in_the_mean():
    """Both draw their own actions; over 300 draws the losses have the same means."""
    loss, batch = sac(alpha_init=0.3)
    stock = StockSACLoss(
        loss.actor_network, list(loss.qvalue_network), loss_function="l2", alpha_init=0.3
    )
    stock.make_value_estimator(gamma=0.99)
    torch.manual_seed(0)
    mine, theirs = (
        torch.stack([each(batch.clone()).detach() for _ in range(300)]) for each in (loss, stock)
    )
    for key in ("loss_qvalue", "loss_actor", "loss_alpha"):
        error = (mine[key].var() / 300 + theirs[key].var() / 300).sqrt()
        assert (mine[key].mean() - theirs[key].mean()).abs() < 4 * error, key


def test_squashed_samples_are_those_of_the_distribution():
    torch.manual_seed(0)
    low, high = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 10.0])
    loc, scale = torch.randn(500, 2), torch.rand(500, 2) + 0.1
    loc.requires_grad_(), scale.requires_grad_()
    action, log_prob = squashed_sample(loc, scale, low, high)
    assert ((action >= low) & (action <= high)).all()
    inside = ((action - low).amin(1) > 1e-2) & ((high - action).amin(1) > 1e-2)
    dist = TanhNormal(loc, scale, low=low, high=high)
    torch.testing.assert_close(
        log_prob[inside], dist.log_prob(action)[inside], rtol=1e-3, atol=2e-3
    )
    # reparametrised: the gradient is that of TorchRL's own pathwise sample
    torch.manual_seed(1)
    mine = squashed_sample(loc, scale, low, high)
    torch.manual_seed(1)
    theirs = dist.rsample_and_log_prob()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        for x, y in zip(
            torch.autograd.grad(a.sum(), (loc, scale), retain_graph=True),
            torch.autograd.grad(b.sum(), (loc, scale), retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-3)
    # where tanh is 1 to rounding, everything stays finite
    far = torch.full((1, 2), 60.0, requires_grad=True)
    action, log_prob = squashed_sample(far, torch.ones(1, 2), low, high)
    (action.sum() + log_prob.sum()).backward()
    assert torch.isfinite(log_prob).all()
    assert torch.isfinite(far.grad).all()


def test_other_policies_take_torchrl_s_way():
    """A distribution with options of its own, another one, or another box: the general path."""
    assert sac()[0]._squashed

    box = {"low": torch.tensor(BOX.low), "high": torch.tensor(BOX.high)}

    def actor(**options):
        net = tanh_gaussian_actor(BOX, (8,))
        return ProbabilisticActor(
            net.module[0], in_keys=["loc", "scale"], spec=Bounded(**box), **options
        )

    for policy in (
        actor(distribution_class=TanhNormal, distribution_kwargs={**box, "tanh_loc": True}),
        actor(distribution_class=TanhNormal, distribution_kwargs={**box, "upscale": 3.0}),
        actor(distribution_class=TanhNormal),
        gaussian_actor(BOX, (8,)),
    ):
        loss = SACLoss(policy, twin_q(BOX, (8,)))
        assert not loss._squashed
        out = loss(continuous_batch())
        assert all(torch.isfinite(value) for value in out.values())
    check_loss(SACLoss(gaussian_actor(BOX, (8,)), twin_q(BOX, (8,))), continuous_batch())


def test_each_loss_reaches_its_own_network():
    loss, batch = sac()
    out = loss(batch)
    for key, owner in (
        ("loss_qvalue", "qvalue_network"),
        ("loss_actor", "actor_network"),
        ("loss_alpha", "log_alpha"),
    ):
        loss.zero_grad()
        out[key].backward(retain_graph=True)
        reached = {
            name.split(".")[0]
            for name, p in loss.named_parameters()
            if p.grad is not None and p.grad.any()
        }
        assert reached == {owner}, key
    assert all(p.requires_grad for p in loss.qvalue_network.parameters())


def test_frozen_parameters_of_a_critic_stay_frozen():
    critics = twin_q(BOX, (8,))
    still = list(critics[0].parameters())[:2]
    for parameter in still:
        parameter.requires_grad_(False)
    loss = SACLoss(tanh_gaussian_actor(BOX, (8,)), critics)
    loss(continuous_batch())
    assert not any(parameter.requires_grad for parameter in still)
    assert sum(p.requires_grad for p in loss.qvalue_network.parameters()) == 6


def test_no_gradient_reaches_a_model_that_made_the_batch():
    from composerl.data import branched_rollouts
    from composerl.modules import ensemble

    loss, _ = sac()
    model = ensemble(BOX, (8,), terminates=True)
    batch = branched_rollouts(model, loss.actor_network, torch.randn(8, 3), 2)
    out = loss(batch)
    sum(out[key] for key in ("loss_actor", "loss_qvalue", "loss_alpha")).backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert any(parameter.grad is not None for parameter in loss.actor_network.parameters())


def test_temperature_follows_the_entropy():
    """Above the target entropy the temperature falls, below it rises."""
    spaces = Spaces(obs_shape=(3,), low=(-1.0, -1.0), high=(1.0, 1.0))
    for target, sign in ((0.0, -1), (3.0, 1)):  # the policy's entropy is 2 log 2 = 1.39
        loss = SACLoss(uniform_actor(spaces), twin_q(spaces, (8,)), target_entropy=target)
        Update(loss, lr=0.1)(continuous_batch())
        assert math.copysign(1, loss.log_alpha.item()) == sign


def test_learns_the_soft_optimal_policy_of_a_bandit():
    """One state, r(a) = 2a, every step terminal, alpha fixed at 1: the best soft policy has
    density proportional to e^{2a} on [-1, 1], whose mean is coth(2) - 1/2 = 0.537. A squashed
    Gaussian is close to it, but not it."""
    torch.manual_seed(0)
    spaces = Spaces(obs_shape=(1,), low=(-1.0,), high=(1.0,))
    actor = tanh_gaussian_actor(spaces, (16,))
    loss = SACLoss(actor, twin_q(spaces, (16,)), fixed_alpha=True)
    update = Update(loss, lr=3e-3)
    yes = torch.ones(64, 1, dtype=torch.bool)
    for _ in range(800):
        action = 2 * torch.rand(64, 1) - 1
        following = {"observation": torch.zeros(64, 1), "reward": 2 * action,
                     "terminated": yes, "done": yes}  # fmt: skip
        data = {"observation": torch.zeros(64, 1), "action": action}
        update(TensorDict({**data, "next": following}, [64]))
    mean = actor.explore(torch.zeros(20_000, 1)).mean().item()
    assert mean == pytest.approx(1 / math.tanh(2) - 0.5, abs=0.06)


@pytest.mark.parametrize(
    "options",
    [{"fixed_alpha": True}, {"num_qvalue_nets": 1}, {"loss_function": "huber"}],
    ids=str,
)
def test_options_conform(options):
    torch.manual_seed(0)
    critics = twin_q(BOX, (8,), number=options.get("num_qvalue_nets", 2))
    loss = SACLoss(tanh_gaussian_actor(BOX, (8,)), critics, **options)
    check_loss(loss, continuous_batch())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha_init": 0.0}, "alpha_init"),
        ({"gamma": 1.5}, "gamma"),
        ({"loss_function": "l3"}, "loss_function"),
        ({"reduction": "max"}, "reduction"),
        ({"num_qvalue_nets": 3}, "num_qvalue_nets"),
        ({"target_entropy": float("nan")}, "target_entropy"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        SACLoss(tanh_gaussian_actor(BOX), twin_q(BOX), **options)


@pytest.mark.parametrize(
    ("high", "entropy"), [((1.0, 1.0), -2.0), ((2.0, 4.0), -2.0), ((0.1, 0.5), -4.995732)]
)
def test_automatic_entropy_can_be_reached(high, entropy):
    """-|A|; in the last box, whose largest entropy is log(0.2), -2 + log(0.1) + log(0.5)."""
    spaces = Spaces(obs_shape=(3,), low=tuple(-h for h in high), high=high)
    loss = SACLoss(tanh_gaussian_actor(spaces), twin_q(spaces))
    assert loss.target_entropy.item() == pytest.approx(entropy)
    assert loss.target_entropy < sum(math.log(2 * h) for h in high)
