"""The maths of Dreamer's losses: tensors in, tensors out.

``symlog`` and ``symexp`` are TorchRL's.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torchrl.modules.functional import symexp, symlog

__all__ = [
    "categorical_kl",
    "draw_choice",
    "draw_normal",
    "free_nats_kl",
    "lambda_return",
    "log_prob_and_entropy",
    "return_range",
    "spread",
    "squared_error",
    "symexp",
    "symexp_bins",
    "symlog",
    "two_hot",
    "two_hot_loss",
    "two_hot_mean",
]


def symexp_bins(number: int = 255, limit: float = 20.0) -> Tensor:
    """``symexp`` of evenly spaced numbers from -limit to limit: fine near 0, coarse far away."""
    if number < 3 or number % 2 == 0:
        raise ValueError(f"the number of bins must be odd and at least 3, got {number}")
    # One half mirrored, so that the bins are symmetric to the last bit.
    half = symexp(torch.linspace(0, limit, number // 2 + 1))
    return torch.cat([-half[1:].flip(0), half])


def _neighbours(target: Tensor, bins: Tensor) -> tuple[Tensor, Tensor]:
    """Index of the bin below each target, and the share of the one above it."""
    target = target.clamp(bins[0], bins[-1])
    low = (torch.searchsorted(bins, target, right=True) - 1).clamp(0, len(bins) - 2)
    return low, (target - bins[low]) / (bins[low + 1] - bins[low])


def two_hot(target: Tensor, bins: Tensor) -> Tensor:
    """The target as weights ``(..., bins)`` of its two neighbours, whose mean is the target."""
    low, share = _neighbours(target.detach(), bins)
    out = torch.zeros(*target.shape, len(bins), dtype=bins.dtype, device=bins.device)
    out.scatter_(-1, low.unsqueeze(-1), (1 - share).unsqueeze(-1))
    return out.scatter_(-1, low.unsqueeze(-1) + 1, share.unsqueeze(-1))


def two_hot_loss(logits: Tensor, target: Tensor, bins: Tensor) -> Tensor:
    """Cross entropy of the two-hot target: ``(..., bins)`` and ``(...)`` to ``(...)``.

    Several targets of one distribution, ``(..., k)``, give as many losses and share its
    normalisation. Looks log-probabilities up instead of multiplying all of them. No gradient goes
    to the target.
    """
    single = target.ndim < logits.ndim
    low, share = _neighbours(target.detach(), bins)
    if single:
        low, share = low.unsqueeze(-1), share.unsqueeze(-1)
    found = logits.log_softmax(-1).gather(-1, torch.cat([low, low + 1], -1))
    lower, upper = found.chunk(2, -1)
    loss = -((1 - share) * lower + share * upper)
    return loss.squeeze(-1) if single else loss


def two_hot_mean(logits: Tensor, bins: Tensor) -> Tensor:
    """The mean of the distribution over the bins, ``(..., bins)`` to ``(...)``.

    Mirrored bins are paired: the outer ones are of the order of 1e8, and a plain sum would round
    uniform probabilities to something else than 0. Needs bins as :func:`symexp_bins` makes them.
    """
    middle = len(bins) // 2
    probs = logits.softmax(-1)
    return (probs[..., middle + 1 :] - probs[..., :middle].flip(-1)) @ bins[middle + 1 :]


def lambda_return(
    reward: Tensor, continues: Tensor, value: Tensor, lmbda: float | Tensor = 0.95
) -> Tensor:
    r"""Returns over a finite horizon, mixed over all its lengths.

    .. math:: R_t = r_{t+1} + c_{t+1} ((1 - \lambda) v_{t+1} + \lambda R_{t+1}), \quad R_H = v_H

    Args:
        reward: r of steps 1 to H, ``(H, ...)``.
        continues: c of steps 1 to H, 0 where an episode is over; contains the discount.
        value: v of steps 0 to H, ``(H + 1, ...)``; that of step 0 is not used.
        lmbda: 0 looks one step ahead, 1 to the horizon; may differ by step, ``(H, ...)``.

    Returns: R of steps 0 to H - 1, ``(H, ...)``.
    """
    base = reward + continues * (1 - lmbda) * value[1:]
    factor = continues * lmbda
    following, out = value[-1], []
    for t in reversed(range(len(reward))):
        following = base[t] + factor[t] * following
        out.append(following)
    return torch.stack(out[::-1]) if out else reward


def categorical_kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) of several categoricals, **summed** over them: ``(..., n, classes) -> (...)``."""
    return (p * (p.log() - q.log())).sum((-2, -1))


