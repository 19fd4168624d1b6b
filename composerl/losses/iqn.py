"""Implicit quantile networks, and what fully parameterized ones share with them."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor, nn
from torchrl.objectives import ValueEstimators
from torchrl.objectives.value import TD0Estimator

from composerl.losses.arguments import check_whole
from composerl.losses.calling import evaluate, network_inputs
from composerl.losses.common import DiscreteKeys, RowLoss
from composerl.losses.pure import td_target
from composerl.losses.pure_quantiles import iqn_loss
from composerl.losses.reading import action_index, allowed, read, step_key

__all__ = ["IQNLoss", "QuantileLoss", "pick"]


class QuantileLoss(RowLoss):
    """What IQN and FQF share: keys, targets, TD errors.

    The value network's ``features(*inputs)`` are ``(batch, d)``, its ``quantiles(features, taus)``
    ``(batch, actions, n)``, so that a state is read once for any number of fractions.
    """

    _AcceptedKeys = DiscreteKeys
    tensor_keys: DiscreteKeys
    default_keys = DiscreteKeys
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
        self.make_target("value_network")
        self.double_dqn = double_dqn
        self.coefficient("kappa", kappa)

    def reads(self) -> list[NestedKey]:
        network = [self.value_network]
        return self.transition_keys(network, network, ("reward", "terminated"))

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
        keys = self.tensor_keys
        reward, terminated = (
            read(batch, ("next", key), (1,)).squeeze(-1) for key in (keys.reward, keys.terminated)
        )
        return td_target(reward, terminated, next_quantiles, self.discount(batch, reward))

    def _best(self, values: Tensor, batch: TensorDictBase) -> Tensor:
        """The greedy next action of values ``(batch, actions)``, among those allowed at s'."""
        return allowed(values, batch, step_key(self.tensor_keys.action_mask)).argmax(-1)

    def _action(self, batch: TensorDictBase, number: int) -> Tensor:
        key = self.tensor_keys.action
        return action_index(read(batch, key), number, batch.batch_size, key)


class IQNLoss(QuantileLoss):
    r"""IQN: DQN that learns the distribution of the return, by quantiles at random fractions.

    Paper: Dabney, Ostrovski, Silver, Munos 2018, https://arxiv.org/abs/1806.06923. With fractions
    :math:`\tau_i, \tau'_j` drawn uniformly for every row, :math:`\tilde\tau_k` for every batch, and
    the target network :math:`\bar F`

    .. math::
        L = \sum_{i=1}^{N} \frac{1}{N'} \sum_{j=1}^{N'}
            \rho^\kappa_{\tau_i}(y_j - F(s, a, \tau_i)), \quad
        y_j = r + \gamma^n (1 - terminated) \bar F(s', a', \tau'_j), \quad
        a' = \arg\max_b \frac{1}{K} \sum_{k=1}^{K} \bar F(s', b, \tilde\tau_k)

    with :math:`\rho` as in :func:`~composerl.losses.quantile_huber_loss`. Difference to DQN: one
    more input, the fraction, and quantile regression in place of the squared error.

    Args:
        value_network: ``in_keys``, ``features(*inputs)`` and ``quantiles(features, taus)``, for
            example ``iqn_network(env).value_network``.

    Keyword Args:
        num_quantiles: N, fractions of Q(s, a) per row: more make the gradient less noisy.
        num_target_quantiles: N', samples of the target per row: the same for the target.
        num_acting_quantiles: K, samples that choose the greedy action a'; never those of the
            target, which would favour actions whose samples came out high.
        double_dqn: the online network chooses a'; else the target network.
        kappa: > 0, where the Huber function turns linear: small values give quantiles, large ones
            expectiles.
        gamma: see :mod:`composerl.losses`, like ``reduction`` and what is read.

    Returns: ``loss_qvalue``, and ``pred_value`` (Q(s, a), the mean of its quantiles),
    ``target_value`` and ``td_error``. Writes ``td_error``: the absolute difference of the target's
    mean and Q(s, a).

    Example:
        >>> from composerl.envs import make_env
        >>> from composerl.losses import IQNLoss
        >>> from composerl.modules import iqn_network
        >>> env = make_env("CartPole-v1")
        >>> loss = IQNLoss(iqn_network(env).value_network, num_quantiles=8)
        >>> batch = env.rollout(3)
        >>> sorted(loss(batch).keys())
        ['loss_qvalue', 'pred_value', 'target_value', 'td_error']
        >>> batch["td_error"].shape
        torch.Size([3])
    """

    out_keys = ["loss_qvalue", "pred_value", "target_value", "td_error"]  # noqa: RUF012

    def __init__(
        self,
        value_network: nn.Module,
        *,
        num_quantiles: int = 64,
        num_target_quantiles: int = 64,
        num_acting_quantiles: int = 32,
        double_dqn: bool = False,
        kappa: float = 1.0,
        gamma: float | None = None,
        reduction: str | None = None,
    ) -> None:
        super().__init__(value_network, double_dqn, kappa, reduction)
        self.num_quantiles = check_whole("num_quantiles", num_quantiles, 1)
        self.num_target_quantiles = check_whole("num_target_quantiles", num_target_quantiles, 1)
        self.num_acting_quantiles = check_whole("num_acting_quantiles", num_acting_quantiles, 1)
        self.make_value_estimator(gamma=gamma)

    def rows(self, batch: TensorDictBase, mask: Tensor | None) -> dict[str, Tensor]:
        with torch.no_grad():
            target = self._bootstrap(batch, self._next_quantiles(batch))

        features = self._features(self.value_network, batch)
        taus = _fractions(features, (*batch.batch_size, self.num_quantiles))
        quantiles = self.value_network.quantiles(features, taus)
        current = pick(quantiles, self._action(batch, quantiles.shape[-2]))
        rows = iqn_loss(current, target, taus, kappa=self.kappa)
        return {**rows, "priority": rows["td_error"]}

    def _next_quantiles(self, batch: TensorDictBase) -> Tensor:
        """Samples of the return of the best next action, ``(batch, N')``."""
        features = self._features(self.target_value_network, batch, next_step=True)
        chooser, seen = self.target_value_network, features
        if self.double_dqn:
            chooser = self.value_network
            seen = self._features(chooser, batch, next_step=True)
        # One draw for all rows: each row's mean has the same distribution, and the embedding of
        # the fractions, a third of the work, is done once instead of for every row.
        acting = _fractions(seen, (self.num_acting_quantiles,))
        best = self._best(chooser.quantiles(seen, acting).mean(-1), batch)
        taus = _fractions(features, (*batch.batch_size, self.num_target_quantiles))
        return pick(self.target_value_network.quantiles(features, taus), best)


def _fractions(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.rand(shape, dtype=like.dtype, device=like.device)


def pick(quantiles: Tensor, action: Tensor) -> Tensor:
    """The quantiles of one action per row: ``(batch, actions, n)`` and ``(batch,)``."""
    index = action[..., None, None].expand(*action.shape, 1, quantiles.shape[-1])
    return quantiles.gather(-2, index).squeeze(-2)
