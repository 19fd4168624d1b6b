"""Extreme Q-learning, offline."""

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor
from torchrl.data import TensorSpec

from composerl.losses.arguments import action_box, check_whole
from composerl.losses.calling import call_network
from composerl.losses.iql import IQLLoss
from composerl.losses.pure import xql_loss
from composerl.losses.reading import read

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
        sample_random_times: V's loss also sees so many uniform actions per state; it then leans on
            the critics outside the data, more conservatively where they are low.
        action_noise: deviation of noise on the data's actions in V's loss, as a share of half the
            action range and cut at 0.5 of it; 0.1 in the paper.
        action_spec: the action box for these two; the actor's own by default.
        vanilla_value_loss: use IQL's expectile instead, the same numbers as ``IQLLoss``.
        loss_function: distance of the critics to their target; by default ``"huber"`` (delta 20),
            with ``vanilla_value_loss`` IQL's ``"l2"``.
        **options: the other keyword arguments of ``IQLLoss``, for example
            ``max_advantage_weight`` and, for ``vanilla_value_loss``, ``expectile``.

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
        sample_random_times: int = 0,
        action_noise: float = 0.0,
        action_spec: TensorSpec | None = None,
        vanilla_value_loss: bool = False,
        loss_function: str | None = None,
        **options: Any,
    ) -> None:
        options["loss_function"] = loss_function or ("l2" if vanilla_value_loss else "huber")
        super().__init__(actor_network, qvalue_network, value_network, **options)
        self.vanilla_value_loss = vanilla_value_loss
        self.sample_random_times = check_whole("sample_random_times", sample_random_times, 0)
        self.coefficient("action_noise", action_noise, "[0, inf)")
        self._perturbed = bool(sample_random_times or action_noise)
        if self._perturbed:
            low, high = action_box(actor_network, action_spec, self.tensor_keys.action)
            self.register_buffer("low", low)
            self.register_buffer("high", high)
            self.register_buffer("half_range", (high - low) / 2)
        self.coefficient("loss_temperature", loss_temperature)
        self.coefficient("max_value_diff_exp", max_value_diff_exp)

    def _losses(
        self, batch: TensorDictBase, mask: Tensor | None, values: tuple[Tensor, ...]
    ) -> dict[str, Tensor]:
        if self.vanilla_value_loss:
            return super()._losses(batch, mask, values)
        return xql_loss(
            *values,
            sampled_q=self._other_q(batch) if self._perturbed else None,
            mask=mask,
            temperature=self.temperature,
            loss_temperature=self.loss_temperature,
            max_value_diff_exp=self.max_value_diff_exp,
            max_advantage_weight=self.max_advantage_weight,
            loss_function=self.loss_function,
        )

    @torch.no_grad()
    def _other_q(self, batch: TensorDictBase) -> Tensor:
        """The smallest target critic at noisy and at random actions, ``(1 + k, batch)``."""
        key = self.tensor_keys.action
        action = read(batch, key)
        noise = (self.action_noise * torch.randn_like(action)).clamp(-0.5, 0.5) * self.half_range
        noisy = torch.clamp(action + noise, self.low, self.high)
        shape = (self.sample_random_times, *action.shape)
        uniform = self.low + 2 * self.half_range * torch.rand(shape).to(action)
        actions = torch.cat([noisy.unsqueeze(0), uniform])
        given, lead = {key: actions}, actions.shape[:1]
        out_key = self.tensor_keys.state_action_value
        values = [
            call_network(network, batch, out_key, given=given, lead=lead)
            for network in self.target_qvalue_network
        ]
        return torch.stack(values).amin(0).squeeze(-1)
