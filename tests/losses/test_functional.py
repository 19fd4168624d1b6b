"""The per-sample maths that the losses are made of: literal numbers, fixed points, gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.testing import assert_close
from torchrl.objectives.utils import distance_loss

from composerl.losses import advantage_weighted_loss, distance, expectile_loss


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
