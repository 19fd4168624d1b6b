"""Fully parameterized quantile functions."""

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from composerl.losses.iqn import QuantileLoss, pick
from composerl.losses.pure_quantiles import fqf_loss

__all__ = ["FQFLoss"]


class FQFLoss(QuantileLoss):
    r"""FQF: IQN whose fractions are proposed by a network instead of drawn at random.

    Paper: Yang, Zhao, Lin, Qin, Bian, Liu 2019, https://arxiv.org/abs/1911.02140. The fraction
    network cuts (0, 1) at :math:`0 = \tau_0 < ... < \tau_N = 1`, with midpoints
    :math:`\hat\tau_i`, and :math:`Q(s, a) = \sum_i (\tau_{i+1} - \tau_i) F(s, a, \hat\tau_i)`.

    .. math::
        L_Q &= \sum_{i} \frac{1}{N} \sum_{j} \rho^\kappa_{\hat\tau_i}(y_j - F(s, a, \hat\tau_i)),
        \quad y_j = r + \gamma^n (1 - terminated) \bar F(s', a', \hat\tau'_j) \\
        L_\tau &= \sum_{i=1}^{N-1} \tau_i \,
            \big( |F(\tau_i) - F(\hat\tau_{i-1})| - |F(\tau_i) - F(\hat\tau_i)| \big)
            - \beta H(\tau_{i+1} - \tau_i)

    The bracket, without gradient and for the action taken, is the derivative of the 1-Wasserstein
    error with respect to :math:`\tau_i`: the paper's :math:`2 F(\tau_i) - F(\hat\tau_i) -
    F(\hat\tau_{i-1})` where F is monotone, each difference with its sign flipped where it is not.

    The two losses share no parameter: the first trains ``value_network``, the second
    ``fraction_network``. Give each its own optimizer, the second's rate orders below the first's
    (2.5e-9 with RMSprop on Atari)::

        Update(loss, optimizer=[FusedAdam(loss.value_network.parameters(), lr=1e-3),
                                RMSprop(loss.fraction_network.parameters(), lr=1e-6)])

    Args:
        value_network: ``in_keys``, ``features(*inputs)`` and ``quantiles(features, taus)``, for
            example ``fqf_network(env).value_network``.
        fraction_network: features to ``taus``, ``tau_hats`` and entropy, for example
            ``fqf_network(env).fraction_network``; it has no target copy.

    Keyword Args:
        entropy_coeff: beta >= 0, keeps the fractions from collapsing: larger is more uniform.
        reuse_fractions: the target's fractions are those proposed for s, as in the authors' code;
            else they are proposed for s' (from the features of the network that chooses a').
        double_dqn: see :class:`~composerl.losses.IQNLoss`, like ``kappa``, ``gamma`` and
            ``reduction``.

    Reads, writes and returns what :class:`~composerl.losses.IQNLoss` does; also returns
    ``loss_fraction`` and ``fraction_entropy`` (log N when uniform).

    Example:
        >>> from composerl.envs import make_env
        >>> from composerl.losses import FQFLoss
        >>> from composerl.modules import fqf_network
        >>> env = make_env("CartPole-v1")
        >>> actor = fqf_network(env, num_quantiles=8)
        >>> out = FQFLoss(actor.value_network, actor.fraction_network)(env.rollout(3))
        >>> sorted(key for key in out.keys() if key.startswith("loss_"))
        ['loss_fraction', 'loss_qvalue']
    """

    _unkeyed_names = ("fraction_network",)
    out_keys = [  # noqa: RUF012
        "loss_qvalue", "loss_fraction", "pred_value", "target_value", "td_error",
        "fraction_entropy",
    ]  # fmt: skip
    fraction_network: Any  # returns three tensors, which no type of torch's says

    def __init__(
        self,
        value_network: nn.Module,
        fraction_network: nn.Module,
        *,
        entropy_coeff: float = 1e-3,
        reuse_fractions: bool = False,
        double_dqn: bool = False,
        kappa: float = 1.0,
        gamma: float | None = None,
        reduction: str | None = None,
    ) -> None:
        super().__init__(value_network, double_dqn, kappa, reduction)
        self.fraction_network = fraction_network
        self.reuse_fractions = reuse_fractions
        self.coefficient("entropy_coeff", entropy_coeff, "[0, inf)")
        self.make_value_estimator(gamma=gamma)

    def rows(self, batch: TensorDictBase, mask: Tensor | None) -> dict[str, Tensor]:
        features = self._features(self.value_network, batch)
        # The fraction loss must reach nothing but its own network, whatever that one does.
        taus, tau_hats, entropy = self.fraction_network(features.detach())
        tau_hats = tau_hats.detach()
        quantiles = self.value_network.quantiles(features, tau_hats)
        action = self._action(batch, quantiles.shape[-2])
        current = pick(quantiles, action)
        with torch.no_grad():
            next_quantiles, next_shares = self._next(batch, taus, tau_hats)
            target = self._bootstrap(batch, next_quantiles)
            between = pick(self.value_network.quantiles(features, taus[..., 1:-1]), action)

        rows = fqf_loss(
            current, target, taus, tau_hats, between, entropy,
            target_shares=next_shares, entropy_coeff=self.entropy_coeff, kappa=self.kappa,
        )  # fmt: skip
        return {**rows, "priority": rows["td_error"]}

    def _next(self, batch: TensorDictBase, taus: Tensor, tau_hats: Tensor) -> tuple[Tensor, Tensor]:
        """Quantiles of the best next action and the shares they stand for, ``(batch, N)``."""
        target = self.target_value_network
        features = chooser_features = self._features(target, batch, next_step=True)
        if self.double_dqn:
            chooser_features = self._features(self.value_network, batch, next_step=True)
        if not self.reuse_fractions:
            taus, tau_hats, _ = self.fraction_network(chooser_features)
        quantiles = choosing = target.quantiles(features, tau_hats)
        if self.double_dqn:
            choosing = self.value_network.quantiles(chooser_features, tau_hats)
        shares = taus.diff(dim=-1)
        best = self._best((choosing * shares.unsqueeze(-2)).sum(-1), batch)
        return pick(quantiles, best), shares
