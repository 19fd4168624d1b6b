"""What policies' distributions say of actions: log-probabilities, entropies, squashed samples."""

import math
from collections.abc import Iterable
from typing import TypeGuard

import torch
import torch.nn.functional as F
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import CompositeDistribution, ProbabilisticTensorDictSequential
from torch import Tensor
from torch.distributions import Categorical, Distribution
from torchrl.modules import MaskedOneHotCategorical, OneHotCategorical, TanhNormal

from composerl.losses.calling import as_pair
from composerl.losses.reading import action_index, read

__all__ = [
    "action_log_prob",
    "entropy_of",
    "is_squashed",
    "several",
    "squashed_sample",
    "sum_of_parts",
]

#: Per dimension, what the log-density of a squashed Gaussian loses whatever is drawn.
_SQUASHED = 0.5 * math.log(2 * math.pi) + 2 * math.log(2)


def several(keys: NestedKey | list[NestedKey]) -> list[NestedKey]:
    """The keys of an action of parts, or of one without."""
    return keys if isinstance(keys, list) else [keys]


def sum_of_parts(parts: Iterable[Tensor], batch: TensorDictBase) -> Tensor:
    """Log-probabilities or entropies of the parts of an action, summed to ``(batch,)``."""
    size = batch.batch_size
    first, *others = (x if x.shape == size else x.reshape(*size, -1).sum(-1) for x in parts)
    for other in others:
        first = first + other
    return first


def action_log_prob(dist: Distribution, batch: TensorDictBase, key: NestedKey) -> Tensor:
    """Log-probability of the batch's actions, ``(batch,)``; integers and one-hot are both read."""
    if isinstance(dist, CompositeDistribution):
        log_prob = dist.log_prob(batch.select(*several(key)))
        parts = [log_prob] if isinstance(log_prob, Tensor) else log_prob.values(True, True)
        return sum_of_parts(parts, batch)
    action = read(batch, key)
    if isinstance(dist, Categorical):
        # A masked one may hold the logits of what is allowed alone.
        number = getattr(dist, "num_samples", dist.logits.shape[-1])
        action = action_index(action, number, batch.batch_size, key)
        if _is_plain(dist) and dist.batch_shape == action.shape:
            return dist.logits.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        if isinstance(dist, (OneHotCategorical, MaskedOneHotCategorical)):
            action = F.one_hot(action, number)
    elif action.shape != (shape := (*dist.batch_shape, *dist.event_shape)):
        raise ValueError(f"entry {key!r} must have shape {tuple(shape)}, got {tuple(action.shape)}")
    return dist.log_prob(action).reshape(batch.batch_size)


def entropy_of(dist: Distribution, batch: TensorDictBase, samples: int) -> Tensor:
    """The entropy, ``(batch,)``; by samples where there is no closed form."""
    if isinstance(dist, CompositeDistribution):
        parts = [entropy_of(part, batch, samples) for part in dist.dists.values()]
        return sum_of_parts(parts, batch)
    if _is_plain(dist) and dist.batch_shape == batch.batch_size:
        logits = dist.logits
        # What is impossible adds 0, which minus infinity times 0 is not.
        finite = logits.clamp(min=torch.finfo(logits.dtype).min)
        return -(finite * logits.exp()).sum(-1)
    try:
        return sum_of_parts([dist.entropy()], batch)
    except NotImplementedError:
        draw = dist.rsample if dist.has_rsample else dist.sample
        log_prob = dist.log_prob(draw(torch.Size([samples])))
        return sum_of_parts([-log_prob.mean(0)], batch)


def _is_plain(dist: Distribution) -> TypeGuard[Categorical]:
    """Whether it has the equations of torch's own Categorical, of logits, and checks nothing.

    Written out they give the same without the time of its broadcasts.
    """
    return (
        isinstance(dist, Categorical)
        and type(dist).log_prob is Categorical.log_prob
        and not dist._validate_args
        and "probs" not in vars(dist)
    )


def squashed_sample(loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    r"""A reparametrised sample of a tanh-squashed Gaussian, and its log-probability.

    :math:`a = m + h \tanh u` with :math:`u \sim N(loc, scale)`, middle m and half range h of the
    box: :math:`\log p(a) = \sum \log N(u) - \log h - \log(1 - \tanh^2 u)`, with the last logarithm
    as :math:`2 (\log 2 - u - softplus(-2u))`, which stays finite where tanh is 1 to rounding. The
    same as TorchRL's ``TanhNormal``, at a third of its cost.

    Args:
        loc: ``(batch, action)``, like ``scale``, the deviation. Gradients flow through both.
        low: bounds of the actions, ``(action,)``, like ``high``.

    Returns: actions ``(batch, action)`` and log-probabilities ``(batch,)``.
    """
    noise = torch.randn_like(loc)
    u = torch.addcmul(loc, scale, noise)
    half = 0.5 * (high - low)
    constant = half.log().sum() + half.numel() * _SQUASHED
    rows = 2 * (u + F.softplus(-2 * u)) - scale.log() - 0.5 * noise.square()
    return torch.addcmul(low + half, half, u.tanh()), rows.sum(-1) - constant


def is_squashed(
    actor: ProbabilisticTensorDictSequential, low: Tensor | None, high: Tensor | None
) -> bool:
    """Whether the actor is one network and a plain TanhNormal over this box on top of it."""
    pair = as_pair(actor)
    if pair is None or low is None or high is None:
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
