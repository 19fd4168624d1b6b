"""The losses without TensorDict: numbers by hand, the LossModules' own, gradients, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from losses.examples import BOX, EXAMPLES, continuous_batch, cql, fqf, iql, iqn, sac, xql
from losses.quantile_networks import record
from torch import tensor
from torch.testing import assert_close
from torchrl.modules.distributions.utils import rsample_and_log_prob

from composerl.losses import (
    XQLLoss,
    arguments,
    cql_loss,
    critic_loss,
    fqf_loss,
    gumbel_rescale_loss,
    iql_loss,
    iqn_loss,
    sac_loss,
    td_target,
    xql_loss,
)
from composerl.modules import gaussian_actor, twin_q, value

# ---- by hand -------------------------------------------------------------------------------


def test_td_target_by_hand():
    """Gamma 0.5: 1 + 0.5 * 4 = 3, and 2 alone where it terminated.

    Samples 4, 8: 3, 5. After two steps of rewards the discount is 0.25: 1 + 0.25 * 4 = 2.
    """
    reward, terminated = tensor([1.0, 2.0]), tensor([False, True])
    assert_close(td_target(reward, terminated, tensor([4.0, 4.0]), 0.5), tensor([3.0, 2.0]))
    samples = tensor([[4.0, 8.0], [4.0, 8.0]])
    expected = tensor([[3.0, 5.0], [2.0, 2.0]])
    assert_close(td_target(reward, terminated, samples, 0.5), expected)
    assert_close(td_target(reward, terminated.float(), samples, 0.5), expected)
    discount = tensor([0.25, 0.5])
    assert_close(td_target(reward, terminated, tensor([4.0, 4.0]), discount), tensor([2.0, 2.0]))
    later = tensor([2.0], requires_grad=True)
    td_target(tensor([1.0]), tensor([False]), later).backward()
    assert_close(later.grad, tensor([0.99]))


def test_td_target_keeps_double_precision():
    """0.99 in single precision is 0.99000001: the sum would be off by 1e-8."""
    out = td_target(torch.zeros(1).double(), tensor([False]), torch.ones(1).double())
    assert out.item() == 0.99


def values(**changes):
    """Two critics, two rows; V(s) = (1, 3) against the smaller target critics (2, 1)."""
    given = {
        "q": tensor([[1.0, 2.0], [4.0, 2.0]]),
        "target": tensor([2.0, 5.0]),
        "target_q": tensor([[2.0, 7.0], [3.0, 1.0]]),
        "value": tensor([1.0, 3.0]),
        "log_prob": tensor([-1.0, -2.0]),
    }
    return given | changes


def test_iql_by_hand():
    """u = (2 - 1, 1 - 3) = (1, -2). Tau 0.8: 0.8 * 1 and 0.2 * 4.

    Critics: (2 - 1)^2 + (2 - 4)^2 = 5, largest 4; 9 + 9 = 18, largest 9. Beta 0.5, bound 1.5:
    e^0.5 = 1.65 is cut to 1.5, times 1; e^-1 times 2.
    """
    rows = iql_loss(**values(), temperature=0.5, expectile=0.8, max_advantage_weight=1.5)
    assert_close(rows["loss_value"], tensor([0.8, 0.8]))
    assert_close(rows["loss_qvalue"], tensor([5.0, 18.0]))
    assert_close(rows["td_error"], tensor([4.0, 9.0]))
    assert_close(rows["loss_actor"], tensor([1.5, 2 / math.e]))
    assert_close(rows["entropy"], tensor([1.0, 2.0]))


def test_xql_by_hand():
    """Beta 1: z = (1, -2), m = 1: 1 - 2 / e and e^-3 + 2 / e - 1 / e = e^-3 + 1 / e.

    All else is IQL's, but for the Huber distance, linear beyond 20: of 42 to 2, 20 * (40 - 10).
    """
    rows = xql_loss(**values(), loss_temperature=1.0)
    assert_close(rows["loss_value"], tensor([1 - 2 / math.e, math.exp(-3) + 1 / math.e]))
    same = iql_loss(**values(), loss_function="huber")
    assert all(torch.equal(rows[name], same[name]) for name in rows if name != "loss_value")
    far = xql_loss(**values(q=tensor([[42.0, 2.0]]), target=tensor([2.0, 2.0])))
    assert_close(far["loss_qvalue"], tensor([600.0, 0.0]))


def test_xql_s_scale_is_that_of_the_rows_that_count():
    """Without the first row the largest z is -2, and m its floor of -1."""
    mask = tensor([False, True])
    rows = xql_loss(**values(), loss_temperature=1.0, mask=mask)
    assert_close(rows["loss_value"][1], tensor(math.exp(-1) + math.e))
    alone = {name: x[..., 1:] for name, x in values().items()}
    assert_close(rows["loss_value"][1:], xql_loss(**alone, loss_temperature=1.0)["loss_value"])


def test_xql_on_other_actions():
    """Least critics (3, 3) and (1, 5) at two more actions: differences (2, 0) and (0, 2) to V."""
    sampled = tensor([[3.0, 3.0], [1.0, 5.0]])
    rows = xql_loss(**values(), sampled_q=sampled)
    expected = gumbel_rescale_loss(tensor([[2.0, 0.0], [0.0, 2.0]]), 2.0, 7.0).mean(0)
    assert_close(rows["loss_value"], expected)
    masked = xql_loss(**values(), sampled_q=sampled - 10, mask=tensor([False, True]))
    alone = {name: x[..., 1:] for name, x in values().items()}
    alone = xql_loss(**alone, sampled_q=sampled[:, 1:] - 10)
    assert_close(masked["loss_value"][1:], alone["loss_value"])


def soft(**changes):
    """Alpha 0.5, log pi (-1, -2) of actions that the critics find worth (3, 1) at least."""
    given = {
        "q": tensor([[1.0, 2.0], [4.0, 2.0]]),
        "target": tensor([2.0, 5.0]),
        "policy_q": tensor([[3.0, 7.0], [4.0, 1.0]]),
        "log_prob": tensor([-1.0, -2.0]),
        "log_alpha": tensor(0.5).log(),
    }
    return given | changes


def test_sac_by_hand():
    """0.5 * (-1) - 3 and 0.5 * (-2) - 1; -log 0.5 * (-1 - 2) with H = -2, and of (-2 - 2)."""
    rows = sac_loss(**soft(), target_entropy=-2.0)
    assert_close(rows["loss_actor"], tensor([-3.5, -2.0]))
    assert_close(rows["loss_qvalue"], tensor([5.0, 18.0]))
    assert_close(rows["loss_alpha"], math.log(2) * tensor([-3.0, -4.0]))
    assert_close(rows["entropy"], tensor([1.0, 2.0]))
    assert "loss_alpha" not in sac_loss(**soft())


def samples(**changes):
    """Three samples, worth (0, log 2, log 3) to the first critic and 0 to the second."""
    worth = tensor([0.0, math.log(2), math.log(3)]).unsqueeze(-1)
    q = torch.stack([worth.expand(3, 2), torch.zeros(3, 2)])
    return soft() | {"q_samples": q, "log_density": torch.zeros(3, 2)} | changes


def test_cql_by_hand():
    """Logsumexp: log 6 and log 3, less Q(s, a): log 6 - 1 and log 3 - 4; log 6 - 2, log 3 - 2."""
    rows = cql_loss(**samples(), min_q_weight=2.0)
    penalty = tensor([math.log(18) - 5, math.log(18) - 4])
    assert_close(rows["loss_cql"], 2 * penalty)
    same = sac_loss(**soft())
    assert all(torch.equal(rows[name], row) for name, row in same.items())
    # Samples half as dense count twice: log 2 more for each critic.
    thin = cql_loss(**samples(log_density=torch.full((3, 2), -math.log(2))), min_q_weight=2.0)
    assert_close(thin["loss_cql"], 2 * (penalty + 2 * math.log(2)))
    # Cal-QL: the second and third sample, which are the policy's, count as 5 and as 5.
    floored = cql_loss(**samples(), min_q_weight=1.0, mc_return=tensor([5.0, 5.0]))
    least = 2 * math.log(1 + 2 * math.exp(5))
    assert_close(floored["loss_cql"], tensor([least - 5, least - 4]))


def test_cql_with_a_tuned_weight():
    """The excess of the penalty over the gap is what the weight multiplies, and what raises it."""
    weight = tensor(3.0, requires_grad=True)
    rows = cql_loss(**samples(), alpha_prime=weight, lagrange_thresh=0.25)
    excess = tensor([math.log(18) - 5, math.log(18) - 4]) - 2 * 0.25
    assert_close(rows["loss_cql"], 3 * excess)
    assert_close(rows["loss_alpha_prime"], -3 * excess / 2)
    rows["loss_alpha_prime"].sum().backward()
    assert_close(weight.grad, -excess.sum() / 2)
    assert not rows["loss_cql"].requires_grad


def test_iqn_by_hand():
    """Quantiles 0 and 4 at 0.25 and 0.5, samples 1, 3 and 5, kappa 1: delta - 1/2 beyond 1.

    First: 0.25 * (0.5 + 2.5 + 4.5) / 3 = 0.625. Second: (0.5 * 2.5 + 0.5 * 0.5 + 0.5 * 0.5) / 3.
    """
    quantiles, target = tensor([[0.0, 4.0]]), tensor([[1.0, 3.0, 5.0]])
    for taus in (tensor([0.25, 0.5]), tensor([[0.25, 0.5]])):
        rows = iqn_loss(quantiles, target, taus)
        assert_close(rows["loss_qvalue"], tensor([0.625 + 1.75 / 3]))
    assert [rows[x].item() for x in ("pred_value", "target_value", "td_error")] == [2.0, 3.0, 1.0]


def fractions(**changes):
    """Cuts at 0.2 and 0.6, quantiles 0, 1, 3 there between, targets 2 and 6."""
    given = {
        "quantiles": tensor([[0.0, 1.0, 3.0]]),
        "target": tensor([[2.0, 6.0]]),
        "taus": tensor([[0.0, 0.2, 0.6, 1.0]]),
        "tau_hats": tensor([[0.1, 0.4, 0.8]]),
        "between": tensor([[0.5, 2.5]]),
        "entropy": tensor([2.0]),
        "target_shares": tensor([[0.25, 0.75]]),
    }
    return given | changes


def test_fqf_by_hand():
    """0.2 * (0.5 - 0.5) + 0.6 * (1.5 - 0.5) = 0.6, less 0.1 * 2.

    Q = 0.2 * 0 + 0.4 * 1 + 0.4 * 3 = 1.6, its target 0.25 * 2 + 0.75 * 6 = 5.
    """
    rows = fqf_loss(**fractions(), entropy_coeff=0.1)
    assert_close(rows["loss_fraction"], tensor([0.4]))
    assert_close(rows["pred_value"], tensor([1.6]))
    assert_close(rows["target_value"], tensor([5.0]))
    assert_close(rows["td_error"], tensor([3.4]))
    assert_close(rows["fraction_entropy"], tensor([2.0]))
    given = fractions()
    alike = iqn_loss(given["quantiles"], given["target"], given["tau_hats"])
    assert torch.equal(rows["loss_qvalue"], alike["loss_qvalue"])
    reused = fqf_loss(**fractions(target=tensor([[2.0, 6.0, 1.0]]), target_shares=None))
    assert_close(reused["target_value"], tensor([0.4 + 2.4 + 0.4]))


# ---- the LossModules' numbers --------------------------------------------------------------


def by_networks(networks, *inputs):
    return torch.stack([network.module(*inputs) for network in networks]).squeeze(-1)


def columns(batch):
    return (batch["next", key].squeeze(-1) for key in ("reward", "terminated"))


def of_implicit(loss, batch):
    """What IQL's and XQL's functions are given."""
    s, a, s2 = batch["observation"], batch["action"], batch["next", "observation"]
    target = td_target(*columns(batch), loss.value_network.module(s2).squeeze(-1))
    return (
        by_networks(loss.qvalue_network, s, a),
        target,
        by_networks(loss.target_qvalue_network, s, a),
        loss.value_network.module(s).squeeze(-1),
        loss.actor_network.get_dist(batch).log_prob(a),
    )


def of_sac(loss, batch):
    s, a, s2 = batch["observation"], batch["action"], batch["next", "observation"]
    mine, log_prob = loss._act(batch)
    following, next_log_prob = loss._act(batch, next_step=True)
    alpha = loss.log_alpha.detach().exp()
    next_q = by_networks(loss.target_qvalue_network, s2, following).amin(0)
    target = td_target(*columns(batch), next_q - alpha * next_log_prob)
    policy_q = by_networks(loss.qvalue_network, s, mine)
    return by_networks(loss.qvalue_network, s, a), target, policy_q, log_prob, loss.log_alpha


def of_cql(loss, batch):
    s, a, s2 = batch["observation"], batch["action"], batch["next", "observation"]
    dist = loss.actor_network.get_dist(batch.clone())
    next_dist = loss.actor_network.get_dist(batch["next"].clone())
    mine, log_prob = rsample_and_log_prob(dist)
    with torch.no_grad():
        policy, policy_density = rsample_and_log_prob(dist, (3,))
        following, next_density = rsample_and_log_prob(next_dist, (4,))
        uniform = loss.low + (loss.high - loss.low) * torch.rand_like(policy)
    next_q = by_networks(loss.target_qvalue_network, s2, following[-1]).amin(0)
    actions = torch.cat([uniform, policy, following[:3]])
    volume = (loss.high - loss.low).log().sum()
    density = torch.cat([(-volume).expand(3, 8), policy_density, next_density[:3]])
    return (
        by_networks(loss.qvalue_network, s, a),
        td_target(*columns(batch), next_q),
        by_networks(loss.qvalue_network, s, mine),
        log_prob,
        loss.log_alpha,
        by_networks(loss.qvalue_network, s.expand(9, 8, 3), actions),
        density,
    )


def test_module_and_function_agree_on_what_the_networks_gave():
    """Critics of different weights than their targets, temperatures of different defaults."""
    for make, function, arguments_of, options in (
        (iql, iql_loss, of_implicit, {}),
        (xql, xql_loss, of_implicit, {}),
        (sac, sac_loss, of_sac, {"target_entropy": -2.0}),
        (cql, cql_loss, of_cql, {"target_entropy": -2.0}),
    ):
        loss, batch = make()
        with torch.no_grad():
            for p in loss.target_qvalue_network.parameters():
                p.mul_(1.5)
        torch.manual_seed(1)
        out = loss(batch.clone())
        torch.manual_seed(1)
        rows = function(*arguments_of(loss, batch), **options)
        assert {*rows} == {*out.keys(), "td_error"} - {"alpha"}
        for name, row in rows.items():
            assert row.shape == (8,)
            assert row.requires_grad == name.startswith("loss_")
            if name != "td_error":
                assert_close(out[name], row.mean(), atol=1e-6, rtol=1e-5)
        spare = batch.clone()
        torch.manual_seed(1)
        loss(spare)
        assert_close(spare["td_error"], rows["td_error"])


@pytest.mark.parametrize("make", [iqn, fqf])
def test_quantile_module_and_function_agree(make):
    loss, batch = make(gamma=0.9)
    network = loss.value_network
    online, target = record(loss)
    out = loss(batch.clone())
    index = torch.arange(8)

    def at(features, taus, action):
        return network.quantiles(features, taus)[index, action]

    with torch.no_grad():
        later = network.features(batch["next", "observation"])
    features = network.features(batch["observation"])
    if make is iqn:
        (taus,), (acting, next_taus) = online, target
        best = network.quantiles(later, acting).mean(-1).argmax(-1)
        aim = td_target(*columns(batch), at(later, next_taus, best), 0.9)
        rows = iqn_loss(at(features, taus, batch["action"]), aim, taus)
    else:
        taus, tau_hats, entropy = loss.fraction_network(features.detach())
        next_taus, next_hats, _ = loss.fraction_network(later)
        shares = next_taus.diff(dim=-1)
        best = (network.quantiles(later, next_hats) * shares.unsqueeze(1)).sum(-1).argmax(-1)
        aim = td_target(*columns(batch), at(later, next_hats, best), 0.9)
        current, between = (
            at(features, x.detach(), batch["action"]) for x in (tau_hats, taus[:, 1:-1])
        )
        rows = fqf_loss(current, aim, taus, tau_hats, between, entropy, target_shares=shares)
    assert {*rows} == {*loss.out_keys}
    for name, row in rows.items():
        assert row.shape == (8,)
        assert row.requires_grad == name.startswith("loss_")
        assert_close(out[name], row.mean())


def test_random_actions_reach_the_function():
    torch.manual_seed(0)
    networks = gaussian_actor(BOX, (8,)), twin_q(BOX, (8,)), value(BOX, (8,))
    loss, batch = XQLLoss(*networks, sample_random_times=4, action_noise=0.1), continuous_batch()
    torch.manual_seed(1)
    out = loss(batch.clone())["loss_value"]
    torch.manual_seed(1)
    sampled = loss._other_q(batch)
    assert sampled.shape == (5, 8)
    rows = xql_loss(*of_implicit(loss, batch), sampled_q=sampled)
    assert_close(out, rows["loss_value"].mean())


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_loss_checks_its_numbers_when_it_is_made_and_no_more(name, monkeypatch):
    loss, batch = EXAMPLES[name][0]()
    monkeypatch.setattr(arguments, "check_number", None)
    assert loss(batch) is not None


# ---- gradients -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "given", "owners"),
    [
        (
            iql_loss,
            values(),
            {"loss_actor": {"log_prob"}, "loss_qvalue": {"q"}, "loss_value": {"value"}},
        ),
        (
            xql_loss,
            values(sampled_q=torch.ones(1, 2)),
            {"loss_actor": {"log_prob"}, "loss_qvalue": {"q"}, "loss_value": {"value"}},
        ),
        (
            sac_loss,
            soft(target_entropy=tensor(-2.0)),
            {
                "loss_actor": {"log_prob", "policy_q"},
                "loss_qvalue": {"q"},
                "loss_alpha": {"log_alpha", "target_entropy"},
            },
        ),
        (
            cql_loss,
            samples(alpha_prime=tensor(1.0), mc_return=torch.zeros(2)),
            {
                "loss_actor": {"log_prob", "policy_q"},
                "loss_qvalue": {"q"},
                "loss_cql": {"q", "q_samples"},
                "loss_alpha_prime": {"alpha_prime"},
            },
        ),
        (
            iqn_loss,
            {"quantiles": torch.zeros(1, 2), "target": torch.ones(1, 3), "taus": torch.ones(2)},
            {"loss_qvalue": {"quantiles"}},
        ),
        (
            fqf_loss,
            fractions(),
            {"loss_qvalue": {"quantiles"}, "loss_fraction": {"taus", "entropy"}},
        ),
    ],
)
def test_each_loss_reaches_what_it_trains_and_metrics_nothing(function, given, owners):
    given = {name: x.clone().requires_grad_() for name, x in given.items()}
    rows = function(**given)
    assert {name for name in rows if name.startswith("loss_")} == {*owners}
    for name, row in rows.items():
        if name not in owners:
            assert not row.requires_grad, name
            continue
        grads = torch.autograd.grad(
            row.sum(), [*given.values()], allow_unused=True, retain_graph=True
        )
        reached = {x for x, grad in zip(given, grads, strict=True) if grad is not None}
        assert reached == owners[name]


# ---- refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        (iql_loss, values(expectile=0.0), r"expectile must be in \(0, 1\], got 0.0"),
        (iql_loss, values(temperature=-1.0), r"temperature must be in \[0, inf\), got -1.0"),
        (iql_loss, values(max_advantage_weight=0), "max_advantage_weight must be in"),
        (iql_loss, values(loss_function="l3"), "'l3'"),
        (xql_loss, values(loss_temperature=0.0), "loss_temperature must be in"),
        (xql_loss, values(max_value_diff_exp=math.nan), "max_value_diff_exp must be in"),
        (sac_loss, soft(target_entropy="auto"), "target_entropy must be in"),
        (cql_loss, samples(temperature=0.0), "temperature must be in"),
        (cql_loss, samples(min_q_weight=-1.0), "min_q_weight must be in"),
        (cql_loss, samples(lagrange_thresh=-1.0), "lagrange_thresh must be in"),
        (fqf_loss, fractions(kappa=0.0), "kappa must be in"),
        (fqf_loss, fractions(entropy_coeff=-1.0), "entropy_coeff must be in"),
    ],
)
def test_bad_numbers(function, given, message):
    with pytest.raises(ValueError, match=message):
        function(**given)


def test_bad_discounts():
    row = torch.ones(2)
    for gamma in (1.01, -0.1, math.nan, "0.9"):
        with pytest.raises(ValueError, match=r"gamma must be in \[0, 1\], got"):
            td_target(row, row, row, gamma)
    with pytest.raises(ValueError, match=r"gamma must have shape \(2,\), got \(2, 1\)"):
        td_target(row, row, row, row.unsqueeze(-1))
    with pytest.raises(ValueError, match=r"terminated must have shape \(2,\), got \(2, 1\)"):
        td_target(row, row.unsqueeze(-1), row)
    with pytest.raises(ValueError, match=r"next_value must have shape \(2, n\), got \(3, 4\)"):
        td_target(row, row, torch.ones(3, 4))


COLUMN = torch.ones(2, 1)


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        (iql_loss, values(value=COLUMN), r"value must have shape \(2,\), got \(2, 1\)"),
        (iql_loss, values(target=COLUMN), r"target must have shape \(2,\), got \(2, 1\)"),
        (iql_loss, values(q=COLUMN), r"q must have shape \(critics, 2\), got \(2, 1\)"),
        (iql_loss, values(target_q=COLUMN), r"target_q must have shape \(critics, 2\), got"),
        (xql_loss, values(mask=COLUMN), r"mask must have shape \(2,\), got"),
        (xql_loss, values(sampled_q=COLUMN), r"sampled_q must have shape \(k, 2\), got"),
        (sac_loss, soft(policy_q=COLUMN), r"policy_q must have shape \(critics, 2\), got"),
        (sac_loss, soft(target=COLUMN), r"target must have shape \(2,\), got"),
        (cql_loss, samples(log_density=COLUMN), r"log_density must have shape \(samples, 2\)"),
        (cql_loss, samples(q_samples=COLUMN), r"q_samples must have shape \(2, 3, 2\), got"),
        (cql_loss, samples(mc_return=COLUMN), r"mc_return must have shape \(2,\), got"),
        (fqf_loss, fractions(taus=COLUMN), r"taus must have shape \(1, 4\), got"),
        (fqf_loss, fractions(tau_hats=COLUMN), r"tau_hats must have shape \(1, 3\), got"),
        (fqf_loss, fractions(between=COLUMN), r"between must have shape \(1, 2\), got"),
        (fqf_loss, fractions(entropy=COLUMN), r"entropy must have shape \(1,\), got"),
        (fqf_loss, fractions(target=COLUMN), r"target must have shape \(1, samples\), got"),
        (fqf_loss, fractions(target_shares=None), r"target_shares must have shape \(1, 2\)"),
    ],
)
def test_tensors_that_would_only_broadcast(function, given, message):
    with pytest.raises(ValueError, match=message):
        function(**given)


def test_bad_fractions_of_iqn():
    quantiles, target = torch.zeros(4, 2), torch.zeros(4, 3)
    for taus in (torch.zeros(3), torch.zeros(4, 3)):
        with pytest.raises(ValueError, match="taus must have shape"):
            iqn_loss(quantiles, target, taus)
    with pytest.raises(ValueError, match=r"kappa must be in \(0, inf\), got 0"):
        iqn_loss(quantiles, target, torch.zeros(2), kappa=0)


def test_several_dimensions_of_a_batch_are_one_long_batch():
    flat = {name: torch.cat([x, x + 1], -1) for name, x in values().items()}
    shaped = {name: x.unflatten(-1, (2, 2)) for name, x in flat.items()}
    for function in (iql_loss, xql_loss):
        expected = function(**flat)
        for name, row in function(**shaped).items():
            assert_close(row.flatten(), expected[name])


def test_each_critic_may_have_a_target_of_its_own():
    """(1 - 2)² + (4 - 1)² = 10 and the larger of both; a target of another shape is refused."""
    q, target = torch.tensor([[1.0], [4.0]]), torch.tensor([[2.0], [1.0]])
    rows = critic_loss(q, target)
    assert (rows["loss_qvalue"].item(), rows["td_error"].item()) == (10.0, 9.0)
    with pytest.raises(ValueError, match=r"target must have shape \(2, 1\), got \(3, 1\)"):
        critic_loss(q, torch.zeros(3, 1))
