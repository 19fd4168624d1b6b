"""CQL: the penalty by hand, its options, what it learns on a problem with known values."""

from __future__ import annotations

import math

import pytest
import torch
from losses.examples import BOX, continuous_batch, cql
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import Bounded

from composerl.envs.spaces import Spaces
from composerl.losses import CQLLoss, cql_penalty
from composerl.modules import gaussian_actor, tanh_gaussian_actor, twin_q
from composerl.testing import check_loss
from composerl.update import Update


class Uniform(torch.distributions.Distribution):
    """Uniform over a box, as a policy whose samples have a constant density."""

    arg_constraints = {}  # noqa: RUF012
    has_rsample = True

    def __init__(self, loc, low, high):
        self.loc, self.low, self.high = loc, low, high
        super().__init__(loc.shape[:-1], loc.shape[-1:], validate_args=False)

    def rsample(self, sample_shape=()):
        noise = torch.rand(*sample_shape, *self.loc.shape)
        return self.low + (self.high - self.low) * noise + 0 * self.loc

    def log_prob(self, value):
        return -(self.high - self.low).log().sum() + 0 * value.sum(-1)


def uniform_actor(spaces):
    from torchrl.modules import ProbabilisticActor

    low, high = torch.tensor(spaces.low), torch.tensor(spaces.high)
    return ProbabilisticActor(
        TensorDictModule(nn.Linear(3, len(low)), in_keys=["observation"], out_keys=["loc"]),
        in_keys=["loc"],
        spec=Bounded(low, high),
        distribution_class=Uniform,
        distribution_kwargs={"low": low, "high": high},
    )


def zero_critics(spaces):
    critics = twin_q(spaces, (4,))
    with torch.no_grad():
        for critic in critics:
            for p in critic.parameters():
                p.zero_()
    return critics


@pytest.mark.parametrize("bound", [1.0, 2.0])
@pytest.mark.parametrize("n", [1, 10, 100])
def test_penalty_of_a_zero_critic_under_a_uniform_policy(n, bound):
    """Each of the 3n entries is 0 - log(1 / volume), so their logsumexp is log(3n) + log(volume);
    Q(s, a) is 0. Two dimensions of width 2 * bound: volume (2 * bound)^2. Weight 5, two critics."""
    spaces = Spaces(obs_shape=(3,), low=(-bound, -bound), high=(bound, bound))
    loss = CQLLoss(uniform_actor(spaces), zero_critics(spaces), num_random=n, min_q_weight=5.0)
    expected = math.log(3 * n) + 2 * math.log(2 * bound)
    assert loss(continuous_batch())["loss_cql"].item() == pytest.approx(2 * 5 * expected, rel=1e-5)


def test_penalty_by_hand():
    """Three samples with Q = 1, 2, 3 and log densities 0, 1, -1: z = 1, 1, 4.

    T = 1: log(2e + e^4) - Q_data; T = 2: 2 log(2 e^0.5 + e^2) - Q_data.
    """
    q = torch.tensor([1.0, 2.0, 3.0]).reshape(1, 3, 1)
    density = torch.tensor([0.0, 1.0, -1.0]).reshape(3, 1)
    data = torch.tensor([[0.5]])
    one = cql_penalty(q, density, data, 1.0)
    assert one.item() == pytest.approx(math.log(2 * math.e + math.e**4) - 0.5, rel=1e-6)
    two = cql_penalty(q, density, data, 2.0)
    assert two.item() == pytest.approx(2 * math.log(2 * math.exp(0.5) + math.e**2) - 0.5, rel=1e-6)
    # calibrated by a return of 2.5: the policy's 2 becomes 2.5, its 3 and the uniform 1 stay,
    # z = 1, 1.5, 4
    floored = cql_penalty(q, density, data, 1.0, torch.tensor([2.5]))
    expected = math.log(math.e + math.exp(1.5) + math.e**4) - 0.5
    assert floored.item() == pytest.approx(expected, rel=1e-6)


