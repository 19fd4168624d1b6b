"""The per-sample maths of the losses: tensors in, tensors out, nothing reduced.

Every function works elementwise on tensors of one shape, usually ``(batch,)``, and says where
it stops gradients. The LossModules beside this file are these functions plus bookkeeping.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

__all__ = ["advantage_weighted_loss", "distance", "expectile_loss"]

_DISTANCES = {"l2": F.mse_loss, "l1": F.l1_loss, "smooth_l1": F.smooth_l1_loss}


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


def distance(prediction: Tensor, target: Tensor, name: str) -> Tensor:
    """Elementwise ``l2``, ``l1`` or ``smooth_l1`` distance, with TorchRL's names."""
    if name not in _DISTANCES:
        raise ValueError(f"the distance must be one of {sorted(_DISTANCES)}, got {name!r}")
    return _DISTANCES[name](prediction, target, reduction="none")
