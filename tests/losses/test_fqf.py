"""FQF: numbers by hand, where the fractions go, who owns which gradient, every knob."""

from __future__ import annotations

import math
from copy import deepcopy
from itertools import pairwise

import numpy as np
import pytest
import torch
from losses.examples import DISCRETE, discrete_batch, fqf
from losses.quantile_networks import Formula, record, transition
from torch import nn
from torch.optim import RMSprop

from composerl.losses import FQFLoss
from composerl.modules import FractionProposal, fqf_network
from composerl.optim.adam import FusedAdam
from composerl.testing import check_loss
from composerl.update import Update


def fixed_fractions(size, shares):
    """A proposal that cuts (0, 1) into these shares, whatever the state."""
    proposal = FractionProposal(size, len(shares))
    with torch.no_grad():
        proposal.weight.zero_()
        proposal.bias.copy_(torch.tensor(shares).log())
    return proposal


def square(**options):
    """F(s, 0, tau) = 10 tau^2, F(s, 1, tau) = 3; taus 0, 0.2, 0.6, 1; midpoints 0.1, 0.4, 0.8."""
    network = Formula([[0.0, 3.0]], [10.0, 0.0], torch.square)
    return FQFLoss(network, fixed_fractions(2, [0.2, 0.4, 0.4]), **options)


def test_fqf3_by_hand():
    """s, a = 0, r = 1, the end. F at the midpoints: 0.1, 1.6, 6.4; at 0.2 and 0.6: 0.4, 3.6.

    Fractions: 2 * 0.4 - 1.6 - 0.1 = -0.9 and 2 * 3.6 - 6.4 - 1.6 = -0.8, times 0.2 and 0.6: -0.66;
    minus 0.5 times the entropy -(0.2 log 0.2 + 0.8 log 0.4).
    Quantiles: targets 1, differences 0.9, -0.6, -5.4; weights 0.1, 0.6, 0.2; Huber 0.405, 0.18,
    4.9: 0.0405 + 0.108 + 0.98 = 1.1285.
    Q = 0.2 * 0.1 + 0.4 * 1.6 + 0.4 * 6.4 = 3.22 (a plain mean would be 2.7).
    """
    loss = square(entropy_coeff=0.5)
    batch = transition(0, 0, 1.0, 0, terminated=True)
    out = loss(batch)
    entropy = -(0.2 * math.log(0.2) + 0.8 * math.log(0.4))
    assert out["loss_fraction"].item() == pytest.approx(-0.66 - 0.5 * entropy, rel=1e-5)
    assert out["loss_qvalue"].item() == pytest.approx(1.1285, rel=1e-5)
    assert out["fraction_entropy"].item() == pytest.approx(entropy, rel=1e-5)
    assert out["pred_value"].item() == pytest.approx(3.22, rel=1e-5)
    assert out["target_value"].item() == pytest.approx(1.0)
    assert out["td_error"].item() == pytest.approx(2.22, rel=1e-5)
    assert batch["td_error"].tolist() == pytest.approx([2.22], rel=1e-5)


def test_target_by_hand():
    """Not the end, gamma 0.5: Q(s', .) = (3.22, 3), so a' = 0 and y = 1 + 0.5 * (0.1, 1.6, 6.4).

    With a plain mean, 2.7 against 3, a' would be 1. The target's mean is 1 + 0.5 * 3.22.
    """
    out = square(gamma=0.5)(transition(0, 0, 1.0, 0))
    assert out["target_value"].item() == pytest.approx(2.61, rel=1e-5)
    y, f, tau = np.array([1.05, 1.8, 4.2]), np.array([0.1, 1.6, 6.4]), np.array([0.1, 0.4, 0.8])
    d = y[None] - f[:, None]
    huber = np.where(abs(d) <= 1, d**2 / 2, abs(d) - 0.5)
    expected = (abs(tau[:, None] - (d < 0)) * huber).mean(1).sum()
    assert out["loss_qvalue"].item() == pytest.approx(expected, rel=1e-5)