def plain_rendition(loss, batch, n):
    """The losses once more with nothing but torch, drawing in the same order."""
    s, a, s2 = batch["observation"], batch["action"], batch["next", "observation"]
    r, live = (
        batch["next", "reward"].squeeze(-1),
        (~batch["next", "terminated"]).float().squeeze(-1),
    )
    critics = [net.module for net in loss.qvalue_network]
    targets = [net.module for net in loss.target_qvalue_network]
    actor = loss.actor_network.module[0].module
    low, high = torch.tensor(BOX.low), torch.tensor(BOX.high)

    def sample(obs, *k):
        mean, std = actor(obs)
        u = mean + std * torch.randn(*k, *mean.shape)
        action = low + (high - low) * (u.tanh() + 1) / 2
        normal = torch.distributions.Normal(mean, std).log_prob(u)
        squash = (high - low).log() - math.log(2) + torch.log1p(-u.tanh().square() + 1e-9)
        return action, (normal - squash).sum(-1)

    def q(net, obs, action):
        return net(obs.expand(*action.shape[:-1], obs.shape[-1]), action).squeeze(-1)

    new_action, log_pi = sample(s)
    with torch.no_grad():
        a_pi, lp_pi = sample(s, n)
        a_next, lp_next = sample(s2, n + 1)
        y = r + 0.99 * live * torch.minimum(*[q(net, s2, a_next[-1]) for net in targets])
        a_rand = low + (high - low) * torch.rand(*a_pi.shape)
    cql_loss, q_loss = 0.0, 0.0
    for net in critics:
        z = torch.cat([
            q(net, s, a_rand) + (high - low).log().sum(),
            q(net, s, a_pi) - lp_pi,
            q(net, s, a_next[:n]) - lp_next[:n],
        ])  # fmt: skip
        q_data = q(net, s, a)
        cql_loss = cql_loss + 5.0 * (z.logsumexp(0) - q_data).mean()
        q_loss = q_loss + (q_data - y).square().mean()
    alpha = loss.log_alpha.exp().detach()
    actor_loss = (
        alpha * log_pi - torch.minimum(*[q(net, s, new_action) for net in critics])
    ).mean()
    alpha_loss = (-loss.log_alpha * (log_pi.detach() - 2)).mean()
    return {"loss_cql": cql_loss, "loss_qvalue": q_loss, "loss_actor": actor_loss,
            "loss_alpha": alpha_loss}  # fmt: skip


def test_equals_a_plain_rendition():
    loss, batch = cql()
    torch.manual_seed(3)
    out = loss(batch.clone())
    torch.manual_seed(3)
    expected = plain_rendition(loss, batch, 3)
    for key, value in expected.items():
        torch.testing.assert_close(
            out[key], value, rtol=1e-4, atol=1e-4, msg=lambda m, k=key: f"{k}: {m}"
        )
    # gradients too, of the critics and of the actor
    for keys, network in (
        (["loss_cql", "loss_qvalue"], "qvalue_network"),
        (["loss_actor"], "actor_network"),
    ):
        params = list(getattr(loss, network).parameters())
        mine = torch.autograd.grad(sum(out[k] for k in keys), params, retain_graph=True)
        theirs = torch.autograd.grad(sum(expected[k] for k in keys), params, retain_graph=True)
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_penalty_reaches_no_actor_and_actor_no_critic():
    loss, batch = cql(with_lagrange=True)
    out = loss(batch)
    for key, owner in (
        ("loss_cql", "qvalue_network"),
        ("loss_qvalue", "qvalue_network"),
        ("loss_actor", "actor_network"),
        ("loss_alpha", "log_alpha"),
        ("loss_alpha_prime", "log_alpha_prime"),
    ):
        loss.zero_grad()
        out[key].backward(retain_graph=True)
        reached = {
            n.split(".")[0]
            for n, p in loss.named_parameters()
            if p.grad is not None and p.grad.any()
        }
        assert reached == {owner}, key


def test_lagrange_raises_the_weight_above_the_gap_and_lowers_it_below():
    """Zero critics and a uniform policy over +-1: the difference is log(3) + 2 log(2) = 2.48."""
    spaces = Spaces(obs_shape=(3,), low=(-1.0, -1.0), high=(1.0, 1.0))
    for gap, sign in ((1.0, 1), (4.0, -1)):
        loss = CQLLoss(
            uniform_actor(spaces), zero_critics(spaces), num_random=1,
            with_lagrange=True, lagrange_thresh=gap,
        )  # fmt: skip
        out = loss(continuous_batch())
        excess = math.log(3) + 2 * math.log(2) - gap
        assert out["loss_cql"].item() == pytest.approx(2 * excess, rel=1e-5)
        assert out["loss_alpha_prime"].item() == pytest.approx(-excess, rel=1e-5)
        Update(loss, lr=0.1)(continuous_batch())
        assert math.copysign(1, loss.log_alpha_prime.item()) == sign
        assert out["alpha_prime"].item() == 1.0
        # the multiplier multiplies
        with torch.no_grad():
            loss.log_alpha_prime.fill_(math.log(3.0))
            for p in loss.qvalue_network.parameters():
                p.zero_()
        assert loss(continuous_batch())["loss_cql"].item() == pytest.approx(6 * excess, rel=1e-5)


