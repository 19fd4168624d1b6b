"""The quantile losses as functions of plain tensors: see :mod:`composerl.losses.pure`."""

import torch
from torch import Tensor

from composerl.losses.arguments import check_knob, check_shape
from composerl.losses.functional import quantile_huber_loss

__all__ = ["fqf_loss", "iqn_loss"]


def iqn_loss(
    quantiles: Tensor, target: Tensor, taus: Tensor, *, kappa: float | Tensor = 1.0
) -> dict[str, Tensor]:
    r"""Implicit quantile networks: quantile regression on samples of the target.

    Paper: Dabney et al. 2018, https://arxiv.org/abs/1806.06923; the equations are those of
    :class:`~composerl.losses.IQNLoss`. With fixed fractions it is QR-DQN's loss.

    Args:
        quantiles: F(s, a, tau_i) of the action taken, ``(batch, N)``. Gradients flow.
        target: samples ``(batch, N')``, :func:`~composerl.losses.td_target` of F(s', a', tau'_j) of
            the target network; detached here.
        taus: the fractions tau_i, ``(batch, N)`` or ``(N,)``; detached here.
        kappa: > 0, where the Huber function turns linear.

    Returns: ``loss_qvalue``, and ``pred_value`` (Q(s, a), the mean of its quantiles),
    ``target_value`` (the mean of the target) and ``td_error`` (their distance).

    Example:
        >>> import torch
        >>> from composerl.losses import iqn_loss
        >>> rows = iqn_loss(torch.zeros(1, 2), torch.tensor([[3.0]]), torch.tensor([0.25, 0.75]))
        >>> rows["loss_qvalue"], rows["td_error"]  # (0.25 + 0.75) * (3 - 1 / 2)
        (tensor([2.5000]), tensor([3.]))
    """
    check_knob("kappa", kappa, "(0, inf)")
    check_shape("target", target, quantiles.shape[:-1], trail="samples")
    check_shape("taus", taus, quantiles.shape[-1:] if taus.ndim == 1 else quantiles.shape)
    target = target.detach()
    loss = quantile_huber_loss(quantiles, target, taus, kappa)
    return {"loss_qvalue": loss, **_errors(quantiles.detach().mean(-1), target.mean(-1))}


def fqf_loss(
    quantiles: Tensor,
    target: Tensor,
    taus: Tensor,
    tau_hats: Tensor,
    between: Tensor,
    entropy: Tensor,
    *,
    target_shares: Tensor | None = None,
    entropy_coeff: float | Tensor = 1e-3,
    kappa: float | Tensor = 1.0,
) -> dict[str, Tensor]:
    r"""Fully parameterized quantile functions: IQN whose fractions are learned.

    Paper: Yang et al. 2019, https://arxiv.org/abs/1911.02140; the equations are those of
    :class:`~composerl.losses.FQFLoss`.

    Args:
        quantiles: F(s, a, tau_hat_i) of the action taken, ``(batch, N)``. Gradients of
            ``loss_qvalue`` flow.
        target: samples ``(batch, N')``, see :func:`iqn_loss`; detached here.
        taus: the proposed fractions, 0 first and 1 last, ``(batch, N + 1)``. Gradients of
            ``loss_fraction`` flow: propose them from detached features.
        tau_hats: their midpoints, ``(batch, N)``; detached here.
        between: F(s, a, tau_i) at the N - 1 fractions between 0 and 1, ``(batch, N - 1)``; detached
            here.
        entropy: of the proposed shares, ``(batch,)``. Gradients of ``loss_fraction`` flow.
        target_shares: what each sample of the target counts for, ``(batch, N')``; by default what
            the proposed fractions say.
        entropy_coeff: >= 0, larger keeps the fractions more uniform.
        kappa: see :func:`iqn_loss`.

    Returns: what :func:`iqn_loss` does, with means weighted by shares, ``loss_fraction`` and
    ``fraction_entropy``.

    Example:
        >>> import torch
        >>> from composerl.losses import fqf_loss
        >>> taus, tau_hats = torch.tensor([[0.0, 0.5, 1.0]]), torch.tensor([[0.25, 0.75]])
        >>> quantiles, between = torch.tensor([[0.0, 4.0]]), torch.ones(1, 1)
        >>> target = torch.ones(1, 2)
        >>> rows = fqf_loss(quantiles, target, taus, tau_hats, between, entropy=torch.zeros(1))
        >>> rows["loss_fraction"], rows["pred_value"]  # 0.5 * (|1 - 0| - |1 - 4|)
        (tensor([-1.]), tensor([2.]))
    """
    check_knob("kappa", kappa, "(0, inf)")
    check_knob("entropy_coeff", entropy_coeff, "[0, inf)")
    *batch, number = quantiles.shape
    check_shape("target", target, quantiles.shape[:-1], trail="samples")
    check_shape("taus", taus, (*batch, number + 1))
    check_shape("tau_hats", tau_hats, quantiles.shape)
    check_shape("between", between, (*batch, number - 1))
    check_shape("entropy", entropy, quantiles.shape[:-1])
    inner = taus[..., 1:-1]
    with torch.no_grad():
        shares = taus.diff(dim=-1)
        target_shares = shares if target_shares is None else target_shares
        check_shape("target_shares", target_shares, target.shape)
        slope = (between - quantiles[..., :-1]).abs() - (between - quantiles[..., 1:]).abs()
        errors = _errors((shares * quantiles).sum(-1), (target_shares * target).sum(-1))
    return {
        "loss_qvalue": quantile_huber_loss(quantiles, target, tau_hats, kappa),
        "loss_fraction": (slope * inner).sum(-1) - entropy_coeff * entropy,
        **errors,
        "fraction_entropy": entropy.detach(),
    }


def _errors(pred_value: Tensor, target_value: Tensor) -> dict[str, Tensor]:
    """The two values ``(batch,)`` and their distance."""
    td_error = (target_value - pred_value).abs()
    return {"pred_value": pred_value, "target_value": target_value, "td_error": td_error}
