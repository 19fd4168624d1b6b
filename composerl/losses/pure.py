"""Whole losses as functions of plain tensors: no TensorDict, no networks, nothing reduced.

Each takes what the networks gave for a batch of transitions (s, a, r, s') and returns a dictionary
of ``(batch,)`` tensors: what is minimised, ``loss_*``, and detached metrics, under the names that
the LossModule of the algorithm returns, which calls the function. ``td_error`` is what prioritized
replay needs. Weigh, mask and average as you like::

    target = td_target(reward, terminated, value_net(next_obs).squeeze(-1), gamma=0.99)
    rows = iql_loss(q, target, target_q, value, log_prob, expectile=0.9)
    loss = sum(rows[name].mean() for name in ("loss_actor", "loss_qvalue", "loss_value"))

``batch`` may be several dimensions. Every hyperparameter is a number, which is checked, or a
tensor, which is not. SAC and CQL are in ``pure_sac.py``, IQN and FQF in ``pure_quantiles.py``.
"""

import torch
from torch import Tensor

from composerl.losses.arguments import check_knob, check_shape
from composerl.losses.functional import (
    advantage_weighted_loss,
    distance,
    expectile_loss,
    gumbel_rescale_loss,
)

__all__ = ["critic_loss", "iql_loss", "td_target", "xql_loss"]


def td_target(
    reward: Tensor, terminated: Tensor, next_value: Tensor, gamma: float | Tensor = 0.99
) -> Tensor:
    r"""The target of one step, :math:`r + \gamma (1 - terminated) V(s')`.

    Args:
        reward: ``(batch,)``.
        terminated: same shape, true where no state follows. A time limit is no such end.
        next_value: V(s'), same shape, or ``(batch, n)`` for n samples of the return at s'.
        gamma: discount; ``(batch,)`` if it differs, :math:`\gamma^n` after n steps of rewards.

    Returns: the shape of ``next_value``. Gradients flow; the losses below stop them.

    Example:
        >>> import torch
        >>> from composerl.losses import td_target
        >>> reward, terminated = torch.tensor([1.0, 1.0]), torch.tensor([False, True])
        >>> td_target(reward, terminated, next_value=torch.tensor([4.0, 4.0]), gamma=0.5)
        tensor([3., 1.])
    """
    check_knob("gamma", gamma, "[0, 1]")
    if isinstance(gamma, Tensor) and gamma.ndim:
        check_shape("gamma", gamma, reward.shape)
    samples = next_value.ndim > reward.ndim
    check_shape("terminated", terminated, reward.shape)
    check_shape("next_value", next_value, reward.shape, trail="n" if samples else "")
    discount = gamma * terminated.logical_not().to(next_value.dtype)
    if samples:
        reward, discount = reward.unsqueeze(-1), discount.unsqueeze(-1)
    return torch.addcmul(reward, discount, next_value)


def critic_loss(q: Tensor, target: Tensor, loss_function: str = "l2") -> dict[str, Tensor]:
    """Distance of critics to their target, ``loss_qvalue``, summed over the critics.

    Also ``td_error``, the largest squared error among them.

    Args:
        q: Q_i(s, a), ``(critics, batch)``. Gradients flow.
        target: ``(batch,)``, see :func:`td_target`, or ``(critics, batch)`` if each has its own;
            detached here.
        loss_function: ``"l2"``, ``"l1"``, ``"smooth_l1"`` or ``"huber"`` (delta 20).

    Example:
        >>> import torch
        >>> from composerl.losses import critic_loss
        >>> rows = critic_loss(torch.tensor([[1.0], [4.0]]), torch.tensor([2.0]))
        >>> rows["loss_qvalue"], rows["td_error"]
        (tensor([5.]), tensor([4.]))
    """
    if target.ndim == q.ndim:
        check_shape("target", target, q.shape)
    else:
        check_shape("q", q, target.shape, lead="critics")
    target = target.detach()
    rows = distance(q, target.expand_as(q), loss_function).sum(0)
    return {"loss_qvalue": rows, "td_error": (q.detach() - target).square_().amax(0)}