def test_truncated_rows_bootstrap_terminated_ones_do_not_and_n_steps_discount():
    loss = square(gamma=0.5)
    for row, expected in (
        (transition(0, 0, 1.0, 0, truncated=True), 1 + 0.5 * 3.22),
        (transition(0, 0, 1.0, 0, terminated=True), 1.0),
        (transition(0, 0, 1.0, 0, steps=3), 1 + 0.125 * 3.22),
    ):
        assert loss(row)["target_value"].item() == pytest.approx(expected, rel=1e-5)


# ---- the fraction loss -------------------------------------------------------------------


def wasserstein(shape, taus, points=20_000):
    """W1 between the quantile function and its steps at the midpoints, by the midpoint rule."""
    taus = np.concatenate([[0.0], taus, [1.0]])
    total = 0.0
    for low, high in pairwise(taus):
        w = low + (high - low) * (np.arange(points) + 0.5) / points
        total += np.abs(shape(w) - shape((low + high) / 2)).mean() * (high - low)
    return total


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_gradient_of_the_fractions_is_that_of_the_wasserstein_error(sign):
    """Against finite differences of W1, for a rising and (signs flipped) a falling function."""
    network = Formula([[0.0, 0.0]], [sign, 0.0], torch.square)
    proposal = fixed_fractions(2, [0.2, 0.4, 0.4])
    loss = FQFLoss(network, proposal, entropy_coeff=0.0)
    loss(transition(0, 0, 0.0, 0, terminated=True))["loss_fraction"].backward()

    # d tau / d logits, for taus = cumulative shares: tau_k -> sum over the first k of softmax.
    logits = proposal.bias.detach().double().requires_grad_()
    inner = logits.softmax(-1).cumsum(-1)[:-1]
    finite = []
    for k in range(2):
        step = np.zeros(2)
        step[k] = 1e-4
        at = inner.detach().numpy()
        error = [wasserstein(lambda w: sign * w**2, at + s * step) for s in (1, -1)]
        finite.append((error[0] - error[1]) / 2e-4)
    (expected,) = torch.autograd.grad(inner, logits, torch.tensor(finite, dtype=torch.float64))
    torch.testing.assert_close(proposal.bias.grad.double(), expected, atol=1e-4, rtol=1e-3)


def train_fractions(shape, number, steps=400):
    """Fractions after gradient descent on the fraction loss alone, for a known function."""
    network = Formula([[0.0, 0.0]], [1.0, 0.0], shape)
    proposal = FractionProposal(2, number)
    loss = FQFLoss(network, proposal, entropy_coeff=0.0)
    optimizer = torch.optim.Adam(proposal.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, steps)
    row = transition(0, 0, 0.0, 0, terminated=True)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(row)["loss_fraction"].backward()
        optimizer.step()
        scheduler.step()
    return proposal(torch.zeros(1, 2))[0][0, 1:-1].detach().double().numpy()


def test_one_fraction_moves_to_the_analytic_optimum():
    """F = tau^2, one cut t: 2 t^2 = (t / 2)^2 + ((1 + t) / 2)^2, that is 6 t^2 - 2 t - 1 = 0.

    t = (1 + sqrt 7) / 6 = 0.6076, where W1 is least; the uniform cut is 0.5.
    """
    best = (1 + math.sqrt(7)) / 6
    found = train_fractions(torch.square, 2, steps=200)
    assert found[0] == pytest.approx(best, abs=2e-3)
    errors = {t: wasserstein(np.square, [t]) for t in (best - 0.01, best, best + 0.01, 0.5)}
    assert min(errors, key=errors.get) == best


def test_fractions_beat_uniform_ones_and_are_stationary():
    """F = tau^4, eight intervals: long ones where it is flat; W1 below that of a uniform grid.

    At the optimum 2 F(tau_i) = F(tau_hat_i) + F(tau_hat_(i-1)) for every i.
    """
    torch.manual_seed(0)
    found = train_fractions(lambda tau: tau**4, 8)
    uniform = np.arange(1, 8) / 8
    ours, theirs = (wasserstein(lambda w: w**4, taus) for taus in (found, uniform))
    assert ours < 0.75 * theirs
    ends = np.concatenate([[0.0], found, [1.0]])
    hats = (ends[1:] + ends[:-1]) / 2
    np.testing.assert_allclose(2 * found**4, hats[1:] ** 4 + hats[:-1] ** 4, atol=0.01)
    assert ends[1] > 0.25
    assert 1 - ends[-2] < 0.1


