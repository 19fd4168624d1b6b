"""The per-sample maths that the losses are made of: literal numbers, fixed points, gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import tensor
from torch.testing import assert_close
from torchrl.objectives.utils import distance_loss

from composerl.losses import (
    advantage_weighted_loss,
    distance,
    expectile_loss,
    quantile_huber_loss,
)


def test_expectile_loss_numbers():
    """Tau 0.8: a negative difference weighs |0.8 - 1| = 0.2, a positive one |0.8 - 0| = 0.8.

    u = -2: 0.2 * 4 = 0.8; -0.5: 0.2 * 0.25 = 0.05; 0: 0; 1: 0.8; 3: 0.8 * 9 = 7.2.
    The derivative is 2 * weight * u: -0.8, -0.2, 0, 1.6, 4.8.
    """
    u = tensor([-2.0, -0.5, 0.0, 1.0, 3.0], requires_grad=True)
    loss = expectile_loss(u, 0.8)
    assert_close(loss, tensor([0.8, 0.05, 0.0, 0.8, 7.2]))
    (grad,) = torch.autograd.grad(loss.sum(), u)
    assert_close(grad, tensor([-0.8, -0.2, 0.0, 1.6, 4.8]))


def test_expectile_half_is_half_the_square():
    u = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    assert_close(expectile_loss(u, 0.5), 0.5 * u**2)


def test_expectile_may_be_a_tensor():
    u = tensor([-1.0, 2.0])
    assert_close(expectile_loss(u, tensor(0.7)), tensor([0.3, 2.8]))


def expectile_by_descent(x: torch.Tensor, tau: float) -> float:
    v = torch.zeros((), dtype=x.dtype, requires_grad=True)
    for _ in range(300):
        (grad,) = torch.autograd.grad(expectile_loss(x - v, tau).mean(), v)
        with torch.no_grad():
            v -= 0.5 * grad
    return v.item()


def test_minimiser_is_the_expectile_by_hand():
    """The tau-expectile v of {0, 1, 3} balances tau * sum (x - v)+ and (1 - tau) * sum (v - x)+.

    tau 0.5: the mean, 4/3. For 1 < v < 3: tau (3 - v) = (1 - tau)(2v - 1), that is
    v = (2 tau + 1) / (2 - tau): tau 0.7 gives 2.4/1.3, tau 0.9 gives 2.8/1.1.
    """
    x = tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    for tau, expected in ((0.5, 4 / 3), (0.7, 2.4 / 1.3), (0.9, 2.8 / 1.1)):
        assert expectile_by_descent(x, tau) == pytest.approx(expected, abs=1e-6)


def test_expectile_keeps_double_precision():
    """0.7 in single precision is 0.69999999: a weight made of it is off by 1e-8."""
    u = tensor([-1.0, 1.0], dtype=torch.float64)
    expected = tensor([0.3, 0.7], dtype=torch.float64)
    assert_close(expectile_loss(u, 0.7), expected, atol=1e-12, rtol=0)


def test_minimiser_meets_the_first_order_condition_and_grows_with_tau():
    x = torch.randn(200, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2 + 1
    found = {}
    for tau in (0.5, 0.7, 0.9):
        v = found[tau] = expectile_by_descent(x, tau)
        above, below = (x - v).clamp(min=0).mean(), (v - x).clamp(min=0).mean()
        assert_close(tau * above, (1 - tau) * below, atol=1e-6, rtol=0)
    assert found[0.5] == pytest.approx(x.mean().item(), abs=1e-6)
    assert found[0.5] < found[0.7] < found[0.9] < x.max()


def test_advantage_weighted_loss_numbers():
    """Beta 2, advantages 0, ln 2, -ln 2, 10: e^(2A) is 1, 4, 1/4 and e^20, which is cut at 100.

    Times -log pi = 1, 2, 3, 0.5: 1, 8, 0.75, 50. Cut at 3 instead: 1, 6, 0.75, 1.5.
    """
    log_prob = tensor([-1.0, -2.0, -3.0, -0.5])
    advantage = tensor([0.0, math.log(2), -math.log(2), 10.0])
    loss = advantage_weighted_loss(log_prob, advantage, 2.0)
    assert_close(loss, tensor([1.0, 8.0, 0.75, 50.0]))
    loss = advantage_weighted_loss(log_prob, advantage, 2.0, max_weight=3.0)
    assert_close(loss, tensor([1.0, 6.0, 0.75, 1.5]))


def test_zero_temperature_is_behaviour_cloning():
    log_prob, advantage = tensor([-1.0, 0.5]), tensor([7.0, -7.0])
    assert_close(advantage_weighted_loss(log_prob, advantage, 0.0), -log_prob)


def test_advantage_is_a_weight_not_a_path_for_gradients():
    log_prob = tensor([-1.0, -2.0, -3.0], requires_grad=True)
    advantage = tensor([0.0, math.log(3), 10.0], requires_grad=True)
    advantage_weighted_loss(log_prob, advantage, 1.0).sum().backward()
    assert_close(log_prob.grad, tensor([-1.0, -3.0, -100.0]))
    assert advantage.grad is None


def test_huge_advantages_stay_finite():
    """e^(3e5) overflows to infinity before the bound brings it to 100; e^(-3e5) is 0."""
    log_prob = tensor([-2.0, -2.0], requires_grad=True)
    loss = advantage_weighted_loss(log_prob, tensor([1e5, -1e5]), 3.0)
    assert_close(loss, tensor([200.0, 0.0]))
    loss.sum().backward()
    assert_close(log_prob.grad, tensor([-100.0, 0.0]))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("l2", [0.25, 0.0, 4.0, 1.0]),
        ("l1", [0.5, 0.0, 2.0, 1.0]),
        ("smooth_l1", [0.125, 0.0, 1.5, 0.5]),
    ],
)
def test_distance(name, expected):
    """Differences -0.5, 0, 2, -1; smooth l1 is x^2/2 within 1, |x| - 1/2 outside."""
    prediction, target = tensor([0.0, 1.0, 3.0, 0.0]), tensor([0.5, 1.0, 1.0, 1.0])
    assert_close(distance(prediction, target, name), tensor(expected))
    random = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0)) * 2
    assert_close(distance(*random, name), distance_loss(*random, loss_function=name))


def test_distance_refuses_an_unknown_name():
    with pytest.raises(ValueError, match="foo"):
        distance(torch.zeros(1), torch.zeros(1), "foo")


# ---- quantile regression -----------------------------------------------------------------


@pytest.mark.parametrize(("kappa", "expected"), [(1.0, 3.625 / 3), (2.0, 2.875 / 3)])
def test_quantile_huber_loss_numbers(kappa, expected):
    """Quantiles 0 and 2 at tau 1/4 and 3/4, targets 1, -3, 2: sum over i, mean over j.

    Differences: 1, -3, 2 and -1, -5, 0. Weights (tau, or 1 - tau below 0): 1/4, 3/4, 1/4 and
    1/4, 1/4, 3/4. Huber, kappa 1: 0.5, 2.5, 1.5 and 0.5, 4.5, 0, so 2.375 + 1.25 over 3.
    Kappa 2, divided by 2: 0.25, 2, 1 and 0.25, 4, 0, so 1.8125 + 1.0625 over 3.
    """
    current, taus = tensor([[0.0, 2.0]]), tensor([[0.25, 0.75]])
    loss = quantile_huber_loss(current, tensor([[1.0, -3.0, 2.0]]), taus, kappa)
    assert_close(loss, tensor([expected]))
    assert_close(quantile_huber_loss(current, tensor([[1.0, -3.0, 2.0]]), taus[0], kappa), loss)
    assert_close(
        quantile_huber_loss(current, tensor([[1.0, -3.0, 2.0]]), taus, tensor(kappa)), loss
    )


def test_quantile_huber_loss_gradient_by_hand():
    """Of the numbers above: minus the mean over targets of weight times the clipped difference.

    Tau 1/4: -(0.25 - 0.75 + 0.25) / 3 = 1/12. Tau 3/4: -(-0.25 - 0.25 + 0) / 3 = 1/6. Neither the
    targets nor the fractions get any.
    """
    current = tensor([[0.0, 2.0]], requires_grad=True)
    target = tensor([[1.0, -3.0, 2.0]], requires_grad=True)
    taus = tensor([[0.25, 0.75]], requires_grad=True)
    quantile_huber_loss(current, target, taus).sum().backward()
    assert_close(current.grad, tensor([[1 / 12, 1 / 6]]))
    assert target.grad is None
    assert taus.grad is None


def test_quantile_huber_loss_second_rendition():
    rng = np.random.default_rng(0)
    current, target = 3 * rng.normal(size=(6, 5)), 3 * rng.normal(size=(6, 4))
    taus, kappa = rng.uniform(size=(6, 5)), 0.7
    expected = np.zeros(6)
    for b in range(6):
        for i in range(5):
            for j in range(4):
                d = target[b, j] - current[b, i]
                huber = d**2 / 2 if abs(d) <= kappa else kappa * (abs(d) - kappa / 2)
                expected[b] += abs(taus[b, i] - (d < 0)) * huber / kappa / 4
    found = quantile_huber_loss(*map(torch.from_numpy, (current, target, taus)), kappa)
    assert_close(found, torch.from_numpy(expected))  # in double precision
    assert found.shape == (6,)


def test_quantile_regression_recovers_the_quantiles_of_a_known_distribution():
    """The exponential distribution's tau-quantile is -log(1 - tau); kappa near 0 finds it.

    A kappa far beyond all differences makes them expectiles: the one of tau = 1/2 is the mean, 1.
    """
    grid = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    samples = -torch.log1p(-grid)
    taus = tensor([0.1, 0.25, 0.5, 0.75, 0.9], dtype=torch.float64)

    def minimise(kappa):
        current = torch.ones(1, 5, dtype=torch.float64, requires_grad=True)
        rate = 1.0 if kappa < 1 else kappa
        for step in range(600):
            (grad,) = torch.autograd.grad(
                quantile_huber_loss(current, samples[None], taus, kappa).sum(), current
            )
            with torch.no_grad():
                current -= rate * grad * (1 if step < 400 else 0.3)
        return current[0].detach()

    assert_close(minimise(0.01), -torch.log1p(-taus), atol=0.01, rtol=0)
    assert minimise(100.0)[2].item() == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("kappa", [0.0, -1.0, math.nan])
def test_quantile_huber_loss_refuses_kappa(kappa):
    with pytest.raises(ValueError, match="kappa must be positive"):
        quantile_huber_loss(torch.zeros(1, 2), torch.zeros(1, 2), torch.rand(1, 2), kappa)
