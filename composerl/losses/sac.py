"""Soft actor-critic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor, nn
from torchrl.data import TensorSpec
from torchrl.modules.distributions.utils import rsample_and_log_prob

from composerl.losses.arguments import action_box, check_number, independent_copies
from composerl.losses.common import LeanLoss, TransitionKeys
from composerl.losses.reading import call_network, distribution, frozen, read
from composerl.losses.squashed import is_squashed, squashed_parameters, squashed_sample

__all__ = ["SACLoss"]

#: Rows that a critic evaluates at a time: their activations stay in the cache.
CHUNK = 1024


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
        actor_network: the policy, with ``get_dist``, bounded actions and reparametrised samples.
        qvalue_network: one critic or a list of ``num_qvalue_nets`` critics.

    Keyword Args:
        num_qvalue_nets: how many critics; the minimum is taken.
        loss_function: distance of the critics to their target: ``"l2"``, ``"l1"``, ``"smooth_l1"``
            or ``"huber"`` (delta 20).
        alpha_init: initial temperature > 0: larger values explore more.
        fixed_alpha: keep it.
        target_entropy: H, the entropy it is tuned to; ``"auto"`` or None for minus the action's
            dimension, less in a box smaller than [-1, 1] by the logarithm of its half widths.
            Larger values keep the policy more random.
        action_spec: the action box; the actor's own by default.
        gamma: discount; the same as ``make_value_estimator(gamma=...)``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Reads: ``action``, the ``in_keys`` of the networks and the same under ``"next"``,
    ``("next", "reward")``, ``("next", "done")``, ``("next", "terminated")``; if present
    ``steps_to_next_obs`` (n-step), ``priority_weight`` and ``("collector", "mask")``.

    Returns: ``loss_actor``, ``loss_qvalue``, ``loss_alpha`` (unless fixed), and detached ``alpha``
    and ``entropy``. Writes ``td_error`` (the largest squared error of the critics, ``(batch,)``).

    Example:
        >>> import torch
        >>> from composerl.losses import SACLoss
        >>> from composerl.modules import tanh_gaussian_actor, twin_q
        >>> from composerl.envs.spaces import Spaces
        >>> from tensordict import TensorDict
        >>> spaces = Spaces(obs_shape=(3,), low=(-2.0,), high=(2.0,))
        >>> loss = SACLoss(tanh_gaussian_actor(spaces), twin_q(spaces))
        >>> batch = TensorDict({
        ...     "observation": torch.randn(4, 3), "action": torch.rand(4, 1),
        ...     "next": {"observation": torch.randn(4, 3), "reward": torch.randn(4, 1),
        ...              "done": torch.zeros(4, 1, dtype=torch.bool),
        ...              "terminated": torch.zeros(4, 1, dtype=torch.bool)}}, [4])
        >>> sorted(loss(batch).keys())
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
        check_number("alpha_init", alpha_init, 0, inf)
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
        self._squashed = is_squashed(actor_network, low, high)
        self.coefficient("target_entropy", entropy, -inf, inf)
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
            loc, scale = squashed_parameters(self.actor_network, batch, next_step=next_step)
            return squashed_sample(loc, scale, self.low, self.high)
        return rsample_and_log_prob(distribution(self.actor_network, batch, next_step=next_step))

    def _q(
        self,
        networks: nn.ModuleList,
        batch: TensorDictBase,
        actions: Tensor,
        *,
        several: bool = False,
        next_step: bool = False,
        frozen: bool = False,
    ) -> Tensor:
        """Q(s, a) of every critic, ``(critics, batch)``; of several ``(critics, k, batch)``."""
        keys = self.tensor_keys
        parts = actions.split(max(1, CHUNK // max(1, batch.numel()))) if several else [actions]

        def value(network: TensorDictModule, part: Tensor) -> Tensor:
            return call_network(
                network,
                batch,
                keys.state_action_value,
                given={keys.action: part},
                lead=part.shape[:1] if several else (),
                next_step=next_step,
                frozen=frozen,
            )

        values = [[value(network, part) for part in parts] for network in networks]
        every = [torch.cat(one) if len(one) > 1 else one[0] for one in values]
        return torch.stack(every).squeeze(-1)
