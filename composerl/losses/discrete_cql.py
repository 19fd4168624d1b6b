"""Conservative Q-learning, discrete actions."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, dispatch

from composerl.losses.common import LeanLoss, check_number
from composerl.losses.functional import distance
from composerl.losses.reading import action_index, blank, call_network, read, step_key

__all__ = ["DiscreteCQLLoss"]


class DiscreteCQLLoss(LeanLoss):
    r"""CQL(H) for discrete actions: double DQN plus a penalty that needs no sampling.

    Paper: Kumar et al. 2020, https://arxiv.org/abs/2006.04779. With
    :math:`a' = \arg\max_b Q(s', b)` and the target network :math:`\bar Q`

    .. math::
        L = (r + \gamma (1 - terminated) \bar Q(s', a') - Q(s, a))^2
            + \alpha \Big( T \log \sum_b e^{Q(s, b) / T} - Q(s, a) \Big)

    Args:
        value_network: reads the observation, writes ``action_value`` ``(batch, actions)``; a
            ``QValueActor`` works.

    Keyword Args:
        loss_function: distance to the target: ``"l2"``, ``"l1"``, ``"smooth_l1"``, ``"huber"``.
        double_dqn: choose the next action by the online network; else by the target network.
        temperature: T > 0 of the logsumexp.
        min_q_weight: alpha >= 0, weight of the penalty: larger is more conservative.
        gamma: discount; the same as ``make_value_estimator(gamma=...)``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Reads ``action`` (integers ``(batch,)`` or ``(batch, 1)``, or one-hot), its inputs at s
    and s', ``("next", "reward")``, ``("next", "done")``, ``("next", "terminated")``; if present
    ``steps_to_next_obs``, ``priority_weight``, ``("collector", "mask")``. Returns ``loss_qvalue``,
    ``loss_cql`` and the detached means ``pred_value`` and ``target_value``. Writes ``td_error``.
    """

    @dataclass
    class _AcceptedKeys:
        action: NestedKey = "action"
        action_value: NestedKey = "action_value"
        priority: NestedKey = "td_error"
        priority_weight: NestedKey = "priority_weight"
        reward: NestedKey = "reward"
        done: NestedKey = "done"
        terminated: NestedKey = "terminated"

    tensor_keys: _AcceptedKeys
    default_keys = _AcceptedKeys
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
    ) -> None:
        super().__init__(reduction, loss_function)
        check_number("temperature", temperature, 0, inf)
        check_number("min_q_weight (alpha)", min_q_weight, 0, inf, ends="[)")
        self.value_network = value_network
        self._make_target("value_network")
        self.double_dqn = double_dqn
        self.register_buffer("temperature", torch.tensor(float(temperature)))
        self.register_buffer("min_q_weight", torch.tensor(float(min_q_weight)))
        self.make_value_estimator(gamma=gamma)

    def _set_in_keys(self) -> None:
        keys, inputs = self.tensor_keys, self.value_network.in_keys
        columns = [("next", key) for key in (keys.reward, keys.done, keys.terminated)]
        self._in_keys = [keys.action, *columns, *inputs, *map(step_key, inputs)]

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Evaluate both losses on a batch of transitions."""
        keys = self.tensor_keys
        given, mask = tensordict, self._mask(tensordict)
        if mask is not None:
            tensordict = blank(tensordict, mask)
        with torch.no_grad():
            next_target = call_network(
                self.target_value_network, tensordict, keys.action_value, next_step=True
            )
            chooser = next_target
            if self.double_dqn:
                chooser = call_network(
                    self.value_network, tensordict, keys.action_value, next_step=True
                )
            best = chooser.argmax(-1, keepdim=True)
            target = self._target(tensordict, next_target.gather(-1, best).squeeze(-1))

        q = call_network(self.value_network, tensordict, keys.action_value)
        action = read(tensordict, keys.action)
        index = action_index(action, q.shape[-1], tensordict.batch_size, keys.action)
        q_data = q.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        loss_qvalue = distance(q_data, target, self.loss_function)
        priority = (q_data.detach() - target).square()
        given.set(keys.priority, priority if mask is None else priority * mask)
        soft_maximum = self.temperature * (q / self.temperature).logsumexp(-1)
        loss_cql = self.min_q_weight * (soft_maximum - q_data)

        reduce, average = self._reducer(tensordict, mask)
        return TensorDict(
            {
                "loss_qvalue": reduce(loss_qvalue),
                "loss_cql": reduce(loss_cql),
                "pred_value": average(q_data.detach()),
                "target_value": average(target),
            },
            tensordict.batch_size if self.reduction == "none" else [],
        )
