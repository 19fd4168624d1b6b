"""Implicit Q-learning."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor, nn

from composerl.losses.arguments import Only, independent_copies
from composerl.losses.calling import distribution
from composerl.losses.common import RowLoss, TransitionKeys
from composerl.losses.distributions import action_log_prob
from composerl.losses.pure import iql_loss

__all__ = ["IQLLoss"]


class IQLLoss(RowLoss):
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
        actor_network: the policy.
        qvalue_network: one critic or a list.
        value_network: V(s), the only one that is evaluated at s' too.

    Keyword Args:
        temperature: beta, *multiplies* the advantage: 0 clones the data, larger values imitate
            only its best actions. 3 for locomotion, 10 for AntMaze, 0.5 for kitchen and adroit.
        expectile: tau in (0, 1]: 0.5 is the value of the behaviour policy, larger values approach
            the best action in the data. 0.7, AntMaze 0.9.
        max_advantage_weight: upper bound of the weight.
        num_qvalue_nets: see :mod:`composerl.losses`, like ``loss_function``, ``gamma``,
            ``reduction``, TorchRL's further options and what is read.

    Returns: ``loss_actor``, ``loss_qvalue``, ``loss_value``, ``entropy`` (minus the mean
    log-probability of the data's actions, as TorchRL has it) and ``pred_value`` (of the critics,
    which grows without end where learning diverges). Writes ``td_error`` (the largest
    squared error of the critics).

    Example:
        >>> from composerl.envs import make_env
        >>> from composerl.losses import IQLLoss
        >>> from composerl.modules import gaussian_actor, twin_q, value
        >>> env = make_env("Pendulum-v1")
        >>> loss = IQLLoss(gaussian_actor(env), twin_q(env), value(env))
        >>> sorted(loss(env.rollout(4)).keys())
        ['entropy', 'loss_actor', 'loss_qvalue', 'loss_value', 'pred_value']
    """

    @dataclass
    class _AcceptedKeys(TransitionKeys):
        value: NestedKey = "state_value"
        log_prob: NestedKey = "_log_prob"
        state_action_value: NestedKey = "state_action_value"

    tensor_keys: _AcceptedKeys
    default_keys = _AcceptedKeys
    further = MappingProxyType(
        {
            "separate_losses": False,
            "deactivate_vmap": False,
            "scalar_output_mode": None,
            "priority_key": Only(None, "name it by set_keys(priority=...)"),
        }
    )
    delay_qvalue = True
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
        **further: Any,
    ) -> None:
        super().__init__(reduction, loss_function, further)
        self.coefficient("temperature", temperature, "[0, inf)", symbol="beta")
        self.coefficient("expectile", expectile, "(0, 1]")
        self.coefficient("max_advantage_weight", max_advantage_weight, "(0, inf]")
        self.actor_network = actor_network
        self.value_network = value_network
        self.qvalue_network = independent_copies(qvalue_network, num_qvalue_nets)
        self.make_target("qvalue_network")
        self.num_qvalue_nets = num_qvalue_nets
        self.name_action(actor_network)
        self.make_value_estimator(gamma=gamma)

    def reads(self) -> list[NestedKey]:
        value = self.value_network
        return self.transition_keys([self.actor_network, *self.qvalue_network, value], [value])

    def rows(self, batch: TensorDictBase, mask: Tensor | None) -> dict[str, Tensor]:
        actor, value_network, key = self.actor_network, self.value_network, self.tensor_keys.value
        with torch.no_grad():
            target_q = self._all_q(self.target_qvalue_network, batch)
            next_value = self.value_of(value_network, batch, key, next_step=True)
            target = self.td_target(batch, next_value)

        with self._apart(value_network, actor):
            value = self.value_of(value_network, batch, key)
        critics = self.qvalue_network
        with self._apart(critics, actor, value_network):
            q = self._all_q(critics, batch)
        dist = distribution(actor, batch)
        log_prob = action_log_prob(dist, batch, self.tensor_keys.action)
        values = q, target, target_q, value, log_prob
        return self._prioritized(self._losses(batch, mask, values))

    def _losses(
        self, batch: TensorDictBase, mask: Tensor | None, values: tuple[Tensor, ...]
    ) -> dict[str, Tensor]:
        """The loss as a function of what the networks gave."""
        return iql_loss(
            *values,
            temperature=self.temperature,
            expectile=self.expectile,
            max_advantage_weight=self.max_advantage_weight,
            loss_function=self.loss_function,
        )

    def _all_q(self, networks: nn.ModuleList, batch: TensorDictBase) -> Tensor:
        """Q(s, a) of every critic, ``(critics, batch)``."""
        key = self.tensor_keys.state_action_value
        return self.values_of(networks, batch, key)
