"""Gaussians squashed by tanh into the action box, sampled at a third of ``TanhNormal``'s cost."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from tensordict import TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential
from torch import Tensor
from torchrl.modules import TanhNormal

from composerl.losses.reading import as_pair, network_inputs

__all__ = ["is_squashed", "squashed_parameters", "squashed_sample"]

#: Per dimension, what the log-density of a squashed Gaussian loses whatever is drawn.
_SQUASHED = 0.5 * math.log(2 * math.pi) + 2 * math.log(2)


def squashed_sample(loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    r"""A reparametrised sample of a tanh-squashed Gaussian, and its log-probability.

    :math:`a = m + h \tanh u` with :math:`u \sim N(loc, scale)`, middle m and half range h of the
    box: :math:`\log p(a) = \sum \log N(u) - \log h - \log(1 - \tanh^2 u)`, with the last logarithm
    as :math:`2 (\log 2 - u - softplus(-2u))`, which stays finite where tanh is 1 to rounding. The
    same as TorchRL's ``TanhNormal``, at a third of its cost.

    Args:
        loc: ``(batch, action)``. Gradients flow through it.
        scale: standard deviation, same shape. Gradients flow through it.
        low: bounds of the actions, ``(action,)``.
        high: see ``low``.

    Returns: actions ``(batch, action)`` and log-probabilities ``(batch,)``.
    """
    noise = torch.randn_like(loc)
    u = torch.addcmul(loc, scale, noise)
    half = 0.5 * (high - low)
    constant = half.log().sum() + half.numel() * _SQUASHED
    rows = 2 * (u + F.softplus(-2 * u)) - scale.log() - 0.5 * noise.square()
    return torch.addcmul(low + half, half, u.tanh()), rows.sum(-1) - constant


def squashed_parameters(
    actor: ProbabilisticTensorDictSequential, batch: TensorDictBase, *, next_step: bool = False
) -> tuple[Tensor, Tensor]:
    """Location and scale before the tanh, of an actor that :func:`is_squashed`."""
    network = actor.module[0]
    return network.module(*network_inputs(network, batch, next_step=next_step))


def is_squashed(actor: ProbabilisticTensorDictSequential, low: Tensor, high: Tensor) -> bool:
    """Whether the actor is one network and a plain TanhNormal over this box on top of it."""
    pair = as_pair(actor)
    if pair is None:
        return False
    network, head = pair
    options = dict(head.distribution_kwargs)
    return (
        head.distribution_class is TanhNormal
        and list(head.in_keys) == list(network.out_keys) == ["loc", "scale"]
        and not options.pop("tanh_loc", False)
        and torch.equal(torch.as_tensor(options.pop("low", -1.0)).expand_as(low), low)
        and torch.equal(torch.as_tensor(options.pop("high", 1.0)).expand_as(high), high)
        and not options
    )
