"""The per-sample maths of the losses: tensors in, tensors out, nothing reduced.

Every function works elementwise on tensors of one shape, usually ``(batch,)``, unless it gives
shapes, and says where it stops gradients. Whole losses made of them are in ``pure.py``; the
LossModules beside these files are the functions plus bookkeeping.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "advantage_weighted_loss",
    "clipped_objective",
    "cql_penalty",
    "discriminator_loss",
    "distance",
    "expectile_loss",
    "gaussian_nll",
    "gumbel_rescale_loss",
    "quantile_huber_loss",
    "xql_value_loss",
]

_DISTANCES: dict[str, Callable[..., Tensor]] = {
    "l2": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": F.smooth_l1_loss,
    "huber": partial(F.huber_loss, delta=20.0),
}
DISTANCES = tuple(_DISTANCES)


def expectile_loss(diff: Tensor, expectile: float | Tensor) -> Tensor:
    r"""Asymmetric least squares, :math:`|\tau - 1(u < 0)| \, u^2`.

    The minimiser over ``v`` of the mean of ``expectile_loss(x - v, tau)`` is the tau-expectile of
    ``x``: the mean for 0.5, approaching the maximum as tau goes to 1.

    Reference: Kostrikov et al. 2021, https://arxiv.org/abs/2110.06169, equation 5.

    Args:
        diff: ``u = target - prediction``, any shape. Gradients flow through it.
        expectile: tau in (0, 1); larger values weigh positive differences more.
    """
    # A weight in diff's own type: torch.where on two Python numbers would be float32.
    return (expectile - (diff < 0).to(diff.dtype)).abs() * diff.square()


def gumbel_rescale_loss(
    value_diff: Tensor,
    loss_temperature: float | Tensor,
    max_value_diff_exp: float | Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Gumbel regression, :math:`e^{z} - z - 1` with :math:`z = (Q - V) / \beta`, kept finite.

    The minimiser over V of its mean is :math:`\beta \log E[e^{Q / \beta}]`: a soft maximum that
    needs no policy. The exponential is kept finite in two steps: ``z`` is clipped from above
    (beyond it there is no gradient), and the loss is divided by :math:`e^{m}`, where ``m`` is the
    batch's largest ``z``, at least -1 and without gradient:

    .. math:: e^{z - m} - z e^{-m} - e^{-m}

    so that a row's loss depends on the batch it is in, but its minimiser does not.

    Reference: Garg et al. 2023, https://arxiv.org/abs/2301.02328, equation 8 and appendix C.

    Args:
        value_diff: ``Q - V``, any shape. Gradients flow through it.
        loss_temperature: beta > 0: small values approach the maximum, large ones the mean.
        max_value_diff_exp: upper clip of ``z``, 5 or 7 in the paper.
        mask: rows that belong to the batch; the others do not count for ``m``.
    """
    z = torch.clamp(value_diff / loss_temperature, max=max_value_diff_exp)
    counted = z.detach() if mask is None else z.detach().masked_fill(~mask, -1.0)
    m = counted.amax().clamp(min=-1.0)
    return (z - m).exp() - (z + 1) * (-m).exp()


def xql_value_loss(
    q_values: Tensor,
    value: Tensor,
    loss_temperature: float | Tensor,
    max_value_diff_exp: float | Tensor,
) -> Tensor:
    """XQL's loss of V: Gumbel regression of the smallest critic, ``(batch,)``.

    Args:
        q_values: target critics, ``(critics, batch)``; detached here.
        value: V(s), ``(batch,)``. Gradients flow through it.
        loss_temperature: see :func:`gumbel_rescale_loss`, like ``max_value_diff_exp``.
    """
    return gumbel_rescale_loss(
        q_values.detach().amin(0) - value, loss_temperature, max_value_diff_exp
    )


def advantage_weighted_loss(
    log_prob: Tensor,
    advantage: Tensor,
    temperature: float | Tensor,
    max_weight: float | Tensor = 100.0,
) -> Tensor:
    r"""Advantage-weighted regression, :math:`-\min(e^{\beta A}, w_{max}) \log\pi(a|s)`.

    Reference: Kostrikov et al. 2021, https://arxiv.org/abs/2110.06169, equation 7.

    Args:
        log_prob: log-probability of the data's actions, ``(batch,)``. Gradients flow through it.
        advantage: ``A``, same shape; detached here.
        temperature: beta, which *multiplies* the advantage. 0 is behaviour cloning; larger values
            imitate only the best actions.
        max_weight: upper bound of the weight.
    """
    weight = (temperature * advantage.detach()).exp().clamp(max=max_weight)
    return -weight * log_prob


def clipped_objective(
    ratio: Tensor,
    advantage: Tensor,
    clip_epsilon: float | Tensor,
    clip_up: float | Tensor | None = None,
) -> Tensor:
    r"""PPO's objective as a loss, :math:`-\min(\rho A, \mathrm{clip}(\rho, 1 \pm \epsilon) A)`.

    Reference: Schulman et al. 2017, https://arxiv.org/abs/1707.06347, equation 7.

    Args:
        ratio: :math:`\rho`, of the action's probabilities now and then. Gradients flow through it,
            but not where it is beyond the clip in the direction that the advantage asks for.
        advantage: ``A``, same shape; detached here.
        clip_epsilon: larger allows longer steps.
        clip_up: the same for ratios above 1, if it is another number for them.
    """
    advantage = advantage.detach()
    down: Any = clip_epsilon  # clamp takes numbers or tensors, its signature no union of them
    up: Any = clip_epsilon if clip_up is None else clip_up
    clipped = ratio.clamp(1 - down, 1 + up)
    return -torch.minimum(ratio * advantage, clipped * advantage)


