"""What the losses of return distributions share: targets, keys, TD errors."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor, nn
from torchrl.objectives import ValueEstimators
from torchrl.objectives.value import TD0Estimator

from composerl.losses.common import LeanLoss, TransitionKeys
from composerl.losses.reading import action_index, evaluate, network_inputs, read

__all__ = ["QuantileLoss", "pick"]


class QuantileLoss(LeanLoss):
    """A loss of a value network with ``in_keys``, ``features`` and ``quantiles``.

    ``features(*inputs)`` gives ``(batch, d)`` and ``quantiles(features, taus)`` gives ``(batch,
    actions, n)``, so that a state is read once for any number of fractions; see
    :class:`composerl.modules.QuantileNetwork`.
    """

    _AcceptedKeys = TransitionKeys
    tensor_keys: TransitionKeys
    default_keys = TransitionKeys
    # A lambda-return mixes values, not distributions.
    SUPPORTED_VALUE_ESTIMATORS = (ValueEstimators.TD0,)
    value_network: Any  # what it must have, no type of torch's says

    def __init__(
        self, value_network: nn.Module, double_dqn: bool, kappa: float, reduction: str | None
    ) -> None:
        super().__init__(reduction)
        for name in ("in_keys", "features", "quantiles"):
            if not hasattr(value_network, name):
                raise TypeError(
                    f"value_network needs in_keys, features() and quantiles() (pass the actor's "
                    f"value_network); {type(value_network).__name__} has no {name}"
                )
        self.value_network = value_network
        self._make_target("value_network")
        self.double_dqn = double_dqn
        self.coefficient("kappa", kappa)

    def _reads(self) -> list[NestedKey]:
        network = [self.value_network]
        return self._transition_keys(network, network, ("reward", "terminated"))

    def make_value_estimator(
        self, value_type: ValueEstimators | None = None, **hyperparams: Any
    ) -> QuantileLoss:
        """Choose the discount, ``make_value_estimator(gamma=0.99)``; only TD0. Returns self."""
        super().make_value_estimator(value_type, **hyperparams)
        estimator = self.value_estimator
        if not isinstance(estimator, TD0Estimator) or estimator.average_rewards:
            raise ValueError(
                f"{type(self).__name__} needs TD0 without average_rewards, got {estimator}"
            )
        return self

    def _features(self, network: Any, batch: TensorDictBase, *, next_step: bool = False) -> Tensor:
        """A network's features of s or s'; inputs that do not fit are refused by key and shape."""
        inputs = network_inputs(network, batch, next_step=next_step)
        return evaluate(network.features, network.in_keys, inputs)

    def _bootstrap(self, batch: TensorDictBase, next_quantiles: Tensor) -> Tensor:
        """Samples of the target, r + gamma^n (1 - terminated) Z(s'), ``(batch, n)``."""
        keys, estimator = self.tensor_keys, self.value_estimator
        reward, terminated = (
            read(batch, ("next", key), (1,)) for key in (keys.reward, keys.terminated)
        )
        gamma = estimator.gamma
        steps = batch.get(estimator.tensor_keys.steps_to_next_obs, None)
        if steps is not None:
            gamma = gamma ** steps.reshape(reward.shape)
        return torch.addcmul(reward, gamma * terminated.logical_not(), next_quantiles)

    def _action(self, batch: TensorDictBase, number: int) -> Tensor:
        key = self.tensor_keys.action
        return action_index(read(batch, key), number, batch.batch_size, key)

    @staticmethod
    def _errors(pred_value: Tensor, target_value: Tensor) -> dict[str, Tensor]:
        """Metrics of the values ``(batch,)``; their distance is the priority too."""
        td_error = (target_value - pred_value).abs()
        return {"pred_value": pred_value, "target_value": target_value, "td_error": td_error,
                "priority": td_error}  # fmt: skip


def pick(quantiles: Tensor, action: Tensor) -> Tensor:
    """The quantiles of one action per row: ``(batch, actions, n)`` and ``(batch,)``."""
    index = action[..., None, None].expand(*action.shape, 1, quantiles.shape[-1])
    return quantiles.gather(-2, index).squeeze(-2)