# ---- second rendition --------------------------------------------------------------------


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("reuse", [False, True])
def test_second_rendition_in_numpy(double, reuse):
    loss, batch = fqf(double_dqn=double, reuse_fractions=reuse, gamma=0.9, entropy_coeff=0.01)
    torch.manual_seed(1)
    with torch.no_grad():
        for p in loss.parameters():
            p.add_(0.4 * torch.randn_like(p))
        for p in loss.target_value_network.parameters():
            p.add_(0.4 * torch.randn_like(p))
    loss.reduction = "none"
    out = loss(batch)
    online, target, propose = loss.value_network, loss.target_value_network, loss.fraction_network

    def fractions(features):
        logits = features @ propose.weight.T + propose.bias
        shares = torch.softmax(logits, -1).detach().numpy()
        ends = np.concatenate([np.zeros((8, 1)), shares.cumsum(-1)], -1)
        return shares, ends, (ends[:, 1:] + ends[:, :-1]) / 2

    def quantiles(network, x, taus):
        return network(x, torch.from_numpy(taus).float()).detach().numpy()

    x, x2 = batch["observation"], batch["next", "observation"]
    shares, ends, hats = fractions(online.features(x))
    chooser = online if double else target
    next_shares, next_hats = shares, hats
    if not reuse:
        next_shares, _, next_hats = fractions(chooser.features(x2))
    values = (quantiles(chooser, x2, next_hats) * next_shares[:, None]).sum(-1)
    best = values.argmax(-1)
    z = quantiles(target, x2, next_hats)
    at_hats, at_ends = quantiles(online, x, hats), quantiles(online, x, ends)
    for row in range(8):
        a = batch["action"][row].item()
        alive = not batch["next", "terminated"][row].item()
        y = batch["next", "reward"][row].item() + 0.9 * alive * z[row, best[row]]
        f, g = at_hats[row, a], at_ends[row, a]
        total = 0.0
        for tau, quantile in zip(hats[row], f, strict=True):
            d = y - quantile
            huber = np.where(abs(d) <= 1, d**2 / 2, abs(d) - 0.5)
            total += np.mean(abs(tau - (d < 0)) * huber)
        assert out["loss_qvalue"][row].item() == pytest.approx(total, rel=1e-3)
        fraction = 0.0
        for i in range(1, 5):
            before, after = g[i] - f[i - 1], g[i] - f[i]
            fraction += ends[row, i] * (abs(before) - abs(after))
        entropy = -(shares[row] * np.log(shares[row])).sum()
        assert out["loss_fraction"][row].item() == pytest.approx(
            fraction - 0.01 * entropy, rel=1e-3, abs=1e-4
        )
        assert out["fraction_entropy"][row].item() == pytest.approx(entropy, rel=1e-4)
        error = abs((next_shares[row] * y).sum() - (shares[row] * f).sum())
        assert batch["td_error"][row].item() == pytest.approx(error, rel=1e-3, abs=1e-4)


# ---- gradients ---------------------------------------------------------------------------


def reached(loss):
    return {name.split(".")[0] for name, p in loss.named_parameters()
            if p.grad is not None and p.grad.any()}  # fmt: skip


def test_gradient_ownership():
    """The quantile loss does not touch the proposal; the fraction loss touches nothing else."""
    loss, batch = fqf()
    out = loss(batch)
    out["loss_qvalue"].backward(retain_graph=True)
    assert reached(loss) == {"value_network"}
    assert loss.fraction_network.weight.grad is None
    loss.zero_grad()
    out["loss_fraction"].backward()
    assert reached(loss) == {"fraction_network"}
    assert all(p.grad is None for p in loss.value_network.parameters())
    assert all(p.grad is None for p in loss.target_value_network.parameters())


def test_a_proposal_that_forgets_to_detach_still_owns_its_gradient_alone():
    class Careless(FractionProposal):
        def forward(self, features):
            shares = nn.functional.linear(features, self.weight, self.bias).softmax(-1)
            taus = nn.functional.pad(shares.cumsum(-1), (1, 0))
            return taus, (taus[..., 1:] + taus[..., :-1]) / 2, -(shares * shares.log()).sum(-1)

    loss, batch = fqf()
    loss.fraction_network = Careless(8, 5)
    loss(batch)["loss_fraction"].backward()
    assert reached(loss) == {"fraction_network"}


