"""Implicit Q-learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule, dispatch
from torch import Tensor

from composerl.losses.common import LeanLoss, check_number, independent_copies
from composerl.losses.functional import (
    advantage_weighted_loss,
    distance,
    expectile_loss,
)
from composerl.losses.reading import blank, distribution, read, step_key

__all__ = ["IQLLoss"]


class IQLLoss(LeanLoss):
    r"""Implicit Q-learning: the maximum over actions by an expectile over the data's actions.

    Paper: Kostrikov, Nair, Levine 2021, https://arxiv.org/abs/2110.06169. With
    :math:`u = \min_i \bar Q_i(s, a) - V(s)` (target networks :math:`\bar Q`)

    .. math::
        L_V &= |\tau - 1(u < 0)| \, u^2 \\
        L_Q &= \textstyle\sum_i (r + \gamma (1 - terminated) V(s') - Q_i(s, a))^2 \\
        L_\pi &= -\min(e^{\beta u}, w_{max}) \log \pi(a | s)

    No action outside the data is ever evaluated.

    Difference to ``torchrl.objectives.IQLLoss``, whose arguments and keys it keeps: every network
    is evaluated once per input; priority weights, masks, n-step discounts and critics with inputs
    of their own reach all three losses; the advantage clamp is an argument; the defaults are the
    paper's (TorchRL: ``smooth_l1``, temperature 1, expectile 0.5); a single critic passed in is
    kept and joined by re-initialised copies.

    Args:
        actor_network: the policy, with ``get_dist``.
        qvalue_network: one critic or a list of ``num_qvalue_nets`` critics.
        value_network: V(s).

    Keyword Args:
        num_qvalue_nets: how many critics; the minimum of their targets is taken.
        loss_function: distance of the critics to their target: ``"l2"``, ``"l1"``, ``"smooth_l1"``
            or ``"huber"`` (delta 20).
        temperature: beta, *multiplies* the advantage: 0 clones the data, larger values imitate
            only its best actions. 3 for locomotion, 10 for AntMaze, 0.5 for kitchen and adroit.
        expectile: tau in (0, 1): 0.5 is the value of the behaviour policy, larger values approach
            the best action in the data. 0.7, AntMaze 0.9.
        max_advantage_weight: upper bound of the weight.
        gamma: discount; the same as ``make_value_estimator(gamma=...)``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Reads: ``action``, the ``in_keys`` of the networks, ``("next", ...)`` of the value network's,
    ``("next", "reward")``, ``("next", "done")``, ``("next", "terminated")``; if present
    ``steps_to_next_obs`` (n-step), ``priority_weight`` (losses become weighted means,
    ``sum(w * l) / sum(w)``) and ``("collector", "mask")`` (rows that do not count).

    Returns: ``loss_actor``, ``loss_qvalue``, ``loss_value`` and ``entropy`` (detached; minus the
    mean log-probability of the data's actions, as TorchRL has it). Writes ``td_error`` (the
    largest squared error of the critics, ``(batch,)``) into the batch for prioritized replay.

    Example:
        >>> import torch
        >>> from composerl.losses import IQLLoss
        >>> from composerl.modules import gaussian_actor, twin_q, value
        >>> from composerl.envs.spaces import Spaces
        >>> from tensordict import TensorDict
        >>> spaces = Spaces(obs_shape=(3,), low=(-2.0,), high=(2.0,))
        >>> loss = IQLLoss(gaussian_actor(spaces), twin_q(spaces), value(spaces))
        >>> batch = TensorDict({
        ...     "observation": torch.randn(4, 3), "action": torch.rand(4, 1),
        ...     "next": {"observation": torch.randn(4, 3), "reward": torch.randn(4, 1),
        ...              "done": torch.zeros(4, 1, dtype=torch.bool),
        ...              "terminated": torch.zeros(4, 1, dtype=torch.bool)}}, [4])
        >>> sorted(loss(batch).keys())
        ['entropy', 'loss_actor', 'loss_qvalue', 'loss_value']
    """

    @dataclass
    class _AcceptedKeys:
        value: NestedKey = "state_value"
        action: NestedKey = "action"
        log_prob: NestedKey = "_log_prob"
        priority: NestedKey = "td_error"
        priority_weight: NestedKey = "priority_weight"
        state_action_value: NestedKey = "state_action_value"
        reward: NestedKey = "reward"
        done: NestedKey = "done"
        terminated: NestedKey = "terminated"

    tensor_keys: _AcceptedKeys
    default_keys = _AcceptedKeys
    out_keys = ["loss_actor", "loss_qvalue", "loss_value", "entropy"]  # noqa: RUF012

    def __init__(
        self,
        actor_network: ProbabilisticTensorDictSequential,
        qvalue_network: TensorDictModule | Sequence[TensorDictModule],
        value_network: TensorDictModule,
        *,
        num_qvalue_nets: int = 2,
        loss_function: str = "l2",
        temperature: float = 3.0,
        expectile: float = 0.7,
        max_advantage_weight: float = 100.0,
        gamma: float | None = None,
        reduction: str | None = None,
    ) -> None:
        super().__init__(reduction, loss_function)
        check_number("expectile", expectile, 0, 1)
        check_number("temperature (beta)", temperature, 0, inf, ends="[)")
        check_number("max_advantage_weight", max_advantage_weight, 0, inf, ends="(]")
        self.actor_network = actor_network
        self.value_network = value_network
        self.qvalue_network = independent_copies(qvalue_network, num_qvalue_nets)
        self._make_target("qvalue_network")
        self.num_qvalue_nets = num_qvalue_nets
        self.register_buffer("temperature", torch.tensor(float(temperature)))
        self.register_buffer("expectile", torch.tensor(float(expectile)))
        self.register_buffer("max_advantage_weight", torch.tensor(float(max_advantage_weight)))
        self.make_value_estimator(gamma=gamma)

    def _set_in_keys(self) -> None:
        keys = self.tensor_keys
        critics = [key for network in self.qvalue_network for key in network.in_keys]
        values = self.value_network.in_keys
        self._in_keys = list(
            dict.fromkeys(
                [
                    keys.action,
                    *(("next", key) for key in (keys.reward, keys.done, keys.terminated)),
                    *self.actor_network.in_keys,
                    *critics,
                    *values,
                    *map(step_key, values),
                ]
            )
        )

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Evaluate the three losses on a batch of transitions."""
        keys = self.tensor_keys
        given, mask = tensordict, self._mask(tensordict)
        if mask is not None:
            tensordict = blank(tensordict, mask)
        with torch.no_grad():
            target_q = torch.stack(
                [
                    self._value(network, tensordict, keys.state_action_value)
                    for network in self.target_qvalue_network
                ]
            )
            next_value = self._value(self.value_network, tensordict, keys.value, next_step=True)
            target = self._target(tensordict, next_value)

        min_q = target_q.amin(0)
        advantage = min_q - self._value(self.value_network, tensordict, keys.value)
        loss_value = self._value_loss(tensordict, min_q, advantage, mask)

        q = torch.stack(
            [
                self._value(network, tensordict, keys.state_action_value)
                for network in self.qvalue_network
            ]
        )
        loss_qvalue = distance(q, target.expand_as(q), self.loss_function).sum(0)
        priority = (q.detach() - target).square_().amax(0)
        given.set(keys.priority, priority if mask is None else priority * mask)

        log_prob = self._log_prob(tensordict)
        loss_actor = advantage_weighted_loss(
            log_prob, advantage, self.temperature, self.max_advantage_weight
        )
        reduce, average = self._reducer(tensordict, mask)
        return TensorDict(
            {
                "loss_actor": reduce(loss_actor),
                "loss_qvalue": reduce(loss_qvalue),
                "loss_value": reduce(loss_value),
                "entropy": average(-log_prob.detach()),
            },
            tensordict.batch_size if self.reduction == "none" else [],
        )

    def _value_loss(
        self, tensordict: TensorDictBase, min_q: Tensor, advantage: Tensor, mask: Tensor | None
    ) -> Tensor:
        return expectile_loss(advantage, self.expectile)

    def _log_prob(self, tensordict: TensorDictBase) -> Tensor:
        action = read(tensordict, self.tensor_keys.action)
        log_prob = distribution(self.actor_network, tensordict).log_prob(action)
        if log_prob.shape != tensordict.batch_size:
            raise ValueError(
                f"entry {self.tensor_keys.action!r} has shape {tuple(action.shape)}, whose "
                f"log-probability has shape {tuple(log_prob.shape)} instead of the batch's "
                f"{tuple(tensordict.batch_size)}"
            )
        return log_prob
