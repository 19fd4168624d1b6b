"""What the losses of return distributions share: targets, keys, TD errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.objectives import ValueEstimators
from torchrl.objectives.value import TD0Estimator

from composerl.losses.common import LeanLoss
from composerl.losses.reading import action_index, network_inputs, read, step_key

__all__ = ["QuantileLoss", "pick"]


class QuantileLoss(LeanLoss):
    """A loss of a value network with ``in_keys``, ``features`` and ``quantiles``.

    ``features(*inputs)`` gives ``(batch, d)`` and ``quantiles(features, taus)`` gives ``(batch,
    actions, n)``, so that a state is read once for any number of fractions; see
    :class:`composerl.modules.QuantileNetwork`.
    """

    @dataclass
    class _AcceptedKeys:
        action: NestedKey = "action"
        priority: NestedKey = "td_error"
        priority_weight: NestedKey = "priority_weight"
        reward: NestedKey = "reward"
        done: NestedKey = "done"
        terminated: NestedKey = "terminated"

    tensor_keys: _AcceptedKeys
    default_keys = _AcceptedKeys
    # A lambda-return mixes values, not distributions.
    SUPPORTED_VALUE_ESTIMATORS = (ValueEstimators.TD0,)

    def __init__(self, value_network: nn.Module, reduction: str | None) -> None:
        super().__init__(reduction)
        for name in ("in_keys", "features", "quantiles"):
            if not hasattr(value_network, name):
                raise TypeError(
                    f"value_network needs in_keys, features() and quantiles() (pass the actor's "
                    f"value_network); {type(value_network).__name__} has no {name}"
                )
        self.value_network = value_network
        self._make_target("value_network")

    def _set_in_keys(self) -> None:
        keys, inputs = self.tensor_keys, self.value_network.in_keys
        columns = [("next", keys.reward), ("next", keys.terminated)]
        self._in_keys = [keys.action, *columns, *inputs, *map(step_key, inputs)]

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

    def _features(
        self, network: nn.Module, batch: TensorDictBase, *, next_step: bool = False
    ) -> Tensor:
        """A network's features of s or s'; inputs that do not fit are refused by key and shape."""
        inputs = network_inputs(network, batch, next_step=next_step)
        try:
            return network.features(*inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            shapes = {k: tuple(x.shape) for k, x in zip(network.in_keys, inputs, strict=True)}
            raise ValueError(f"a network fails on inputs of shape {shapes}: {error}") from error

    def _bootstrap(self, batch: TensorDictBase, next_quantiles: Tensor) -> Tensor:
        """Samples of the target, r + gamma^n (1 - terminated) Z(s'), ``(batch, n)``."""
        keys, estimator = self.tensor_keys, self.value_estimator
        reward, terminated = (
            self._column(batch, ("next", key)) for key in (keys.reward, keys.terminated)
        )
        gamma = estimator.gamma
        steps = batch.get(estimator.tensor_keys.steps_to_next_obs, None)
        if steps is not None:
            gamma = gamma ** steps.reshape(reward.shape)
        return torch.addcmul(reward, gamma * terminated.logical_not(), next_quantiles)

    @staticmethod
    def _column(batch: TensorDictBase, key: NestedKey) -> Tensor:
        column = read(batch, key)
        if column.shape != (*batch.batch_size, 1):
            raise ValueError(
                f"entry {key!r} must have shape {(*batch.batch_size, 1)}, got {tuple(column.shape)}"
            )
        return column

    def _action(self, batch: TensorDictBase, number: int) -> Tensor:
        key = self.tensor_keys.action
        return action_index(read(batch, key), number, batch.batch_size, key)

    def _finish(
        self,
        given: TensorDictBase,
        batch: TensorDictBase,
        mask: Tensor | None,
        losses: dict[str, Tensor],
        pred_value: Tensor,
        target_value: Tensor,
        **metrics: Tensor,
    ) -> TensorDict:
        """Write the priority; reduce losses and metrics, all ``(batch,)``."""
        td_error = (target_value - pred_value).abs()
        given.set(self.tensor_keys.priority, td_error if mask is None else td_error * mask)
        reduce, average = self._reducer(batch, mask)
        metrics = {
            "pred_value": pred_value,
            "target_value": target_value,
            "td_error": td_error,
            **metrics,
        }
        return TensorDict(
            {key: reduce(rows) for key, rows in losses.items()}
            | {key: average(rows) for key, rows in metrics.items()},
            batch.batch_size if self.reduction == "none" else [],
        )


def pick(quantiles: Tensor, action: Tensor) -> Tensor:
    """The quantiles of one action per row: ``(batch, actions, n)`` and ``(batch,)``."""
    index = action[..., None, None].expand(*action.shape, 1, quantiles.shape[-1])
    return quantiles.gather(-2, index).squeeze(-2)
