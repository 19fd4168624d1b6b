"""Soft actor-critic."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor, nn
from torchrl.data import TensorSpec
from torchrl.modules import TanhNormal
from torchrl.modules.distributions.utils import rsample_and_log_prob

from composerl.losses.arguments import action_box, check_number, independent_copies
from composerl.losses.common import LeanLoss, TransitionKeys
from composerl.losses.reading import (
    as_pair,
    call_network,
    distribution,
    frozen,
    network_inputs,
    read,
)

__all__ = ["SACLoss", "squashed_sample"]

#: Rows that a critic evaluates at a time: their activations stay in the cache.
CHUNK = 1024
#: Per dimension, what the log-density of a squashed Gaussian loses whatever is drawn.
_SQUASHED = 0.5 * math.log(2 * math.pi) + 2 * math.log(2)


class SACLoss(LeanLoss):
    r"""Soft actor-critic with twin critics and an automatic temperature.

    Paper: Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905. With target networks
    :math:`\bar Q`, :math:`\tilde a \sim \pi(s)` and :math:`a' \sim \pi(s')`

    .. math::
        L_{Q_i} &= (y - Q_i(s, a))^2, \quad y = r + \gamma (1 - terminated)
            \Big( \min_k \bar Q_k(s', a') - \alpha \log \pi(a'|s') \Big) \\
        L_\pi &= \alpha \log \pi(\tilde a|s) - \min_k Q_k(s, \tilde a) \\
        L_\alpha &= -\log \alpha \, (\log \pi(\tilde a|s) + H)

    Difference to ``torchrl.objectives.SACLoss``, whose arguments and keys it keeps: networks are
    plain submodules, called without a TensorDict; the distance is squared by default; no separate
    V and no discrete actions.

    Args:
        actor_network: the policy; bounded actions and reparametrised samples.
        qvalue_network: one critic or a list.

    Keyword Args:
        alpha_init: initial temperature > 0: larger values explore more.
        fixed_alpha: keep it.
        target_entropy: H, the entropy it is tuned to; ``"auto"`` or None for minus the action's
            dimension, less in a box smaller than [-1, 1] by the logarithm of its half widths.
            Larger values keep the policy more random.
        action_spec: the action box; the actor's own by default.
        num_qvalue_nets: see :mod:`composerl.losses`, like ``loss_function``, ``gamma``,
            ``reduction`` and what is read.

    Returns: ``loss_actor``, ``loss_qvalue``, ``loss_alpha`` (unless fixed), and ``alpha`` and
    ``entropy``. Writes ``td_error`` (the largest squared error of the critics).

    Example:
        >>> from composerl.envs import make_env
        >>> from composerl.losses import SACLoss
        >>> from composerl.modules import tanh_gaussian_actor, twin_q
        >>> env = make_env("Pendulum-v1")
        >>> loss = SACLoss(tanh_gaussian_actor(env), twin_q(env))
        >>> sorted(loss(env.rollout(4)).keys())
        ['alpha', 'entropy', 'loss_actor', 'loss_alpha', 'loss_qvalue']
    """

    @dataclass
    class _AcceptedKeys(TransitionKeys):
        state_action_value: NestedKey = "state_action_value"

    tensor_keys: _AcceptedKeys
    default_keys = _AcceptedKeys

    def __init__(
        self,
        actor_network: ProbabilisticTensorDictSequential,
        qvalue_network: TensorDictModule | Sequence[TensorDictModule],
        *,
        num_qvalue_nets: int = 2,
        loss_function: str = "l2",
        alpha_init: float = 1.0,
        fixed_alpha: bool = False,
        target_entropy: Literal["auto"] | float | None = "auto",
        action_spec: TensorSpec | None = None,
        gamma: float | None = None,
        reduction: str | None = None,
    ) -> None:
        super().__init__(reduction, loss_function)
        check_number("alpha_init", alpha_init, "(0, inf)")
        self.actor_network = actor_network
        self.qvalue_network = independent_copies(qvalue_network, num_qvalue_nets)
        self._make_target("qvalue_network")
        self.num_qvalue_nets = num_qvalue_nets
        self.fixed_alpha = fixed_alpha
        low, high = action_box(actor_network, action_spec)
        if target_entropy is None or target_entropy == "auto":
            # Entropy is measured in the box's own units: in a small one -|A| may be out of reach.
            entropy = -low.numel() + min(0.0, ((high - low) / 2).log().sum().item())
        else:
            entropy = target_entropy
        self.register_buffer("low", low)
        self.register_buffer("high", high)
        self._squashed = _is_squashed(actor_network, low, high)
        self.coefficient("target_entropy", entropy, "(-inf, inf)")
        log_alpha = torch.tensor(float(alpha_init)).log()
        if fixed_alpha:
            self.register_buffer("log_alpha", log_alpha)
        else:
            self.log_alpha = nn.Parameter(log_alpha)
        self.make_value_estimator(gamma=gamma)

    @property
    def out_keys(self) -> list[str]:
        """The outputs, which depend on the options."""
        tuned = [] if self.fixed_alpha else ["loss_alpha"]
        return ["loss_actor", "loss_qvalue", *tuned, "alpha", "entropy"]

    def _reads(self) -> list[NestedKey]:
        networks = [self.actor_network, *self.qvalue_network]
        return self._transition_keys(networks, networks)

    def _rows(self, batch: TensorDictBase, mask: Tensor | None) -> dict[str, Tensor]:
        action = self._data_action(batch)
        new_action, log_prob = self._act(batch)
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            next_action, next_log_prob = self._act(batch, next_step=True)
            next_q = self._q(self.target_qvalue_network, batch, next_action, next_step=True)
            target = self._target(batch, next_q.amin(0) - alpha * next_log_prob)

        q = self._q(self.qvalue_network, batch, action)
        return {
            "loss_actor": alpha * log_prob - self._gain(batch, new_action),
            **self._critic_rows(q, target),
            **self._temperature_rows(log_prob),
            "alpha": alpha,
        }

    # ---- parts, for CQL too ----------------------------------------------------------------

    def _data_action(self, batch: TensorDictBase) -> Tensor:
        return read(batch, self.tensor_keys.action, self.low.shape)

    def _temperature_rows(self, log_prob: Tensor) -> dict[str, Tensor]:
        """The loss of the temperature, unless it is fixed, and the entropy."""
        if self.fixed_alpha:
            return {"entropy": -log_prob}
        loss_alpha = -self.log_alpha * (log_prob.detach() + self.target_entropy)
        return {"loss_alpha": loss_alpha, "entropy": -log_prob}

    def _gain(self, batch: TensorDictBase, action: Tensor) -> Tensor:
        """What the actor climbs ``(batch,)``: the least critic, whose weights stay out of it."""
        networks = self.qvalue_network
        if torch.compiler.is_compiling():
            return self._q(networks, batch, action, frozen=True).amin(0)
        with frozen(networks):
            return self._q(networks, batch, action).amin(0)

    def _act(self, batch: TensorDictBase, *, next_step: bool = False) -> tuple[Tensor, Tensor]:
        """Actions of the policy ``(batch, action)`` and their log-probabilities ``(batch,)``."""
        if self._squashed:
            network = self.actor_network.module[0]
            loc, scale = network.module(*network_inputs(network, batch, next_step=next_step))
            return squashed_sample(loc, scale, self.low, self.high)
        return rsample_and_log_prob(distribution(self.actor_network, batch, next_step=next_step))

    def _q(
        self, networks: nn.ModuleList, batch: TensorDictBase, actions: Tensor, **options: bool
    ) -> Tensor:
        """Q(s, a) of every critic, ``(critics, batch)``; of k actions ``(critics, k, batch)``.

        The options are ``next_step`` and ``frozen`` of ``call_network``.
        """
        action, out = self.tensor_keys.action, self.tensor_keys.state_action_value
        several = actions.ndim > batch.ndim + 1
        parts = actions.split(max(1, CHUNK // max(1, batch.numel()))) if several else [actions]

        def value(network: TensorDictModule, part: Tensor) -> Tensor:
            given, lead = {action: part}, part.shape[:1] if several else ()
            return call_network(network, batch, out, given=given, lead=lead, **options)

        values = [[value(network, part) for part in parts] for network in networks]
        every = [torch.cat(one) if len(one) > 1 else one[0] for one in values]
        return torch.stack(every).squeeze(-1)


def squashed_sample(loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    r"""A reparametrised sample of a tanh-squashed Gaussian, and its log-probability.

    :math:`a = m + h \tanh u` with :math:`u \sim N(loc, scale)`, middle m and half range h of the
    box: :math:`\log p(a) = \sum \log N(u) - \log h - \log(1 - \tanh^2 u)`, with the last logarithm
    as :math:`2 (\log 2 - u - softplus(-2u))`, which stays finite where tanh is 1 to rounding. The
    same as TorchRL's ``TanhNormal``, at a third of its cost.

    Args:
        loc: ``(batch, action)``, like ``scale``, the deviation. Gradients flow through both.
        low: bounds of the actions, ``(action,)``, like ``high``.

    Returns: actions ``(batch, action)`` and log-probabilities ``(batch,)``.
    """
    noise = torch.randn_like(loc)
    u = torch.addcmul(loc, scale, noise)
    half = 0.5 * (high - low)
    constant = half.log().sum() + half.numel() * _SQUASHED
    rows = 2 * (u + F.softplus(-2 * u)) - scale.log() - 0.5 * noise.square()
    return torch.addcmul(low + half, half, u.tanh()), rows.sum(-1) - constant


def _is_squashed(actor: ProbabilisticTensorDictSequential, low: Tensor, high: Tensor) -> bool:
    """Whether the actor is one network and a plain TanhNormal over this box on top of it."""
    pair = as_pair(actor)
    if pair is None:
        return False
    network, head = pair
    options = dict(head.distribution_kwargs)
    return (
        head.distribution_class is TanhNormal
        and list(head.in_keys) == list(network.out_keys) == ["loc", "scale"]
        and not options.pop("tanh_loc", False)
        and torch.equal(torch.as_tensor(options.pop("low", -1.0)).expand_as(low), low)
        and torch.equal(torch.as_tensor(options.pop("high", 1.0)).expand_as(high), high)
        and not options
    )
