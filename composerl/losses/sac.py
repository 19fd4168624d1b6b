"""Soft actor-critic."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Any, Literal

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor, nn
from torchrl.data import TensorSpec
from torchrl.modules.distributions.utils import rsample_and_log_prob

from composerl.losses.arguments import (
    Only,
    bounds,
    check_number,
    independent_copies,
    least_entropy,
    spec_of_action,
)
from composerl.losses.calling import (
    call_network,
    call_networks,
    distribution,
    inside,
    network_inputs,
)
from composerl.losses.common import RowLoss, TransitionKeys
from composerl.losses.distributions import is_squashed, squashed_sample
from composerl.losses.functional import distance
from composerl.losses.pure_sac import sac_loss
from composerl.losses.reading import read

__all__ = ["SACLoss"]

#: Rows that a critic evaluates at a time: their activations stay in the cache.
CHUNK = 1024


class SACLoss(RowLoss):
    r"""Soft actor-critic with twin critics and an automatic temperature.

    Paper: Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905. With target networks
    :math:`\bar Q`, :math:`\tilde a \sim \pi(s)` and :math:`a' \sim \pi(s')`

    .. math::
        L_{Q_i} &= (y - Q_i(s, a))^2, \quad y = r + \gamma (1 - terminated)
            \Big( \min_k \bar Q_k(s', a') - \alpha \log \pi(a'|s') \Big) \\
        L_\pi &= \alpha \log \pi(\tilde a|s) - \min_k Q_k(s, \tilde a) \\
        L_\alpha &= -\log \alpha \, (\log \pi(\tilde a|s) + H)

    Difference to ``torchrl.objectives.SACLoss``, whose arguments and keys it keeps: networks are
    plain submodules, called without a TensorDict; the distance is squared by default; with a
    ``value_network``, all critics see the whole batch; ``delay_actor`` acts in every target.

    Args:
        actor_network: the policy, with reparametrised samples.
        qvalue_network: one critic or a list.
        value_network: if given, V(s) as in the first paper, https://arxiv.org/abs/1801.01290:
            :math:`L_V = (\min_k \bar Q_k(s, \tilde a) - \alpha \log \pi(\tilde a|s) - V(s))^2`,
            and the critics' target bootstraps from :math:`\bar V(s')`.

    Keyword Args:
        alpha_init: initial temperature > 0: larger values explore more.
        fixed_alpha: keep it.
        target_entropy: H, the entropy it is tuned to; ``"auto"`` or None for minus the action's
            dimension, less in a box smaller than [-1, 1] by the logarithm of its half widths.
            Larger values keep the policy more random.
        action_spec: of the actions; the actor's own by default.
        min_alpha: the temperature goes no lower, and no higher than ``max_alpha``.
        skip_done_states: whatever is in the batch at s' where it is done counts as worth 0.
        num_qvalue_nets: see :mod:`composerl.losses`, like ``loss_function``, ``gamma``,
            ``reduction``, TorchRL's further options and what is read.

    Returns: ``loss_actor``, ``loss_qvalue``, ``loss_alpha`` (unless fixed), and ``alpha``,
    ``entropy`` and ``pred_value`` (of the critics); ``loss_value`` with a ``value_network``.
    Writes ``td_error`` (the largest squared error of the critics).

    Example:
        >>> from composerl.envs import make_env
        >>> from composerl.losses import SACLoss
        >>> from composerl.modules import tanh_gaussian_actor, twin_q
        >>> env = make_env("Pendulum-v1")
        >>> loss = SACLoss(tanh_gaussian_actor(env), twin_q(env))
        >>> sorted(loss(env.rollout(4)).keys())
        ['alpha', 'entropy', 'loss_actor', 'loss_alpha', 'loss_qvalue', 'pred_value']
    """

    @dataclass
    class _AcceptedKeys(TransitionKeys):
        value: NestedKey = "state_value"
        state_action_value: NestedKey = "state_action_value"
        log_prob: NestedKey = "action_log_prob"

    tensor_keys: _AcceptedKeys
    default_keys = _AcceptedKeys
    further = MappingProxyType({
        "delay_actor": False, "delay_qvalue": True, "delay_value": True,
        "separate_losses": False, "skip_done_states": False, "deactivate_vmap": False,
        "use_prioritized_weights": "auto", "scalar_output_mode": None,
        "priority_key": Only(None, "name it by set_keys(priority=...)"),
    })  # fmt: skip
    delay_actor: bool
    delay_qvalue: bool
    delay_value: bool
    skip_done_states: bool
    low: Any  # a Tensor, or None if the action is not in one box; high too
    high: Any

    def __init__(
        self,
        actor_network: ProbabilisticTensorDictSequential,
        qvalue_network: TensorDictModule | Sequence[TensorDictModule],
        value_network: TensorDictModule | None = None,
        *,
        num_qvalue_nets: int = 2,
        loss_function: str = "l2",
        alpha_init: float = 1.0,
        min_alpha: float | None = None,
        max_alpha: float | None = None,
        fixed_alpha: bool = False,
        target_entropy: Literal["auto"] | float | None = "auto",
        action_spec: TensorSpec | None = None,
        gamma: float | None = None,
        reduction: str | None = None,
        **further: Any,
    ) -> None:
        super().__init__(reduction, loss_function, further)
        check_number("alpha_init", alpha_init, "(0, inf)")
        least = check_number("min_alpha", 0.0 if min_alpha is None else min_alpha, "[0, inf)")
        most = inf if max_alpha is None else max_alpha
        self.alpha_range = (least, check_number("max_alpha", most, f"[{least}, inf]"))
        self.actor_network = actor_network
        self.make_target("actor_network", delayed=self.delay_actor)
        self.value_network = value_network
        if value_network is not None:
            self.make_target("value_network", delayed=self.delay_value)
        self.qvalue_network = independent_copies(qvalue_network, num_qvalue_nets)
        self.make_target("qvalue_network", delayed=self.delay_qvalue)
        self.num_qvalue_nets = num_qvalue_nets
        self.fixed_alpha = fixed_alpha
        self.name_action(actor_network)
        spec = spec_of_action(actor_network, action_spec, self.tensor_keys.action)
        if target_entropy is None or target_entropy == "auto":
            entropy = least_entropy(spec)
        else:
            entropy = target_entropy
        low, high = bounds(spec) or (None, None)
        self.register_buffer("low", low)
        self.register_buffer("high", high)
        self._squashed = is_squashed(actor_network, low, high)
        self.coefficient("target_entropy", entropy, "(-inf, inf)")
        log_alpha = torch.tensor(float(alpha_init)).log()
        if fixed_alpha:
            self.register_buffer("log_alpha", log_alpha)
        else:
            self.log_alpha = nn.Parameter(log_alpha)
        tuned = [] if fixed_alpha else ["loss_alpha"]
        self.out_keys = ["loss_actor", "loss_qvalue", *tuned, "alpha", "entropy"]
        self.out_keys += [] if value_network is None else ["loss_value"]
        self.make_value_estimator(gamma=gamma)

    def reads(self) -> list[NestedKey]:
        networks = [self.actor_network, *self.qvalue_network]
        if self.value_network is None:
            return self.transition_keys(networks, networks)
        return self.transition_keys([*networks, self.value_network], [self.value_network])

    def rows(self, batch: TensorDictBase, mask: Tensor | None) -> dict[str, Tensor]:
        action = self._data_action(batch)
        new_action, log_prob = self._act(batch)
        alpha = self._alpha
        with torch.no_grad():
            target = self.td_target(batch, self._next_value(batch, alpha))

        with self._apart(self.qvalue_network, self.actor_network, self.value_network):
            q = self._q(self.qvalue_network, batch, action)
        rows = sac_loss(
            q, target, self._policy_q(batch, new_action), log_prob, self.log_alpha,
            target_entropy=self._tuned_to, loss_function=self.loss_function,
        )  # fmt: skip
        rows = {**self._prioritized(rows), "alpha": alpha}
        if self.value_network is not None:
            with torch.no_grad():
                worth = self._q(self.target_qvalue_network, batch, new_action).amin(0)
                worth = worth - alpha * log_prob
            with self._apart(self.value_network, self.actor_network):
                value = self.value_of(self.value_network, batch, self.tensor_keys.value)
            rows["loss_value"] = distance(value, worth, self.loss_function)
        return rows

    def _next_value(self, batch: TensorDictBase, alpha: Tensor) -> Tensor:
        """Value of s' ``(batch,)``."""
        if self.value_network is not None:
            network, key = self.target_value_network, self.tensor_keys.value
            return self.value_of(network, batch, key, next_step=True)
        action, log_prob = self._act(batch, next_step=True)
        q = self._q(self.target_qvalue_network, batch, action, next_step=True)
        return q.amin(0) - alpha * log_prob

    # ---- parts, for CQL too ----------------------------------------------------------------

    @property
    def _alpha(self) -> Tensor:
        if self.alpha_range != (0.0, inf):
            least, most = torch.tensor(self.alpha_range).log().to(self.log_alpha)
            self.log_alpha.data.clamp_(least, most)
        return self.log_alpha.detach().exp()

    def td_target(self, batch: TensorDictBase, next_value: Tensor) -> Tensor:
        if self.skip_done_states:
            done = read(batch, ("next", self.tensor_keys.done), (1,)).squeeze(-1)
            next_value = next_value.masked_fill(done, 0.0)
        return super().td_target(batch, next_value)

    def _data_action(self, batch: TensorDictBase) -> Tensor:
        return read(batch, self.tensor_keys.action, None if self.low is None else self.low.shape)

    @property
    def _tuned_to(self) -> Tensor | None:
        return None if self.fixed_alpha else self.target_entropy

    def _policy_q(self, batch: TensorDictBase, action: Tensor) -> Tensor:
        """What the actor climbs ``(critics, batch)``; the critics' weights stay out of it."""
        return self._q(self.qvalue_network, batch, action, frozen=True)

    def _act(self, batch: TensorDictBase, *, next_step: bool = False) -> tuple[Tensor, Tensor]:
        """Actions of the policy ``(batch, action)`` and their log-probabilities ``(batch,)``."""
        actor = self.target_actor_network if next_step else self.actor_network
        if self._squashed:
            network = inside(actor)[0]
            loc, scale = inside(network)(*network_inputs(network, batch, next_step=next_step))
            return squashed_sample(loc, scale, self.low, self.high)
        action, log_prob = rsample_and_log_prob(distribution(actor, batch, next_step=next_step))
        # A composite distribution may give each part of the action its own.
        return action, log_prob if isinstance(log_prob, Tensor) else sum(
            log_prob.values(True, True)
        )

    def _q(
        self, networks: nn.ModuleList, batch: TensorDictBase, actions: Tensor, **options: Any
    ) -> Tensor:
        """Q(s, a) of every critic, ``(critics, batch)``; of k actions ``(critics, k, batch)``.

        The options are ``next_step`` and ``frozen`` of ``call_network``.
        """
        action, out = self.tensor_keys.action, self.tensor_keys.state_action_value
        several = actions.ndim > batch.ndim + 1
        if not several:
            every = call_networks(networks, batch, out, given={action: actions}, **options)
            return torch.stack(every).squeeze(-1)
        parts = actions.split(max(1, CHUNK // max(1, batch.numel())))

        def value(network: TensorDictModule, part: Tensor) -> Tensor:
            given, lead = {action: part}, part.shape[:1]
            return call_network(network, batch, out, given=given, lead=lead, **options)

        values = [[value(network, part) for part in parts] for network in networks]
        every = [torch.cat(one) if len(one) > 1 else one[0] for one in values]
        return torch.stack(every).squeeze(-1)