def cql_penalty(
    q_samples: Tensor,
    log_density: Tensor,
    q_data: Tensor,
    temperature: float | Tensor = 1.0,
    policy_floor: Tensor | None = None,
) -> Tensor:
    r"""What CQL(H) minimises besides the TD error, :math:`T \log\sum_j e^{z_j/T} - Q(s, a)`.

    With :math:`z_j = Q(s, a_j) - \log p(a_j)`: importance sampling of the integral of exp Q over
    the actions, by samples of different origin. With Q zero and every density that of a uniform
    distribution over a box, it is the logarithm of the number of samples times the box's volume.

    Reference: Kumar et al. 2020, https://arxiv.org/abs/2006.04779, appendix F.

    Args:
        q_samples: Q(s, a_j), ``(critics, samples, batch)``. Gradients flow.
        log_density: log p(a_j) of the distribution that a_j came from, ``(samples, batch)``.
        q_data: Q(s, a) of the data's actions, ``(critics, batch)``. Gradients flow.
        temperature: T > 0.
        policy_floor: Cal-QL: the value of samples after the first third (those of the policy) is
            at least this, ``(batch,)``, before the correction.

    Returns: ``(critics, batch)``.
    """
    if policy_floor is not None:
        uniform = q_samples.shape[1] // 3
        floored = torch.maximum(q_samples[:, uniform:], policy_floor)
        q_samples = torch.cat([q_samples[:, :uniform], floored], 1)
    z = (q_samples - log_density) / temperature
    return temperature * z.logsumexp(1) - q_data


def discriminator_loss(logits: Tensor, label: float | Tensor) -> Tensor:
    r"""Binary cross entropy of logits, :math:`\mathrm{softplus}(l) - y \, l`.

    Reference: Ho & Ermon 2016, https://arxiv.org/abs/1606.03476, equation 17 (whose D is the
    probability of the *policy*; here it is that of the expert).

    Args:
        logits: :math:`l`, any shape. Gradients flow through it.
        label: :math:`y`, 1 for the expert's rows and 0 for the policy's.
    """
    return F.softplus(logits) - label * logits


def gaussian_nll(error: Tensor, log_var: Tensor) -> Tensor:
    r"""Twice the negative log-likelihood of a Gaussian but for a constant.

    :math:`e^2 / \sigma^2 + \log \sigma^2`: minimal over the variance where it is the mean squared
    error, with the value ``1 + log(mse)``.

    Args:
        error: target minus mean, any shape. Gradients flow through it.
        log_var: logarithm of the variance, same shape. Gradients flow through it.
    """
    return error.square() * (-log_var).exp() + log_var


def quantile_huber_loss(
    current: Tensor, target: Tensor, taus: Tensor, kappa: float | Tensor = 1.0
) -> Tensor:
    r"""Quantile regression of N quantiles on N' samples of the target distribution, ``(batch,)``.

    .. math::
        \sum_{i=1}^{N} \frac{1}{N'} \sum_{j=1}^{N'} |\tau_i - 1(\delta_{ij} < 0)| \,
        \frac{h_\kappa(\delta_{ij})}{\kappa}, \quad \delta_{ij} = target_j - current_i

    with the Huber function :math:`h_\kappa` (square of half a difference up to kappa, linear
    beyond). As kappa goes to 0 the minimiser over ``current_i`` becomes the tau_i-quantile of the
    targets, and their tau_i-expectile as kappa grows; divided by kappa, the slope far away stays
    :math:`\tau_i` and :math:`1 - \tau_i`.

    Reference: Dabney et al. 2018, https://arxiv.org/abs/1806.06923, equations 3 and 4.

    Args:
        current: quantiles ``(batch, N)``. Gradients flow through them, of the first order only.
        target: samples of the target ``(batch, N')``; detached here.
        taus: fractions of ``current``, ``(batch, N)`` or ``(N,)``; detached here.
        kappa: > 0. There is no special case for 0 (the plain pinball loss, whose gradient jumps):
            take a kappa far below the differences that matter.
    """
    if not isinstance(kappa, Tensor) and not kappa > 0:
        raise ValueError(f"kappa must be positive, got {kappa!r}")
    with torch.no_grad():
        delta = (target.unsqueeze(-2) - current.unsqueeze(-1)).div_(kappa)
        taus = taus.unsqueeze(-1)
        clipped = delta.clamp(-1.0, 1.0)
        # c (d - c / 2) with d clipped to c is the Huber function, and c its slope. Weighted by sign
        # and by parts, as a comparison and a choice would take most of the time.
        slope = (taus * clipped.clamp(min=0.0)).addcmul_(1 - taus, clipped.clamp(max=0.0))
        rows = delta.sub_(clipped, alpha=0.5).mul_(slope).sum((-2, -1)) * kappa
        slope = slope.sum(-1)
    # Adds nothing but the gradient, which is known: autograd would take twice as long for it.
    return (rows - (slope * (current - current.detach())).sum(-1)) / target.shape[-1]


def distance(prediction: Tensor, target: Tensor, name: str) -> Tensor:
    """Elementwise distance: ``l2``, ``l1``, ``smooth_l1`` or ``huber`` (with delta 20)."""
    if name not in _DISTANCES:
        raise ValueError(f"the distance must be one of {DISTANCES}, got {name!r}")
    return _DISTANCES[name](prediction, target, reduction="none")
