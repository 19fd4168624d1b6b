"""The maths of Dreamer's losses, by hand and against plainer forms."""

from __future__ import annotations

import pytest
import torch

from composerl.losses import (
    categorical_kl,
    free_nats_kl,
    lambda_return,
    return_range,
    symexp,
    symexp_bins,
    symlog,
    two_hot,
    two_hot_loss,
    two_hot_mean,
)

BINS = symexp_bins()


def test_symlog_and_symexp_undo_each_other():
    """symlog(e - 1) = 1, symexp(1) = e - 1, odd functions."""
    x = torch.tensor([-1e4, -3.0, -0.1, 0.0, 1e-3, 2.0, 1e4], dtype=torch.float64)
    torch.testing.assert_close(symexp(symlog(x)), x)
    e = torch.e
    torch.testing.assert_close(symlog(torch.tensor([e - 1, 1 - e])), torch.tensor([1.0, -1.0]))


def test_bins_are_symmetric_to_the_bit():
    assert BINS.shape == (255,)
    assert torch.equal(BINS, -BINS.flip(0))
    assert BINS[127] == 0
    torch.testing.assert_close(symlog(BINS), torch.linspace(-20, 20, 255))
    for number in (2, 1, 254):
        with pytest.raises(ValueError, match=f"odd and at least 3, got {number}"):
            symexp_bins(number)


def test_two_hot_by_hand():
    """Bins -2, -1, 0, 1, 2: 0.25 lies between 0 and 1, a quarter of the way up."""
    bins = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])
    expected = {0.25: [0, 0, 0.75, 0.25, 0], -1.0: [0, 1, 0, 0, 0], 2.0: [0, 0, 0, 0, 1],
                9.0: [0, 0, 0, 0, 1], -9.0: [1, 0, 0, 0, 0]}  # fmt: skip
    for target, weights in expected.items():
        found = two_hot(torch.tensor(target), bins)
        torch.testing.assert_close(found, torch.tensor(weights, dtype=torch.float32))


def test_two_hot_round_trip():
    target = torch.tensor([-3000.0, -1.0, -0.01, 0.0, 0.3, 1.0, 17.0, 123456.0])
    weights = two_hot(target, BINS)
    assert bool(((weights > 0).sum(-1) <= 2).all())
    torch.testing.assert_close(weights.sum(-1), torch.ones(8))
    torch.testing.assert_close(two_hot_mean(weights.log(), BINS), target, rtol=1e-4, atol=1e-5)


def test_the_mean_of_a_zero_head_is_exactly_zero():
    """The outer bins are of the order of 5e8: a plain sum of float32 gives something else."""
    assert BINS[-1] > 4e8
    assert torch.equal(two_hot_mean(torch.zeros(7, 255), BINS), torch.zeros(7))


def test_two_hot_loss_is_the_cross_entropy():
    torch.manual_seed(0)
    logits = torch.randn(6, 255, requires_grad=True)
    target = torch.tensor([-5.0, 0.0, 0.2, 1.0, 40.0, 1e10])
    loss = two_hot_loss(logits, target, BINS)
    plain = -(two_hot(target, BINS) * logits.log_softmax(-1)).sum(-1)
    torch.testing.assert_close(loss, plain)
    got, expected = (torch.autograd.grad(x.sum(), logits, retain_graph=True)[0]
                     for x in (loss, plain))  # fmt: skip
    torch.testing.assert_close(got, expected)
    both = two_hot_loss(logits, torch.stack([target, target.flip(0)], -1), BINS)
    torch.testing.assert_close(both[:, 0], loss)
    torch.testing.assert_close(both[:, 1], two_hot_loss(logits, target.flip(0), BINS))


def test_two_hot_loss_gives_no_gradient_to_the_target():
    target = torch.tensor([0.3], requires_grad=True)
    assert not two_hot_loss(torch.zeros(1, 255), target, BINS).requires_grad


def test_lambda_return_by_hand():
    """H = 3, lambda 1/2, rewards 1 2 3, continues 0.9 0 0.8, values of steps 1 to 3 10 20 30.

    R_2 = 3 + 0.8 * 30 = 27 (the horizon: nothing to mix). R_1 = 2 + 0 * ... = 2: the episode ends
    there, whatever comes after. R_0 = 1 + 0.9 * (0.5 * 10 + 0.5 * 2) = 6.4.
    """
    reward, continues = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.9, 0.0, 0.8])
    value = torch.tensor([-99.0, 10.0, 20.0, 30.0])
    expected = torch.tensor([6.4, 2.0, 27.0])
    torch.testing.assert_close(lambda_return(reward, continues, value, 0.5), expected)
    by_step = torch.tensor([0.5, 0.5, 0.5])
    torch.testing.assert_close(lambda_return(reward, continues, value, by_step), expected)


def test_lambda_0_is_one_step_and_1_is_the_whole_horizon():
    torch.manual_seed(0)
    reward, continues, value = torch.randn(5, 3), torch.rand(5, 3), torch.randn(6, 3)
    one_step = lambda_return(reward, continues, value, 0.0)
    torch.testing.assert_close(one_step, reward + continues * value[1:])
    whole = value[5]
    for t in reversed(range(5)):
        whole = reward[t] + continues[t] * whole
    torch.testing.assert_close(lambda_return(reward, continues, value, 1.0)[0], whole)


def test_kl_is_summed_over_latents():
    """KL((1/2, 1/2) || (1/4, 3/4)) = ln(4/3) / 2 = 0.1438; two of them 0.2877."""
    p, q = torch.full((2, 2), 0.5), torch.tensor([[0.25, 0.75], [0.75, 0.25]])
    torch.testing.assert_close(categorical_kl(p, q), torch.tensor(0.28768207))
    assert categorical_kl(p, p) == 0


@pytest.mark.parametrize(("share", "pays"), [(0.8, True), (0.7, False)])
def test_free_nats_apply_to_the_sum(share, pays):
    """Four latents (1/2, 1/2) against (1 - s, s): 4 * -ln(4 s (1 - s)) / 2.

    s = 0.8: 4 * 0.2231 = 0.893 for the prior's order; below the free nat no gradient. With five
    latents 1.116: above, although each latent alone is far below 1.
    """
    number = 5 if pays else 4
    prior = torch.tensor([1 - share, share]).repeat(number, 1).requires_grad_()
    posterior = torch.full((number, 2), 0.5, requires_grad=True)
    dynamics, representation = free_nats_kl(posterior, prior, 1.0)
    if not pays:
        assert dynamics == representation == 1
    else:
        torch.testing.assert_close(dynamics, torch.tensor(1.1157), rtol=1e-4, atol=0)
        torch.testing.assert_close(representation, dynamics)
    for loss, own, other in ((dynamics, prior, posterior), (representation, posterior, prior)):
        own.grad = other.grad = None
        loss.backward()
        assert other.grad is None
        assert bool(own.grad.any()) is pays


def test_return_range_by_hand():
    """Of 0, 1, ..., 100 the 5 % quantile is 5 and the 95 % one 95; an outlier changes little."""
    returns = torch.arange(101.0)[torch.randperm(101)]
    assert return_range(returns) == 90
    returns[returns == 100] = 1e9
    assert return_range(returns) == 90
    mask = torch.ones(101, dtype=torch.bool)
    mask[returns > 50] = False
    torch.testing.assert_close(return_range(returns, mask=mask), torch.tensor(45.0))
