"""Proximal policy optimisation with a clipped objective."""

from dataclasses import dataclass
from math import inf

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor
from torch.distributions import Distribution

from composerl.losses.common import LeanLoss, RowKeys
from composerl.losses.functional import clipped_objective, distance
from composerl.losses.reading import action_log_prob, distribution, read

__all__ = ["ClipPPOLoss"]


class ClipPPOLoss(LeanLoss):
    r"""Proximal policy optimisation: improve on advantages, but not far from the acting policy.

    Paper: Schulman et al. 2017, https://arxiv.org/abs/1707.06347. With the ratio
    :math:`\rho = \pi(a|s) / \pi_{old}(a|s)`, advantages A and returns R

    .. math::
        L_\pi = -\min(\rho A, \mathrm{clip}(\rho, 1 \pm \epsilon) A), \quad
        L_V = c_V (V(s) - R)^2, \quad L_H = -c_H H(\pi(\cdot|s))

    Difference to ``torchrl.objectives.ClipPPOLoss``, whose arguments and keys it keeps: networks
    are called directly (1.8 times as fast on a network of two layers of 64); advantages are not
    computed here but must be there, for example by ``torchrl.objectives.value.GAE``; integer and
    one-hot actions are both read, whatever the actor's distribution is for.

    Args:
        actor_network: the policy.
        critic_network: V(s), writes ``state_value``.

    Keyword Args:
        clip_epsilon: how far the ratio may move the objective, > 0; larger takes longer steps.
        entropy_coeff: :math:`c_H`, larger explores more. Distributions without a closed form (tanh
            of a Gaussian) are measured by one sample.
        critic_coeff: :math:`c_V`.
        clip_value: if given, V may change no more than this from ``state_value`` of the batch
            before its loss stops to shrink.
        loss_critic_type: the ``loss_function`` of :mod:`composerl.losses`, where ``reduction`` and
            what every loss reads are found too.

    Reads ``action_log_prob`` ``(batch,)`` (:meth:`annotate` writes it), ``advantage`` and
    ``value_target`` ``(batch, 1)``; ``state_value`` for ``clip_value``.

    Returns ``loss_objective``, ``loss_critic``, with a bonus ``loss_entropy``, and ``entropy``,
    ``kl_approx`` (of the old policy to the new, :math:`\rho - 1 - \log\rho`) and
    ``clip_fraction`` (share of rows whose ratio is beyond the clip).
    """

    @dataclass
    class _AcceptedKeys(RowKeys):
        advantage: NestedKey = "advantage"
        value_target: NestedKey = "value_target"
        value: NestedKey = "state_value"
        sample_log_prob: NestedKey = "action_log_prob"

    tensor_keys: _AcceptedKeys
    default_keys = _AcceptedKeys
    default_value_estimator = None
    out_keys = [  # noqa: RUF012
        "loss_objective", "loss_critic", "entropy", "kl_approx", "clip_fraction",
    ]  # fmt: skip

    def __init__(
        self,
        actor_network: ProbabilisticTensorDictSequential,
        critic_network: TensorDictModule,
        *,
        clip_epsilon: float = 0.2,
        entropy_coeff: float = 0.01,
        critic_coeff: float = 1.0,
        clip_value: float | None = None,
        loss_critic_type: str = "l2",
        reduction: str | None = None,
    ) -> None:
        super().__init__(reduction, loss_critic_type)
        self.coefficient("clip_epsilon", clip_epsilon)
        self.coefficient("entropy_coeff", entropy_coeff, "[0, inf)")
        self.coefficient("critic_coeff", critic_coeff)
        self.clips_value = clip_value is not None
        self.coefficient("clip_value", inf if clip_value is None else clip_value, "(0, inf]")
        self.actor_network = actor_network
        self.critic_network = critic_network
        self.entropic = entropy_coeff > 0
        if self.entropic:
            self.out_keys = [*self.out_keys, "loss_entropy"]

    def _reads(self) -> list[NestedKey]:
        keys = self.tensor_keys
        mine = [keys.action, keys.sample_log_prob, keys.advantage, keys.value_target]
        mine += [keys.value] if self.clips_value else []
        return [*mine, *self.actor_network.in_keys, *self.critic_network.in_keys]

    @torch.no_grad()
    def annotate(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write ``action_log_prob`` of the policy as it is: before the first update on a batch."""
        keys, dist = self.tensor_keys, distribution(self.actor_network, tensordict)
        log_prob = action_log_prob(dist, tensordict, keys.action)
        return tensordict.set(keys.sample_log_prob, log_prob)

    def _rows(self, batch: TensorDictBase, mask: Tensor | None) -> dict[str, Tensor]:
        keys = self.tensor_keys
        dist = distribution(self.actor_network, batch)
        old_log_prob = read(batch, keys.sample_log_prob).reshape(batch.batch_size)
        log_ratio = action_log_prob(dist, batch, keys.action) - old_log_prob
        ratio = log_ratio.exp()
        advantage = read(batch, keys.advantage, (1,)).squeeze(-1)

        target = read(batch, keys.value_target, (1,)).squeeze(-1)
        value = self._value(self.critic_network, batch, keys.value)
        loss_critic = distance(value, target, self.loss_function)
        if self.clips_value:
            old = read(batch, keys.value, (1,)).squeeze(-1)
            near = old + (value - old).clamp(-self.clip_value, self.clip_value)
            loss_critic = torch.maximum(loss_critic, distance(near, target, self.loss_function))

        entropy = _entropy(dist)
        rows = {
            "loss_objective": clipped_objective(ratio, advantage, self.clip_epsilon),
            "loss_critic": self.critic_coeff * loss_critic,
            "entropy": entropy,
            "kl_approx": ratio - 1 - log_ratio,
            "clip_fraction": ((ratio - 1).abs() > self.clip_epsilon).to(ratio.dtype),
        }
        if self.entropic:
            rows["loss_entropy"] = -self.entropy_coeff * entropy
        return rows


def _entropy(dist: Distribution) -> Tensor:
    """The entropy, ``(batch,)``; by one sample where there is no closed form."""
    try:
        return dist.entropy()
    except NotImplementedError:
        return -dist.log_prob(dist.rsample())
