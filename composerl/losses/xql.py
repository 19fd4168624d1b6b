"""Extreme Q-learning, offline."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import torch
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor

from composerl.losses.common import check_number
from composerl.losses.functional import gumbel_rescale_loss
from composerl.losses.iql import IQLLoss

__all__ = ["XQLLoss"]


class XQLLoss(IQLLoss):
    r"""Extreme Q-learning: the soft maximum over actions by Gumbel regression.

    Paper: Garg, Hejna, Geist, Ermon 2023, https://arxiv.org/abs/2301.02328. It is IQL with another
    loss of V. With :math:`z = (\min_i \bar Q_i(s, a) - V(s)) / \beta`

    .. math:: L_V = e^{z} - z - 1

    (rescaled to stay finite, see :func:`~composerl.losses.gumbel_rescale_loss`), whose minimiser is
    :math:`V = \beta \log E_{data}[e^{Q / \beta}]`: the value of the best policy that stays close to
    the data in KL, without sampling from any policy. Critics (Huber instead of squared errors) and
    actor (advantage-weighted regression) are IQL's.

    Args:
        actor_network: see :class:`~composerl.losses.IQLLoss`, like the next two.
        qvalue_network: one critic or a list.
        value_network: V(s); the paper puts LayerNorm into it (``value(env, layer_norm=True)``).

    Keyword Args:
        loss_temperature: beta of the Gumbel regression: smaller is closer to the maximum and less
            stable. 2 for locomotion, 0.6 for AntMaze, 5 for kitchen.
        max_value_diff_exp: z is clipped from above at this; 5 or 7.
        max_advantage_weight: upper bound of the actor's weights.
        vanilla_value_loss: use IQL's expectile instead, the same numbers as ``IQLLoss``.
        loss_function: distance of the critics to their target, ``"huber"`` (delta 20) or IQL's.
        temperature: multiplies the advantage in the actor's weights, as in IQL.
        expectile: for ``vanilla_value_loss``.
        **options: ``num_qvalue_nets``, ``gamma`` and ``reduction``, as in ``IQLLoss``.

    Reads, writes and returns what :class:`~composerl.losses.IQLLoss` does.
    """

    def __init__(
        self,
        actor_network: ProbabilisticTensorDictSequential,
        qvalue_network: TensorDictModule | Sequence[TensorDictModule],
        value_network: TensorDictModule,
        *,
        loss_temperature: float = 2.0,
        max_value_diff_exp: float = 7.0,
        max_advantage_weight: float = 100.0,
        vanilla_value_loss: bool = False,
        loss_function: str = "huber",
        temperature: float = 3.0,
        expectile: float = 0.7,
        **options: Any,
    ) -> None:
        check_number("loss_temperature", loss_temperature, 0, inf)
        check_number("max_value_diff_exp", max_value_diff_exp, 0, inf)
        super().__init__(
            actor_network,
            qvalue_network,
            value_network,
            max_advantage_weight=max_advantage_weight,
            loss_function=loss_function,
            temperature=temperature,
            expectile=expectile,
            **options,
        )
        self.vanilla_value_loss = vanilla_value_loss
        self.register_buffer("loss_temperature", torch.tensor(float(loss_temperature)))
        self.register_buffer("max_value_diff_exp", torch.tensor(float(max_value_diff_exp)))

    def _value_loss(self, advantage: Tensor, mask: Tensor | None) -> Tensor:
        if self.vanilla_value_loss:
            return super()._value_loss(advantage, mask)
        return gumbel_rescale_loss(advantage, self.loss_temperature, self.max_value_diff_exp, mask)