def test_proposal_has_no_target_copy():
    loss, _ = fqf()
    targets = [name for name, _ in loss.named_children() if name.startswith("target_")]
    assert targets == ["target_value_network", "target_value_network_params"]
    assert not any("fraction" in n for n, _ in loss.target_value_network.named_parameters())


def test_initialising_anew_keeps_the_proposal_nearly_uniform():
    loss, batch = fqf()
    before = loss.value_network.head[0].weight.clone()
    with torch.no_grad():
        loss.fraction_network.bias.add_(torch.arange(5.0))
    loss.reset_parameters_recursive()
    assert not torch.equal(loss.value_network.head[0].weight, before)
    assert loss(batch)["fraction_entropy"].item() == pytest.approx(math.log(5), abs=1e-3)
    online, target = loss.value_network.state_dict(), loss.target_value_network.state_dict()
    assert all(torch.equal(value, target[key]) for key, value in online.items())


# ---- knobs -------------------------------------------------------------------------------


def test_fqf1_number_of_quantiles_takes_effect():
    for number in (2, 9):
        torch.manual_seed(0)
        actor = fqf_network(DISCRETE, (8, 8), num_quantiles=number)
        loss = FQFLoss(actor.value_network, actor.fraction_network)
        online, target = record(loss)
        out = loss(discrete_batch())
        assert [taus.shape for taus in online] == [(8, number), (8, number - 1)]
        assert [taus.shape for taus in target] == [(8, number)]
        assert out["fraction_entropy"].item() == pytest.approx(math.log(number), rel=1e-2)


def test_reuse_of_the_state_s_fractions():
    """As the authors do: s' is evaluated at the fractions of s; else at those proposed for s'."""
    for reuse in (True, False):
        loss, batch = fqf(reuse_fractions=reuse)
        with torch.no_grad():
            loss.fraction_network.weight.mul_(100)
        online, target = record(loss)
        loss(batch)
        assert torch.equal(online[0], target[0]) is reuse
        features = loss.target_value_network.features(batch["next", "observation"])
        proposed = loss.fraction_network(features)[1]
        assert torch.allclose(target[0], proposed) is not reuse


def test_double_lets_the_online_network_choose():
    """F(s', .) online (3, 4), target (20, 10), gamma 0.5, r = 1: y = 1 + 5, else 1 + 10."""
    for double, expected in ((True, 6.0), (False, 11.0)):
        network = Formula([[1.0, 2.0], [3.0, 4.0]], [0.0, 0.0])
        loss = FQFLoss(network, FractionProposal(2, 4), double_dqn=double, gamma=0.5)
        with torch.no_grad():
            loss.target_value_network.table.copy_(torch.tensor([[0.0, 0.0], [20.0, 10.0]]))
        out = loss(transition(0, 0, 1.0, 1))
        assert out["target_value"].item() == pytest.approx(expected, rel=1e-5)


def test_kappa_takes_effect():
    """Of the numbers by hand, only the last difference, -5.4, exceeds 2: 0.2 * (5.4 - 1) = 0.88.

    The others are squares over 2 kappa: 0.1 * 0.2025 + 0.6 * 0.09 = 0.07425.
    """
    out = square(kappa=2.0)(transition(0, 0, 1.0, 0, terminated=True))
    assert out["loss_qvalue"].item() == pytest.approx(0.95425, rel=1e-5)


def test_entropy_coefficient_takes_effect():
    """The loss changes by the coefficient times the entropy, and a large one keeps cuts uniform."""
    row = transition(0, 0, 1.0, 0, terminated=True)
    zero, one = (square(entropy_coeff=c)(row) for c in (0.0, 1.0))
    difference = zero["loss_fraction"] - one["loss_fraction"]
    torch.testing.assert_close(difference, one["fraction_entropy"])

    entropies = []
    for coefficient in (0.0, 10.0):
        loss = square(entropy_coeff=coefficient)
        optimizer = torch.optim.Adam(loss.fraction_network.parameters(), lr=0.05)
        for _ in range(100):
            optimizer.zero_grad()
            out = loss(row)
            out["loss_fraction"].backward()
            optimizer.step()
        entropies.append(out["fraction_entropy"].item())
    assert entropies[1] > math.log(3) - 0.01 > entropies[0] + 0.01


