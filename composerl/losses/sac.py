"""Soft actor-critic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule, dispatch
from torch import Tensor, nn
from torchrl.data import TensorSpec
from torchrl.modules.distributions.utils import rsample_and_log_prob

from composerl.losses.common import LeanLoss, action_box, check_number, independent_copies
from composerl.losses.functional import distance, squashed_sample
from composerl.losses.reading import (
    blank,
    call_at,
    call_with,
    distribution,
    frozen,
    is_squashed,
    read,
    squashed_parameters,
    step_key,
)

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
    class _AcceptedKeys:
        action: NestedKey = "action"
        priority: NestedKey = "td_error"
        priority_weight: NestedKey = "priority_weight"
        state_action_value: NestedKey = "state_action_value"
        reward: NestedKey = "reward"
        done: NestedKey = "done"
        terminated: NestedKey = "terminated"

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
        target_entropy: str | float | None = "auto",
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
        if target_entropy in (None, "auto"):
            # Entropy is measured in the box's own units: in a small one -|A| may be out of reach.
            entropy = -low.numel() + min(0.0, ((high - low) / 2).log().sum().item())
        else:
            entropy = check_number("target_entropy", target_entropy, -inf, inf)
        self.register_buffer("low", low)
        self.register_buffer("high", high)
        self._squashed = is_squashed(actor_network, low, high)
        self.register_buffer("target_entropy", torch.tensor(float(entropy)))
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

    def _set_in_keys(self) -> None:
        keys, inputs = self.tensor_keys, self.actor_network.in_keys
        critics = [key for network in self.qvalue_network for key in network.in_keys]
        following = [step_key(key) for key in [*inputs, *critics] if key != keys.action]
        columns = [("next", key) for key in (keys.reward, keys.done, keys.terminated)]
        self._in_keys = list(dict.fromkeys([keys.action, *columns, *inputs, *critics, *following]))

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Evaluate the losses on a batch of transitions."""
        mask = self._mask(tensordict)
        batch = tensordict if mask is None else blank(tensordict, mask)
        action = self._data_action(batch)
        new_action, log_prob = self._act(batch)
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            next_action, next_log_prob = self._act(batch, next_step=True)
            next_q = self._all_q(self.target_qvalue_network, batch, next_action, next_step=True)
            target = self._target(batch, next_q.amin(0) - alpha * next_log_prob)

        q = self._all_q(self.qvalue_network, batch, action)
        out = {
            "loss_actor": alpha * log_prob - self._gain(batch, new_action),
            "loss_qvalue": self._critic_loss(tensordict, q, target, mask),
        }
        return self._outputs(batch, mask, out, log_prob, alpha=alpha)

    # ---- parts, for CQL too ----------------------------------------------------------------

    def _data_action(self, batch: TensorDictBase) -> Tensor:
        action = read(batch, self.tensor_keys.action)
        if action.shape != (*batch.batch_size, *self.low.shape):
            raise ValueError(
                f"entry {self.tensor_keys.action!r} must have shape "
                f"{(*batch.batch_size, *self.low.shape)}, got {tuple(action.shape)}"
            )
        return action

    def _critic_loss(
        self, given: TensorDictBase, q: Tensor, target: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Distance of the critics ``(critics, batch)`` to their target; writes the priority."""
        priority = (q.detach() - target).square_().amax(0)
        given.set(self.tensor_keys.priority, priority if mask is None else priority * mask)
        return distance(q, target.expand_as(q), self.loss_function).sum(0)

    def _gain(self, batch: TensorDictBase, action: Tensor) -> Tensor:
        """What the actor climbs ``(batch,)``: the least critic, whose weights stay out of it."""
        networks = self.qvalue_network
        if torch.compiler.is_compiling():
            one = action.unsqueeze(0)
            values = [self._q(net, batch, one, frozen=True)[0] for net in networks]
            return torch.stack(values).amin(0)
        with frozen(networks):
            return self._all_q(networks, batch, action).amin(0)

    def _outputs(
        self,
        batch: TensorDictBase,
        mask: Tensor | None,
        out: dict[str, Tensor],
        log_prob: Tensor,
        **constants: Tensor,
    ) -> TensorDict:
        """The losses with that of the temperature, reduced; the entropy; and the constants."""
        if not self.fixed_alpha:
            out["loss_alpha"] = -self.log_alpha * (log_prob.detach() + self.target_entropy)
        reduce, average = self._reducer(batch, mask)
        losses = {key: reduce(value) for key, value in out.items()}
        losses["entropy"] = average(-log_prob.detach())
        shape = batch.batch_size if self.reduction == "none" else torch.Size([])
        losses |= {key: value.expand(shape) for key, value in constants.items()}
        return TensorDict(losses, shape)

    def _act(self, batch: TensorDictBase, *, next_step: bool = False) -> tuple[Tensor, Tensor]:
        """Actions of the policy ``(batch, action)`` and their log-probabilities ``(batch,)``."""
        if self._squashed:
            loc, scale = squashed_parameters(self.actor_network, batch, next_step=next_step)
            return squashed_sample(loc, scale, self.low, self.high)
        return rsample_and_log_prob(distribution(self.actor_network, batch, next_step=next_step))

    def _all_q(
        self,
        networks: nn.ModuleList,
        batch: TensorDictBase,
        action: Tensor,
        *,
        next_step: bool = False,
    ) -> Tensor:
        """Q(s, a) of every critic, ``(critics, batch)``."""
        keys = self.tensor_keys
        given, key = {keys.action: action}, keys.state_action_value
        values = [call_with(net, batch, given, key, next_step=next_step) for net in networks]
        return torch.stack(values).squeeze(-1)

    def _q(
        self,
        network: nn.Module,
        batch: TensorDictBase,
        actions: Tensor,
        *,
        next_step: bool = False,
        frozen: bool = False,
    ) -> Tensor:
        """Q(s, a) of ``(k, batch, action)`` actions, ``(k, batch)``, some rows at a time."""
        keys = self.tensor_keys
        size = max(1, CHUNK // max(1, batch.numel()))
        parts = [
            call_at(network, batch, {keys.action: part}, keys.state_action_value,
                    next_step=next_step, frozen=frozen)
            for part in actions.split(size)
        ]  # fmt: skip
        return torch.cat(parts).squeeze(-1)
