"""Fitted Q evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type

from composerl.losses.arguments import independent_copies
from composerl.losses.calling import call_network
from composerl.losses.common import RowLoss, TransitionKeys
from composerl.losses.reading import action_index, read

__all__ = ["FQELoss"]


class FQELoss(RowLoss):
    r"""Fitted Q evaluation: what a policy would earn, learned from the data of others.

    Paper: Le, Voloshin, Yue 2019, https://arxiv.org/abs/1903.08738; as a way to choose among
    policies without an environment: Paine et al. 2020, https://arxiv.org/abs/2007.09055. For a
    policy :math:`\pi` that stays as it is, and target networks :math:`\bar Q_i`

    .. math::
        L = \textstyle\sum_i (r + \gamma (1 - terminated) \bar Q_i(s', a') - Q_i(s, a))^2,
            \quad a' = \pi(s')

    Q-learning's loss but for the action: nothing is maximised, so that Q becomes the policy's own
    value, and :math:`Q(s_0, \pi(s_0))` at the first states of episodes an estimate of its return.
    Several critics share nothing, not even targets: their spread tells how far the data leave the
    estimate open. The minimum of them would be an estimate that is too low on purpose.

    Args:
        actor_network: the policy, with a distribution or without; nothing trains it.
        qvalue_network: Q(s, a), one critic or a list: of observation and action, or, for discrete
            actions, of the observation alone with an ``action_value`` for each action.

    Keyword Args:
        deterministic: evaluate the policy as it is deployed, without its randomness; False draws
            a' from it, for the value of the stochastic policy.
        num_qvalue_nets: see :mod:`composerl.losses`, like ``loss_function``, ``gamma``,
            ``reduction`` and what is read.

    Returns: ``loss_qvalue``, ``pred_value`` and ``target_value``. Writes ``td_error`` (the largest
    squared error of the critics).

    Example:
        >>> from composerl.envs import make_env
        >>> from composerl.losses import FQELoss
        >>> from composerl.modules import gaussian_actor, twin_q
        >>> env = make_env("Pendulum-v1")
        >>> loss = FQELoss(gaussian_actor(env), twin_q(env, number=1))
        >>> {name.split(".")[0] for name, _ in loss.named_parameters()}
        {'qvalue_network'}
    """

    @dataclass
    class _AcceptedKeys(TransitionKeys):
        state_action_value: NestedKey = "state_action_value"
        action_value: NestedKey = "action_value"

    tensor_keys: _AcceptedKeys
    default_keys = _AcceptedKeys
    _fixed_names = ("actor_network",)
    out_keys = ["loss_qvalue", "pred_value", "target_value"]  # noqa: RUF012

    def __init__(
        self,
        actor_network: TensorDictModule,
        qvalue_network: TensorDictModule | Sequence[TensorDictModule],
        *,
        num_qvalue_nets: int = 1,
        deterministic: bool = True,
        loss_function: str = "l2",
        gamma: float | None = None,
        reduction: str | None = None,
    ) -> None:
        super().__init__(reduction, loss_function)
        self.actor_network = actor_network
        self.qvalue_network = independent_copies(qvalue_network, num_qvalue_nets)
        self.make_target("qvalue_network")
        self.num_qvalue_nets = num_qvalue_nets
        self.acting = ExplorationType.DETERMINISTIC if deterministic else ExplorationType.RANDOM
        self.name_action(actor_network)
        self.make_value_estimator(gamma=gamma)

    def reads(self) -> list[NestedKey]:
        critics = [*self.qvalue_network]
        return self.transition_keys(critics, [self.actor_network, *critics])

    def rows(self, batch: TensorDictBase, mask: Tensor | None) -> dict[str, Tensor]:
        key = self.tensor_keys.action
        with torch.no_grad():
            with set_exploration_type(self.acting):
                next_action = call_network(self.actor_network, batch, key, next_step=True)
            next_q = self.values(self.target_qvalue_network, batch, next_action, next_step=True)
            target = torch.stack([self.td_target(batch, each) for each in next_q])

        q = self.values(self.qvalue_network, batch, read(batch, key))
        return {
            **self.critic_rows(q, target),
            "pred_value": q.mean(0),
            "target_value": target.mean(0),
        }

    def values(
        self, networks: nn.ModuleList, batch: TensorDictBase, action: Tensor, **options: Any
    ) -> Tensor:
        """Q(s, a) of every critic, ``(critics, batch)``: ``loss.qvalue_network``, for example."""
        keys, size, values = self.tensor_keys, batch.batch_size, []
        network: Any
        for network in networks:
            if keys.action in network.in_keys:
                name, given = keys.state_action_value, {keys.action: action}
                values.append(self.value_of(network, batch, name, given=given, **options))
            else:
                every = call_network(network, batch, keys.action_value, **options)
                index = action_index(action, every.shape[-1], size, keys.action)
                values.append(every.gather(-1, index.unsqueeze(-1)).squeeze(-1))
        return torch.stack(values)