def test_backup_options():
    """A critic Q = a_0 (targets too) and r = 0, gamma = 0.5: the target is half of the sampled
    action, half of the largest of n with max_q_backup, minus alpha log pi / 2 with entropy."""

    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, observation, action):
            return action[..., :1] * self.scale + 0 * observation[..., :1]

    def critics():
        return [
            TensorDictModule(
                First(), in_keys=["observation", "action"], out_keys=["state_action_value"]
            )
            for _ in range(2)
        ]

    batch = continuous_batch()
    batch["next", "reward"] = torch.zeros(8, 1)
    batch["next", "terminated"] = torch.zeros(8, 1, dtype=torch.bool)
    results = {}
    for name, options in {
        "one": {}, "max": {"max_q_backup": True}, "entropy": {"deterministic_backup": False},
    }.items():  # fmt: skip
        torch.manual_seed(0)
        actor = tanh_gaussian_actor(BOX, (8,))
        loss = CQLLoss(actor, critics(), num_random=50, gamma=0.5, alpha_init=0.7, **options)
        seen = {}
        original = loss.td_target

        def spy(batch, next_value, original=original, seen=seen):
            seen["value"] = next_value
            return original(batch, next_value)

        loss.td_target = spy
        torch.manual_seed(1)
        loss(batch.clone())
        results[name] = seen["value"]
    torch.manual_seed(1)
    dist = actor.get_dist(batch)
    from torchrl.modules.distributions.utils import rsample_and_log_prob

    rsample_and_log_prob(dist), rsample_and_log_prob(dist, (50,))
    next_data = TensorDict({"observation": batch["next", "observation"]}, [8])
    action, log_prob = rsample_and_log_prob(actor.get_dist(next_data), (51,))
    torch.testing.assert_close(results["one"], action[-1, :, 0])
    torch.testing.assert_close(results["max"], action[:-1, :, 0].amax(0))
    torch.testing.assert_close(results["entropy"], action[-1, :, 0] - 0.7 * log_prob[-1])


def test_uniform_actions_fill_the_box(monkeypatch):
    loss, batch = cql()
    seen = []
    original = loss._q

    def spy(network, batch, actions, **options):
        seen.append(actions)
        return original(network, batch, actions, **options)

    loss._q = spy
    for _ in range(50):
        loss(batch.clone())
    uniform = torch.cat([a[:3] for a in seen if len(a) == 10]).reshape(-1, 2)
    low, high = torch.tensor(BOX.low), torch.tensor(BOX.high)
    assert ((uniform >= low) & (uniform <= high)).all()
    torch.testing.assert_close(uniform.mean(0), (low + high) / 2, atol=0.1, rtol=0)
    torch.testing.assert_close(uniform.var(0), (high - low).square() / 12, rtol=0.1, atol=0)


def test_behaviour_cloning_start_is_maximum_likelihood():
    """Whatever the temperature: the loss of the actor is -log pi(a|s) of the data's actions."""
    for alpha in (1e-3, 1.0, 30.0):
        loss, batch = cql(alpha_init=alpha)
        loss.imitate = True
        out = loss(batch.clone())
        expected = -loss.actor_network.get_dist(batch).log_prob(batch["action"]).mean()
        torch.testing.assert_close(out["loss_actor"], expected)


def test_the_temperature_waits_while_the_actor_clones():
    loss, batch = cql(alpha_init=0.5)
    update = Update(loss, lr=0.1)
    loss.imitate = True
    update(batch.clone())
    assert loss.log_alpha.exp().item() == pytest.approx(0.5)
    loss.imitate = False
    update(batch.clone())
    assert loss.log_alpha.exp().item() != pytest.approx(0.5, rel=0.01)


def test_calibrated_reads_the_returns():
    loss, batch = cql(calibrated=True)
    with pytest.raises(KeyError, match="mc_return"):
        loss(batch.clone())
    assert "mc_return" in loss.in_keys
    results = []
    for floor in (-1e6, 1e3):
        torch.manual_seed(0)
        results.append(loss(batch.clone().set("mc_return", torch.full((8, 1), floor)))["loss_cql"])
    assert results[1] > results[0] + 1000
    reference, _ = cql()
    torch.manual_seed(0)
    torch.testing.assert_close(reference(batch.clone())["loss_cql"], results[0])


@pytest.mark.parametrize(
    "options",
    [
        {"with_lagrange": True, "max_q_backup": True},
        {"fixed_alpha": True, "deterministic_backup": False},
    ],
    ids=str,
)
def test_options_conform(options):
    check_loss(*cql(**options))


def test_target_entropy_and_fixed_alpha():
    assert cql()[0].target_entropy == -2
    assert cql(target_entropy=-0.5)[0].target_entropy == -0.5
    fixed, batch = cql(fixed_alpha=True, alpha_init=0.3)
    assert "loss_alpha" not in fixed.out_keys
    assert fixed(batch)["alpha"].item() == pytest.approx(0.3)
    assert "log_alpha" not in dict(fixed.named_parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_q_weight": -1.0}, "min_q_weight"),
        ({"num_random": 0}, "num_random"),
        ({"num_random": 2.7}, "num_random"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"lagrange_thresh": -1.0}, "lagrange_thresh"),
        ({"alpha_init": 0.0}, "alpha_init"),
        ({"gamma": 1.5}, "gamma"),
        ({"loss_function": "l3"}, "loss_function"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        CQLLoss(tanh_gaussian_actor(BOX), twin_q(BOX), **options)


def test_unbounded_actions_are_refused():
    actor = gaussian_actor(Spaces(obs_shape=(3,), low=(-math.inf,), high=(math.inf,)))
    with pytest.raises(ValueError, match="bounded actions are needed"):
        CQLLoss(actor, twin_q(BOX))
