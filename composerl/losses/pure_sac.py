"""SAC and CQL as functions of plain tensors: see :mod:`composerl.losses.pure`."""

from torch import Tensor

from composerl.losses.arguments import check_knob, check_shape
from composerl.losses.functional import cql_penalty
from composerl.losses.pure import critic_loss

__all__ = ["cql_loss", "sac_loss"]


def sac_loss(
    q: Tensor,
    target: Tensor,
    policy_q: Tensor,
    log_prob: Tensor,
    log_alpha: Tensor,
    *,
    target_entropy: float | Tensor | None = None,
    loss_function: str = "l2",
) -> dict[str, Tensor]:
    r"""Soft actor-critic: critics, a policy that climbs them, a temperature that is tuned.

    Paper: Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905; the equations are those of
    :class:`~composerl.losses.SACLoss`.

    Args:
        q: Q_i(s, a) of the data's actions, ``(critics, batch)``. Gradients of ``loss_qvalue`` flow.
        target: ``(batch,)``, :func:`~composerl.losses.td_target` of
            :math:`\min_i \bar Q_i(s', a') - \alpha \log \pi(a'|s')`; detached here.
        policy_q: Q_i(s, b) of an action b that the policy drew now, reparametrised,
            ``(critics, batch)``. Gradients of ``loss_actor`` flow: let them reach b, but not the
            critics (``critic.requires_grad_(False)`` meanwhile).
        log_prob: log pi(b|s), ``(batch,)``. Gradients of ``loss_actor`` flow.
        log_alpha: logarithm of the temperature, ``()``. Gradients of ``loss_alpha`` alone flow.
        target_entropy: H, minus the action's dimension as a rule; None leaves out ``loss_alpha``.
        loss_function: see :func:`~composerl.losses.critic_loss`.

    Returns: ``loss_actor``, ``loss_qvalue``, ``loss_alpha``, ``entropy``, ``pred_value`` (the mean
    of the critics) and ``td_error``.

    Example:
        >>> import torch
        >>> from composerl.losses import sac_loss
        >>> q, target, log_alpha = torch.zeros(2, 3), torch.ones(3), torch.zeros(())
        >>> rows = sac_loss(q, target, q + 2, torch.ones(3), log_alpha, target_entropy=-1.0)
        >>> rows["loss_actor"]  # 1 * 1 - 2
        tensor([-1., -1., -1.])
    """
    check_shape("target", target, log_prob.shape)
    check_shape("policy_q", policy_q, log_prob.shape, lead="critics")
    rows = {
        "loss_actor": log_alpha.detach().exp() * log_prob - policy_q.amin(0),
        **critic_loss(q, target, loss_function),
    }
    log_prob = log_prob.detach()
    if target_entropy is not None:
        check_knob("target_entropy", target_entropy, "(-inf, inf)")
        rows["loss_alpha"] = -log_alpha * (log_prob + target_entropy)
    return {**rows, "entropy": -log_prob, "pred_value": q.detach().mean(0)}


def cql_loss(
    q: Tensor,
    target: Tensor,
    policy_q: Tensor,
    log_prob: Tensor,
    log_alpha: Tensor,
    q_samples: Tensor,
    log_density: Tensor,
    *,
    target_entropy: float | Tensor | None = None,
    temperature: float | Tensor = 1.0,
    min_q_weight: float | Tensor = 5.0,
    alpha_prime: Tensor | None = None,
    lagrange_thresh: float | Tensor = 5.0,
    mc_return: Tensor | None = None,
    loss_function: str = "l2",
) -> dict[str, Tensor]:
    r"""Conservative Q-learning: :func:`sac_loss`, and critics held down where there are no data.

    Paper: Kumar et al. 2020, https://arxiv.org/abs/2006.04779; the equations are those of
    :class:`~composerl.losses.CQLLoss`, the penalty is :func:`~composerl.losses.cql_penalty`.

    Args:
        q: see :func:`sac_loss`, like the next four, ``target_entropy`` and ``loss_function``;
            gradients of ``loss_cql`` flow too. The paper's target has no entropy in it.
        q_samples: Q_i(s, b_j), ``(critics, samples, batch)``: a third each of uniform actions, the
            policy's at s and the policy's at s'. Gradients of ``loss_cql`` flow.
        log_density: log p(b_j) of the distribution that b_j came from, ``(samples, batch)``;
            detached here, like ``mc_return``.
        temperature: T > 0 of the logsumexp; small values approach the maximum.
        min_q_weight: weight of the penalty, >= 0: larger is more conservative. 5 to 10.
        alpha_prime: a tuned weight instead, ``()``, for example ``log_alpha_prime.exp()``; it grows
            while the penalty is above ``lagrange_thresh``. Gradients of ``loss_alpha_prime`` flow.
        lagrange_thresh: that gap, >= 0.
        mc_return: Cal-QL: the policy's samples are worth at least this, ``(batch,)``.

    Returns: what :func:`sac_loss` does, ``loss_cql`` and, with a tuned weight,
    ``loss_alpha_prime``.

    Example:
        >>> import torch
        >>> from composerl.losses import cql_loss
        >>> q, target, log_alpha = torch.zeros(2, 3), torch.ones(3), torch.zeros(())
        >>> samples, log_density = torch.zeros(2, 6, 3), torch.zeros(6, 3)
        >>> rows = cql_loss(q, target, q, torch.ones(3), log_alpha, samples, log_density)
        >>> rows["loss_cql"]  # two critics, 5 log 6 each
        tensor([17.9176, 17.9176, 17.9176])
    """
    check_knob("temperature", temperature, "(0, inf)")
    check_knob("min_q_weight", min_q_weight, "[0, inf)")
    check_knob("lagrange_thresh", lagrange_thresh, "[0, inf)")
    check_shape("log_density", log_density, log_prob.shape, lead="samples")
    check_shape("q_samples", q_samples, (len(q), *log_density.shape))
    if mc_return is not None:
        check_shape("mc_return", mc_return, log_prob.shape)
        mc_return = mc_return.detach()
    rows = sac_loss(
        q, target, policy_q, log_prob, log_alpha,
        target_entropy=target_entropy, loss_function=loss_function,
    )  # fmt: skip
    penalty = cql_penalty(q_samples, log_density.detach(), q, temperature, mc_return)
    if alpha_prime is None:
        return {**rows, "loss_cql": min_q_weight * penalty.sum(0)}
    excess = penalty - lagrange_thresh
    return {
        **rows,
        "loss_cql": (alpha_prime.detach() * excess).sum(0),
        "loss_alpha_prime": -(alpha_prime * excess.detach()).mean(0),
    }