@pytest.mark.parametrize("options", [{"double_dqn": True, "reuse_fractions": True}])
def test_options_conform(options):
    check_loss(*fqf(**options), num_actions=3, compile=False)


@pytest.mark.parametrize("options", [{"dueling": True}, {"layer_norm": True}, {"embedding_dim": 7}])
def test_network_options_take_effect(options):
    losses = []
    for extra in ({}, options):
        torch.manual_seed(0)
        actor = fqf_network(DISCRETE, (8, 8), **extra)
        loss = FQFLoss(actor.value_network, actor.fraction_network)
        losses.append(loss(discrete_batch())["loss_qvalue"].item())
    assert losses[0] != losses[1]


def test_priority_weights_reach_both_losses():
    """Weights 3 and 1: (3 l_0 + l_1) / 4."""
    loss, batch = fqf(reduction="none")
    batch = batch[:2]
    rows = loss(batch)
    loss.reduction = "mean"
    weighted = loss(batch.set("priority_weight", torch.tensor([3.0, 1.0])))
    for key in ("loss_qvalue", "loss_fraction"):
        torch.testing.assert_close(weighted[key], (3 * rows[key][0] + rows[key][1]) / 4)


# ---- two optimizers ----------------------------------------------------------------------


def two_optimizers(loss, compile=False):
    optimizers = [
        FusedAdam(loss.value_network.parameters(), lr=1e-2),
        RMSprop(
            [{"params": loss.fraction_network.parameters(), "name": "fraction_network"}], lr=1e-4
        ),
    ]
    return Update(loss, optimizer=optimizers, tau=0.1, compile=compile)


def test_fqf3_two_optimizers_each_with_its_own_rate():
    """RMSprop's first step is lr * g / (sqrt(0.01 g^2) + eps) = 10 lr; Adam's is lr."""
    loss, batch = fqf()
    before = [p.detach().clone() for p in loss.parameters()]
    metrics = two_optimizers(loss)(batch)
    moved = {
        name: (p - old).abs().max().item()
        for (name, p), old in zip(loss.named_parameters(), before, strict=True)
    }
    fraction = [size for name, size in moved.items() if name.startswith("fraction_network")]
    assert max(fraction) == pytest.approx(1e-3, rel=1e-2)
    assert max(moved.values()) == pytest.approx(1e-2, rel=1e-2)
    assert metrics["lr"].item() == pytest.approx(1e-2)
    assert metrics["lr_fraction_network"].item() == pytest.approx(1e-4)


def test_fqf3_resume_with_two_optimizers_is_exact():
    loss, batch = fqf()
    update = two_optimizers(loss)
    for _ in range(3):
        update(batch)
    other_loss, _ = fqf()
    other = two_optimizers(other_loss)
    other.load_state_dict(deepcopy(update.state_dict()))
    for _ in range(3):
        out, again = update(batch), other(batch)
        for key, value in out.items():
            assert torch.equal(value, again[key]), key
    for a, b in zip(loss.state_dict().values(), other_loss.state_dict().values(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
def test_fqf3_compiled_update_with_two_optimizers(tmp_path, monkeypatch):
    """RMSprop steps after the graph; an eager update goes on from the compiled one's state."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    (eager_loss, batch), (compiled_loss, _) = fqf(), fqf()
    eager, compiled = two_optimizers(eager_loss), two_optimizers(compiled_loss, compile=True)

    def compare(other, other_loss):
        for _ in range(3):
            out, again = eager(batch.clone()), other(batch.clone())
            torch.testing.assert_close(again.to_dict(), out.to_dict(), rtol=1e-4, atol=1e-5)
        for (name, a), b in zip(
            eager_loss.state_dict().items(), other_loss.state_dict().values(), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, msg=name)

    compare(compiled, compiled_loss)
    rest_loss, _ = fqf()
    rest = two_optimizers(rest_loss)
    rest.load_state_dict(deepcopy(compiled.state_dict()))
    compare(rest, rest_loss)


# ---- errors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"entropy_coeff": -1.0}, "entropy_coeff must be in"),
        ({"kappa": 0.0}, "kappa must be in"),
        ({"gamma": 1.5}, "gamma"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        fqf(**options)