def free_nats_kl(
    posterior: Tensor, prior: Tensor, free: float | Tensor = 1.0
) -> tuple[Tensor, Tensor]:
    """The KL of posterior and prior twice, at least ``free`` nats after the sum over latents.

    Returns: (dynamics, representation): the first moves the prior only, the second the posterior
    only. Below ``free`` neither has a gradient.
    """
    dynamics = categorical_kl(posterior.detach(), prior).clamp_min(free)
    return dynamics, categorical_kl(posterior, prior.detach()).clamp_min(free)


def return_range(
    returns: Tensor, low: float = 0.05, high: float = 0.95, mask: Tensor | None = None
) -> Tensor:
    """Distance of two quantiles of all returns (that ``mask`` counts): outliers do not move it."""
    if mask is not None:
        returns = returns.masked_fill(~mask, torch.nan)
    ends = torch.nanquantile(returns.detach(), returns.new_tensor([low, high]))
    return ends[1] - ends[0]


def draw_choice(log_probs: Tensor) -> Tensor:
    """Integers ``(n,)`` from log-probabilities ``(n, actions)``."""
    # By the inverse of the cumulated probabilities, which may round to less than 1.
    drawn = torch.rand_like(log_probs[:, :1])
    action = torch.searchsorted(log_probs.exp().cumsum(-1), drawn).squeeze(-1)
    return action.clamp_max(log_probs.shape[-1] - 1)


def draw_normal(policy: Tensor) -> Tensor:
    """Actions ``(n, action)`` from means and deviations ``(n, 2, action)``."""
    mean, deviation = policy.unbind(-2)
    return torch.addcmul(mean, deviation, torch.randn_like(mean))


def log_prob_and_entropy(policy: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Of actions under the distributions they were drawn from, both ``(...)``.

    Args:
        policy: log-probabilities ``(..., actions)`` of integers ``(...)``; or means and
            deviations ``(..., 2, action)`` of floats ``(..., action)``, over which both are
            summed.
    """
    if not action.is_floating_point():
        chosen = policy.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        return chosen, -(policy.exp() * policy).sum(-1)
    mean, deviation = policy.unbind(-2)
    surprise = 0.5 * ((action - mean) / deviation).square()
    width = deviation.log() + 0.5 * math.log(2 * math.pi)
    return -(surprise + width).sum(-1), (width + 0.5).sum(-1)


def squared_error(guess: Any, inputs: Any) -> Tensor:
    """Squared distance of each observation ``(n, ...)`` from its guess; of several, their sum."""
    if isinstance(inputs, tuple):
        first, *rest = (squared_error(*pair) for pair in zip(guess, inputs, strict=True))
        return sum(rest, first)
    # Not flattened, which would copy images in channels_last.
    return (guess - inputs).square().sum(tuple(range(1, inputs.ndim)))


def spread(inputs: Any, mask: Tensor | None) -> Tensor:
    """Mean squared distance of observations ``(n, ...)`` from their mean, summed over each.

    Where all are the same there is nothing to explain, and any error is too much.
    """
    if isinstance(inputs, tuple):
        first, *rest = (spread(x, mask) for x in inputs)
        return sum(rest, first)
    x = inputs if mask is None else inputs[mask.flatten()]
    least = torch.finfo(x.dtype).tiny
    rows = x.movedim(1, -1).flatten(1)  # in the order of memory
    return (rows.square().sum() / len(rows) - rows.mean(0).square().sum()).clamp_min(least)
