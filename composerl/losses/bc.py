"""Behaviour cloning."""

from __future__ import annotations

from dataclasses import dataclass

from tensordict import NestedKey, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential
from torch import Tensor

from composerl.losses.common import LeanLoss
from composerl.losses.reading import action_log_prob, distribution

__all__ = ["BCLoss"]


class BCLoss(LeanLoss):
    r"""Behaviour cloning: maximum likelihood of the data's actions, :math:`-\log \pi(a | s)`.

    The baseline of imitation (Pomerleau 1989): it needs no environment, and drifts off where the
    data do not show how to come back.

    Difference to ``torchrl.objectives.BCLoss``: actions of a categorical policy may be integers,
    for which that takes the cross entropy of a *sampled* action and fails; the policy is called
    directly; masks and weights are read.

    Args:
        actor_network: the policy, with ``get_dist``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Reads ``action`` (floats, or integers ``(B,)`` or ``(B, 1)``, or one-hot) and the ``in_keys`` of
    the policy; if present ``priority_weight`` and ``("collector", "mask")``. Returns ``loss_bc``.

    Example:
        >>> import torch
        >>> from composerl.losses import BCLoss
        >>> from composerl.modules import categorical_actor
        >>> from composerl.envs.spaces import Spaces
        >>> from tensordict import TensorDict
        >>> loss = BCLoss(categorical_actor(Spaces(obs_shape=(4,), num_actions=2)))
        >>> batch = {"observation": torch.randn(8, 4), "action": torch.randint(2, (8,))}
        >>> loss(TensorDict(batch, [8]))["loss_bc"].shape
        torch.Size([])
    """

    @dataclass
    class _AcceptedKeys:
        action: NestedKey = "action"
        priority_weight: NestedKey = "priority_weight"

    tensor_keys: _AcceptedKeys
    default_keys = _AcceptedKeys
    default_value_estimator = None
    out_keys = ["loss_bc"]  # noqa: RUF012

    def __init__(
        self, actor_network: ProbabilisticTensorDictSequential, *, reduction: str | None = None
    ) -> None:
        super().__init__(reduction)
        self.actor_network = actor_network

    def _reads(self) -> list[NestedKey]:
        return [self.tensor_keys.action, *self.actor_network.in_keys]

    def _rows(self, batch: TensorDictBase, mask: Tensor | None) -> dict[str, Tensor]:
        dist = distribution(self.actor_network, batch)
        return {"loss_bc": -action_log_prob(dist, batch, self.tensor_keys.action)}
