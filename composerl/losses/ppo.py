"""Proximal policy optimisation with a clipped objective."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor
from torch.distributions import Distribution
from torchrl.objectives import ValueEstimators

from composerl.losses.arguments import Only, check_whole
from composerl.losses.calling import distribution, inputs_of
from composerl.losses.common import RowKeys, RowLoss
from composerl.losses.distributions import action_log_prob, entropy_of, several, sum_of_parts
from composerl.losses.functional import clipped_objective, distance
from composerl.losses.reading import read, step_key

__all__ = ["ClipPPOLoss"]


class ClipPPOLoss(RowLoss):
    r"""Proximal policy optimisation: improve on advantages, but not far from the acting policy.

    Paper: Schulman et al. 2017, https://arxiv.org/abs/1707.06347. With the ratio
    :math:`\rho = \pi(a|s) / \pi_{old}(a|s)`, advantages A and returns R

    .. math::
        L_\pi = -\min(\rho A, \mathrm{clip}(\rho, 1 \pm \epsilon) A), \quad
        L_V = c_V (V(s) - R)^2, \quad L_H = -c_H H(\pi(\cdot|s))

    Difference to ``torchrl.objectives.ClipPPOLoss``, whose arguments and keys it keeps: networks
    are called directly, which is faster (recipes/SPEED.md); the distance is squared by default;
    integer and one-hot actions are both read, whatever the actor's distribution is for; no ``ESS``
    nor ``*_ratio`` is given.

    Args:
        actor_network: the policy.
        critic_network: V(s), writes ``state_value``.

    Keyword Args:
        clip_epsilon: how far the ratio may move the objective, > 0; larger takes longer steps.
            A pair of numbers is for how far down and up.
        entropy_coeff: :math:`c_H`, larger explores more. Distributions without a closed form (tanh
            of a Gaussian) are measured by ``samples_mc_entropy`` samples. No ``entropy_bonus``
            is a coefficient of 0.
        critic_coeff: :math:`c_V`.
        clip_value: if given, V may change no more than this from ``state_value`` of the batch
            before its loss stops to shrink; True takes ``clip_epsilon``.
        normalize_advantage: subtract the mean of the batch's advantages, divide by their deviation.
        log_explained_variance: also return ``explained_variance`` of the returns by V, at most 1.
        loss_critic_type: the ``loss_function`` of :mod:`composerl.losses`, where ``reduction`` and
            TorchRL's further options and what every loss reads are found too.

    Reads ``action_log_prob`` ``(batch,)`` (:meth:`annotate` writes it), ``advantage`` and
    ``value_target`` ``(batch, 1)``; ``state_value`` for ``clip_value``. Without advantages they are
    made of consecutive steps by ``make_value_estimator``'s choice (GAE), of ``state_value`` where
    it is in the batch, else of V as it is.

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
        reward: NestedKey = "reward"
        done: NestedKey = "done"
        terminated: NestedKey = "terminated"

    tensor_keys: _AcceptedKeys
    default_keys = _AcceptedKeys
    default_value_estimator = ValueEstimators.GAE
    SUPPORTED_VALUE_ESTIMATORS = (
        *RowLoss.SUPPORTED_VALUE_ESTIMATORS,
        ValueEstimators.GAE,
        ValueEstimators.MAGAE,
    )
    further = MappingProxyType({
        "separate_losses": False,
        "advantage_key": Only(None, "name it by set_keys(advantage=...)"),
        "value_target_key": Only(None, "name it by set_keys(value_target=...)"),
        "value_key": Only(None, "name it by set_keys(value=...)"),
        "normalize_advantage_exclude_dims": Only((), "advantages are normalised over all rows"),
        "advantage_norm": Only(None, "scale the advantages before the loss"),
        "delay_actor": Only(False, "the ratio is to the policy that acted"),
        "max_importance_ratio": Only(None, "clip_epsilon alone bounds the ratio"),
    })  # fmt: skip
    out_keys = [  # noqa: RUF012
        "loss_objective", "loss_critic", "entropy", "kl_approx", "clip_fraction",
    ]  # fmt: skip

    def __init__(
        self,
        actor_network: ProbabilisticTensorDictSequential,
        critic_network: TensorDictModule,
        *,
        clip_epsilon: float | tuple[float, float] = 0.2,
        entropy_bonus: bool = True,
        samples_mc_entropy: int = 1,
        entropy_coeff: float | None = None,
        critic_coeff: float | None = None,
        clip_value: bool | float | Tensor | None = None,
        normalize_advantage: bool = False,
        log_explained_variance: bool = False,
        loss_critic_type: str = "l2",
        gamma: float | None = None,
        reduction: str | None = None,
        device: torch.device | None = None,
        functional: bool = True,
        **further: Any,
    ) -> None:
        super().__init__(reduction, loss_critic_type, further)
        if isinstance(clip_epsilon, Sequence):
            if len(clip_epsilon) != 2 or clip_value is True:
                raise ValueError(f"{clip_epsilon=} must be two numbers, {clip_value=} a third")
            self.coefficient("clip_epsilon_low", clip_epsilon[0], "[0, 1)")
            self.coefficient("clip_epsilon_high", clip_epsilon[1], "[0, inf)")
        else:
            self.coefficient("clip_epsilon", clip_epsilon)
        clip: Any = clip_epsilon if clip_value is True else clip_value
        self.clips_value = clip is not None and clip is not False
        entropy_coeff = 0.01 if entropy_coeff is None else entropy_coeff
        self.coefficient("entropy_coeff", entropy_coeff, "[0, inf)")
        self.coefficient("critic_coeff", 1.0 if critic_coeff is None else critic_coeff)
        self.coefficient("clip_value", float(clip) if self.clips_value else inf, "(0, inf]")
        self.samples_mc_entropy = check_whole("samples_mc_entropy", samples_mc_entropy, 1)
        self.normalize_advantage = normalize_advantage
        self.actor_network = actor_network
        self.critic_network = critic_network
        self._reads_on = any(key in actor_network.out_keys for key in critic_network.in_keys)
        self.name_action(actor_network)
        names: Sequence[NestedKey] = getattr(actor_network, "log_prob_keys", [])
        if names:
            self.set_keys(sample_log_prob=names[0] if len(names) == 1 else names)
        self.entropic = entropy_bonus and entropy_coeff > 0
        self.log_explained_variance = log_explained_variance
        self.out_keys = [
            *self.out_keys,
            *["loss_entropy"] * self.entropic,
            *["explained_variance"] * log_explained_variance,
        ]
        self.make_value_estimator(gamma=gamma)
        if device is not None:
            self.to(device)

    def reads(self) -> list[NestedKey]:
        keys = self.tensor_keys
        mine = [*several(keys.action), *several(keys.sample_log_prob)]
        mine += [keys.advantage, keys.value_target, *[keys.value] * self.clips_value]
        written = self.actor_network.out_keys
        seen = [key for key in self.critic_network.in_keys if key not in written]
        later = [keys.reward, keys.done, keys.terminated, *seen]
        mine += [*inputs_of(self.actor_network), *seen]
        return [*mine, *map(step_key, later)]

    @torch.no_grad()
    def annotate(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write ``action_log_prob`` of the policy as it is: before the first update on a batch."""
        keys, dist = self.tensor_keys, distribution(self.actor_network, tensordict)
        log_prob = action_log_prob(dist, tensordict, keys.action)
        return tensordict.set(keys.sample_log_prob, log_prob)

    def rows(self, batch: TensorDictBase, mask: Tensor | None) -> dict[str, Tensor]:
        keys = self.tensor_keys
        batch = self._with_advantages(batch)
        batch, dist = self._after_actor(batch)
        old_log_prob = sum_of_parts(
            [read(batch, key) for key in several(keys.sample_log_prob)], batch
        )
        log_ratio = action_log_prob(dist, batch, keys.action) - old_log_prob
        ratio = log_ratio.exp()
        advantage = read(batch, keys.advantage, (1,)).squeeze(-1)
        if self.normalize_advantage:
            counted = advantage if mask is None else advantage[mask]
            deviation = counted.std(correction=0).clamp_min(1e-6)
            advantage = (advantage - counted.mean()) / deviation

        target = read(batch, keys.value_target, (1,)).squeeze(-1)
        with self._apart(self.critic_network, self.actor_network):
            value = self.value_of(self.critic_network, batch, keys.value)
        loss_critic = distance(value, target, self.loss_function)
        if self.clips_value:
            old = read(batch, keys.value, (1,)).squeeze(-1)
            near = old + (value - old).clamp(-self.clip_value, self.clip_value)
            loss_critic = torch.maximum(loss_critic, distance(near, target, self.loss_function))

        entropy = entropy_of(dist, batch, self.samples_mc_entropy)
        # Metrics need no graph.
        (low, high), gone = self._clip, ratio.detach() - 1
        rows = {
            "loss_objective": clipped_objective(ratio, advantage, low, high),
            "loss_critic": self.critic_coeff * loss_critic,
            "entropy": entropy,
            "kl_approx": gone - log_ratio.detach(),
            "clip_fraction": ((gone < -low) | (gone > high)).to(ratio.dtype),
        }
        if self.entropic:
            rows["loss_entropy"] = -self.entropy_coeff * entropy
        if self.log_explained_variance:
            pair = torch.stack([target - value.detach(), target])
            counted = pair.flatten(1) if mask is None else pair[:, mask]
            error, spread = counted.var(-1, correction=0)
            rows["explained_variance"] = 1 - error / spread
        return rows

    @property
    def _clip(self) -> tuple[Tensor, Tensor]:
        if "clip_epsilon" in self._buffers:
            return self.clip_epsilon, self.clip_epsilon
        return self.clip_epsilon_low, self.clip_epsilon_high

    def _with_advantages(self, batch: TensorDictBase) -> TensorDictBase:
        """The batch, or a copy to which the value estimator added what is missing."""
        keys = self.tensor_keys
        found = batch.get(keys.advantage, None) is not None
        if found or batch.get(("next", keys.reward), None) is None:
            return batch
        batch = batch.copy()
        with torch.no_grad():
            for next_step, key in ((False, keys.value), (True, step_key(keys.value))):
                if batch.get(key, None) is None:
                    network, name = self.critic_network, keys.value
                    value = self.value_of(network, batch, name, next_step=next_step)
                    batch.set(key, value.unsqueeze(-1))
            return self.value_estimator(batch)

    def _after_actor(self, batch: TensorDictBase) -> tuple[TensorDictBase, Distribution]:
        """The actor's distribution, and a batch with what it writes for a critic that reads on."""
        actor, critic = self.actor_network, self.critic_network
        if not self._reads_on:
            return batch, distribution(actor, batch)
        inside = batch.select(*inputs_of(actor))
        dist = actor.get_dist(inside)
        hidden = inside.select(*critic.in_keys, strict=False)
        return batch.copy().update(hidden.detach() if self.separate_losses else hidden), dist
