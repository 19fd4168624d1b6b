"""Conservative Q-learning for discrete actions."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor

from composerl.losses.calling import call_network
from composerl.losses.common import DiscreteKeys, RowLoss
from composerl.losses.functional import distance
from composerl.losses.reading import action_index, allowed, read, step_key

__all__ = ["DiscreteCQLLoss"]


class DiscreteCQLLoss(RowLoss):
    r"""CQL(H) for discrete actions: double DQN plus a penalty that needs no sampling.

    Paper: Kumar et al. 2020, https://arxiv.org/abs/2006.04779. With
    :math:`a' = \arg\max_b Q(s', b)` and the target network :math:`\bar Q`

    .. math::
        L = (r + \gamma (1 - terminated) \bar Q(s', a') - Q(s, a))^2
            + \alpha \Big( T \log \sum_b e^{Q(s, b) / T} - Q(s, a) \Big)

    Difference to ``torchrl.objectives.DiscreteCQLLoss``, whose arguments and keys it keeps:
    integer and one-hot actions are both read whatever ``action_space`` is; the squared error is
    not halved; double DQN.

    Args:
        value_network: reads the observation, writes ``action_value`` ``(batch, actions)``; a
            ``QValueActor`` works.

    Keyword Args:
        double_dqn: choose the next action by the online network; else by the target network.
        temperature: T > 0 of the logsumexp.
        min_q_weight: alpha >= 0, weight of the penalty: larger is more conservative.
        loss_function: see :mod:`composerl.losses`, like ``gamma``, ``reduction``, TorchRL's further
            options and what is read.

    Returns ``loss_qvalue``, ``loss_cql``, and ``pred_value`` and ``target_value``. Writes
    ``td_error``.
    """

    @dataclass
    class _AcceptedKeys(DiscreteKeys):
        action_value: NestedKey = "action_value"
        value: NestedKey = "chosen_action_value"
        value_target: NestedKey = "value_target"
        pred_val: NestedKey = "pred_val"  # TorchRL's for what it keeps in the batch on the way

    tensor_keys: _AcceptedKeys
    default_keys = _AcceptedKeys
    further = MappingProxyType({"delay_value": True, "action_space": None})
    delay_value: bool
    out_keys = ["loss_qvalue", "loss_cql", "pred_value", "target_value"]  # noqa: RUF012

    def __init__(
        self,
        value_network: TensorDictModule,
        *,
        loss_function: str = "l2",
        double_dqn: bool = True,
        temperature: float = 1.0,
        min_q_weight: float = 1.0,
        gamma: float | None = None,
        reduction: str | None = None,
        **further: Any,
    ) -> None:
        super().__init__(reduction, loss_function, further)
        self.coefficient("temperature", temperature)
        self.coefficient("min_q_weight", min_q_weight, "[0, inf)", symbol="alpha")
        self.value_network = value_network
        self.make_target("value_network", delayed=self.delay_value)
        self.double_dqn = double_dqn
        self.make_value_estimator(gamma=gamma)

    def reads(self) -> list[NestedKey]:
        return self.transition_keys([self.value_network], [self.value_network])

    def rows(self, batch: TensorDictBase, mask: Tensor | None) -> dict[str, Tensor]:
        keys = self.tensor_keys
        out = keys.action_value
        with torch.no_grad():
            next_q = choosing = call_network(self.target_value_network, batch, out, next_step=True)
            if self.double_dqn:
                choosing = call_network(self.value_network, batch, out, next_step=True)
            choosing = allowed(choosing, batch, step_key(keys.action_mask))
            best = choosing.argmax(-1, keepdim=True)
            target = self.td_target(batch, next_q.gather(-1, best).squeeze(-1))

        q = call_network(self.value_network, batch, out)
        action = read(batch, keys.action)
        index = action_index(action, q.shape[-1], batch.batch_size, keys.action)
        q_data = q.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        possible = allowed(q, batch, keys.action_mask)
        soft_maximum = self.temperature * (possible / self.temperature).logsumexp(-1)
        return {
            "loss_qvalue": distance(q_data, target, self.loss_function),
            "loss_cql": self.min_q_weight * (soft_maximum - q_data),
            "priority": (q_data.detach() - target).square(),
            "pred_value": q_data,
            "target_value": target,
        }
