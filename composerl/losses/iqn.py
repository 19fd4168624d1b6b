"""Implicit quantile networks."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from composerl.losses.arguments import check_whole
from composerl.losses.functional import quantile_huber_loss
from composerl.losses.quantile import QuantileLoss, pick

__all__ = ["IQNLoss"]


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
        gamma: discount; the same as ``make_value_estimator(gamma=...)``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Reads: ``action`` (integers ``(batch,)`` or ``(batch, 1)``, or one-hot), the network's inputs
    at s and s', ``("next", "reward")``, ``("next", "terminated")``; if present
    ``steps_to_next_obs`` (n), ``priority_weight`` (weighted mean), ``("collector", "mask")``.

    Returns: ``loss_qvalue`` and detached means: ``pred_value`` (Q(s, a), the mean of its
    quantiles), ``target_value`` and ``td_error``. Writes the priority ``td_error`` ``(batch,)``
    into the batch: the absolute difference of the target's mean and Q(s, a).

    Example:
        >>> import torch
        >>> from composerl.losses import IQNLoss
        >>> from composerl.modules import iqn_network
        >>> from composerl.envs.spaces import Spaces
        >>> from tensordict import TensorDict
        >>> actor = iqn_network(Spaces(obs_shape=(4,), num_actions=2), (16, 16))
        >>> loss = IQNLoss(actor.value_network, num_quantiles=8, num_target_quantiles=8)
        >>> batch = TensorDict({
        ...     "observation": torch.randn(3, 4), "action": torch.tensor([0, 1, 1]),
        ...     "next": {"observation": torch.randn(3, 4), "reward": torch.ones(3, 1),
        ...              "terminated": torch.zeros(3, 1, dtype=torch.bool)}}, [3])
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

    def _rows(self, batch: TensorDictBase, mask: Tensor | None) -> dict[str, Tensor]:
        with torch.no_grad():
            target = self._bootstrap(batch, self._next_quantiles(batch))

        features = self._features(self.value_network, batch)
        taus = _fractions(features, (*batch.batch_size, self.num_quantiles))
        quantiles = self.value_network.quantiles(features, taus)
        current = pick(quantiles, self._action(batch, quantiles.shape[-2]))
        loss = quantile_huber_loss(current, target, taus, self.kappa)
        return {"loss_qvalue": loss, **self._errors(current.detach().mean(-1), target.mean(-1))}

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
        best = chooser.quantiles(seen, acting).mean(-1).argmax(-1)
        taus = _fractions(features, (*batch.batch_size, self.num_target_quantiles))
        return pick(self.target_value_network.quantiles(features, taus), best)


def _fractions(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.rand(shape, dtype=like.dtype, device=like.device)