def iql_loss(
    q: Tensor,
    target: Tensor,
    target_q: Tensor,
    value: Tensor,
    log_prob: Tensor,
    *,
    temperature: float | Tensor = 3.0,
    expectile: float | Tensor = 0.7,
    max_advantage_weight: float | Tensor = 100.0,
    loss_function: str = "l2",
) -> dict[str, Tensor]:
    r"""Implicit Q-learning: critics, an expectile of their values, a policy weighted by both.

    Paper: Kostrikov et al. 2021, https://arxiv.org/abs/2110.06169; the equations are those of
    :class:`~composerl.losses.IQLLoss`.

    Args:
        q: Q_i(s, a), ``(critics, batch)``. Gradients of ``loss_qvalue`` flow.
        target: ``(batch,)``, of V(s'), see :func:`td_target`; detached here.
        target_q: the target networks' Q_i(s, a), ``(critics, batch)``; detached here.
        value: V(s), ``(batch,)``. Gradients of ``loss_value`` flow.
        log_prob: log pi(a|s) of the data's actions, ``(batch,)``. Gradients of ``loss_actor`` flow.
        temperature: beta >= 0, *multiplies* the advantage: larger imitates only the best actions.
        expectile: tau in (0, 1]: larger is closer to the best action in the data.
        max_advantage_weight: upper bound of the weight.
        loss_function: see :func:`critic_loss`.

    Returns: ``loss_actor``, ``loss_qvalue``, ``loss_value``, ``entropy``, ``pred_value`` (the mean
    of the critics) and ``td_error``.

    Example:
        >>> import torch
        >>> from composerl.losses import iql_loss
        >>> q, target, value = torch.zeros(2, 3), torch.ones(3), torch.zeros(3)
        >>> rows = iql_loss(q, target, q + 2, value, log_prob=-torch.ones(3), temperature=0.0)
        >>> {name: row[0].item() for name, row in rows.items() if name != "loss_value"}
        {'loss_actor': 1.0, 'loss_qvalue': 2.0, 'td_error': 1.0, 'entropy': 1.0, 'pred_value': 0.0}
        >>> rows["loss_value"]  # 0.7 * 2 ** 2
        tensor([2.8000, 2.8000, 2.8000])
    """
    check_knob("expectile", expectile, "(0, 1]")
    advantage = _least(target_q, value, log_prob) - value
    loss_value = expectile_loss(advantage, expectile)
    return _rows(
        q, target, log_prob, advantage, loss_value, temperature, max_advantage_weight, loss_function
    )


def xql_loss(
    q: Tensor,
    target: Tensor,
    target_q: Tensor,
    value: Tensor,
    log_prob: Tensor,
    *,
    sampled_q: Tensor | None = None,
    mask: Tensor | None = None,
    temperature: float | Tensor = 3.0,
    loss_temperature: float | Tensor = 2.0,
    max_value_diff_exp: float | Tensor = 7.0,
    max_advantage_weight: float | Tensor = 100.0,
    loss_function: str = "huber",
) -> dict[str, Tensor]:
    r"""Extreme Q-learning: :func:`iql_loss` with Gumbel regression in place of the expectile.

    Paper: Garg et al. 2023, https://arxiv.org/abs/2301.02328; the equation is that of
    :func:`~composerl.losses.gumbel_rescale_loss`, whose scale is one for the whole batch.

    Args:
        q: see :func:`iql_loss`, like the next four, ``temperature`` and ``max_advantage_weight``.
        sampled_q: the least target critic at k other actions, ``(k, batch)``, which take the place
            of the data's in V's loss, in the mean over them; detached here.
        mask: ``(batch,)``, false for rows that do not belong to the batch (padding).
        loss_temperature: beta > 0 of the Gumbel regression: smaller is closer to the maximum.
        max_value_diff_exp: clip of (Q - V) / beta from above, > 0; 5 or 7.
        loss_function: see :func:`critic_loss`.

    Returns: what :func:`iql_loss` does.

    Example:
        >>> import torch
        >>> from composerl.losses import xql_loss
        >>> q, target, value = torch.zeros(2, 3), torch.ones(3), torch.zeros(3)
        >>> rows = xql_loss(q, target, q + 2, value, log_prob=-torch.ones(3))
        >>> rows["loss_value"]  # z = 1 is the largest too: 1 - 2 / e
        tensor([0.2642, 0.2642, 0.2642])
    """
    check_knob("loss_temperature", loss_temperature, "(0, inf)")
    check_knob("max_value_diff_exp", max_value_diff_exp, "(0, inf)")
    if mask is not None:
        check_shape("mask", mask, log_prob.shape)
    least = _least(target_q, value, log_prob)
    advantage = least - value
    if sampled_q is None:
        loss_value = gumbel_rescale_loss(advantage, loss_temperature, max_value_diff_exp, mask)
    else:
        check_shape("sampled_q", sampled_q, log_prob.shape, lead="k")
        other = advantage + (sampled_q.detach() - least)
        every = None if mask is None else mask.expand_as(other)
        each = gumbel_rescale_loss(other, loss_temperature, max_value_diff_exp, every)
        loss_value = each.mean(0)
    return _rows(
        q, target, log_prob, advantage, loss_value, temperature, max_advantage_weight, loss_function
    )


def _least(target_q: Tensor, value: Tensor, log_prob: Tensor) -> Tensor:
    """The least target critic, ``(batch,)``, detached."""
    check_shape("value", value, log_prob.shape)
    check_shape("target_q", target_q, log_prob.shape, lead="critics")
    return target_q.detach().amin(0)


def _rows(
    q: Tensor,
    target: Tensor,
    log_prob: Tensor,
    advantage: Tensor,
    loss_value: Tensor,
    temperature: float | Tensor,
    max_advantage_weight: float | Tensor,
    loss_function: str,
) -> dict[str, Tensor]:
    """What IQL and XQL share: all but the loss of V."""
    check_knob("temperature", temperature, "[0, inf)")
    check_knob("max_advantage_weight", max_advantage_weight, "(0, inf]")
    check_shape("target", target, log_prob.shape)
    return {
        "loss_actor": advantage_weighted_loss(
            log_prob, advantage, temperature, max_advantage_weight
        ),
        **critic_loss(q, target, loss_function),
        "loss_value": loss_value,
        "entropy": -log_prob.detach(),
        "pred_value": q.detach().mean(0),
    }
