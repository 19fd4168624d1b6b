"""TD3 with behaviour cloning."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.data import TensorSpec

from composerl.losses.arguments import Only, action_box, independent_copies
from composerl.losses.calling import call_network
from composerl.losses.common import RowLoss, TransitionKeys
from composerl.losses.reading import read

__all__ = ["TD3BCLoss"]


class TD3BCLoss(RowLoss):
    r"""TD3+BC: TD3 whose policy also imitates the data's actions.

    Paper: Fujimoto, Gu 2021, https://arxiv.org/abs/2106.06860; TD3: Fujimoto, van Hoof, Meger
    2018, https://arxiv.org/abs/1802.09477. With target networks :math:`\bar Q, \bar\pi`

    .. math::
        L_{Q_i} &= (y - Q_i(s, a))^2, \quad
            y = r + \gamma (1 - terminated) \min_k \bar Q_k(s', a'), \;
            a' = \mathrm{clip}(\bar\pi(s') + \mathrm{clip}(\epsilon, \pm c)),
            \; \epsilon \sim N(0, \sigma) \\
        L_\pi &= -\lambda Q_1(s, \pi(s)) + (\pi(s) - a)^2, \quad
            \lambda = \alpha \, / \, \mathrm{mean} |Q_1(s, \pi(s))|

    :math:`\lambda` carries no gradient. The square is a mean over the action's dimensions, and
    actions are measured in units of half their range there and in the noise, as the paper's, which
    all lie in [-1, 1]. Let the policy and the targets follow the critics at half their pace:
    ``Update(loss, every={"actor_network": 2, "target_": 2})``.

    Difference to ``torchrl.objectives.TD3BCLoss``, whose arguments and keys it keeps: there noise
    and imitation are in the environment's units, the imitation of a masked or weighted batch counts
    every row alike, and the bounds must be given; the distance is squared by default; all outputs
    but the losses are means.

    Args:
        actor_network: the policy, observation to action; a TorchRL ``Actor`` works.
        qvalue_network: one critic or a list.

    Keyword Args:
        action_spec: of the actions; the actor's own by default.
        bounds: their lower and upper bounds, instead of a spec.
        policy_noise: :math:`\sigma \geq 0`, deviation of the noise on the target's actions: larger
            makes values smoother.
        noise_clip: c, >= 0, how far it may reach.
        alpha: > 0, weight of the values against the imitation: smaller clones more. None is plain
            TD3, :math:`L_\pi = -Q_1(s, \pi(s))`.
        num_qvalue_nets: see :mod:`composerl.losses`, like ``loss_function``, ``gamma``,
            ``reduction``, TorchRL's further options and what is read.

    Returns: ``loss_actor``, ``loss_qvalue``, and ``bc_loss`` (the square) and ``lmbd`` unless alpha
    is None, ``pred_value``, ``state_action_value_actor``, ``next_state_value`` and
    ``target_value``. Writes ``td_error`` (the largest squared error of the critics).

    Example:
        >>> from composerl.envs import make_env
        >>> from composerl.losses import TD3BCLoss
        >>> from composerl.modules import deterministic_actor, twin_q
        >>> env = make_env("Pendulum-v1")
        >>> loss = TD3BCLoss(deterministic_actor(env), twin_q(env))
        >>> [key for key in loss(env.rollout(4)).keys() if key.startswith("loss_")]
        ['loss_actor', 'loss_qvalue']
    """

    @dataclass
    class _AcceptedKeys(TransitionKeys):
        state_action_value: NestedKey = "state_action_value"

    tensor_keys: _AcceptedKeys
    default_keys = _AcceptedKeys
    further = MappingProxyType({
        "delay_actor": True, "delay_qvalue": True, "separate_losses": False,
        "deactivate_vmap": False, "use_prioritized_weights": "auto", "scalar_output_mode": None,
        "priority_key": Only(None, "name it by set_keys(priority=...)"),
    })  # fmt: skip
    delay_actor: bool
    delay_qvalue: bool
    low: Tensor
    high: Tensor

    def __init__(
        self,
        actor_network: TensorDictModule,
        qvalue_network: TensorDictModule | Sequence[TensorDictModule],
        *,
        action_spec: TensorSpec | None = None,
        bounds: tuple[float | Tensor, float | Tensor] | None = None,
        num_qvalue_nets: int = 2,
        policy_noise: float = 0.2,
        noise_clip: float = 0.5,
        alpha: float | None = 2.5,
        loss_function: str = "l2",
        gamma: float | None = None,
        reduction: str | None = None,
        **further: Any,
    ) -> None:
        super().__init__(reduction, loss_function, further)
        self.coefficient("policy_noise", policy_noise, "[0, inf)")
        self.coefficient("noise_clip", noise_clip, "[0, inf]")
        self.clones = alpha is not None
        if alpha is not None:
            self.coefficient("alpha", alpha)
        self.actor_network = actor_network
        self.make_target("actor_network", delayed=self.delay_actor)
        self.qvalue_network = independent_copies(qvalue_network, num_qvalue_nets)
        self.make_target("qvalue_network", delayed=self.delay_qvalue)
        self.num_qvalue_nets = num_qvalue_nets
        if len(actor_network.out_keys) == 1:
            self.set_keys(action=actor_network.out_keys[0])
        if bounds is None:
            low, high = action_box(actor_network, action_spec, self.tensor_keys.action)
        elif action_spec is None:
            low, high = (torch.as_tensor(bound, dtype=torch.float32) for bound in bounds)
        else:
            raise ValueError("action_spec and bounds say the same: pass one of them")
        if not bool((low < high).all()):
            raise ValueError(f"the lower bounds must be below the upper ones, got {low}, {high}")
        self.register_buffer("low", low)
        self.register_buffer("high", high)
        cloning = ["bc_loss", "lmbd"] if self.clones else []
        self.out_keys = ["loss_actor", "loss_qvalue", *cloning, "pred_value",
                         "state_action_value_actor", "next_state_value",
                         "target_value"]  # fmt: skip
        self.make_value_estimator(gamma=gamma)

    def reads(self) -> list[NestedKey]:
        networks = [self.actor_network, *self.qvalue_network]
        return self.transition_keys(networks, networks)

    def rows(self, batch: TensorDictBase, mask: Tensor | None) -> dict[str, Tensor]:
        key, actor = self.tensor_keys.action, self.actor_network
        action = read(batch, key, self.low.shape or None)
        with torch.no_grad():
            next_value = self._next_value(batch)
            target = self.td_target(batch, next_value)

        with self._apart(self.qvalue_network, actor):
            q = self._q(self.qvalue_network, batch, action)
        mine = call_network(actor, batch, key)
        (gain,) = self._q(self.qvalue_network[:1], batch, mine, frozen=True)
        rows = {
            "loss_actor": -gain,
            **self.critic_rows(q, target),
            "pred_value": q.mean(0),
            "state_action_value_actor": gain,
            "next_state_value": next_value,
            "target_value": target,
        }
        if self.clones:
            apart = ((mine - action) / self._half).square().mean(-1)
            size = gain.detach().abs()
            mean = size.mean() if mask is None else (size * mask).sum() / mask.sum()
            rows["lmbd"], rows["bc_loss"] = self.alpha / mean, apart
            rows["loss_actor"] = apart - rows["lmbd"] * gain
        return rows

    @property
    def _half(self) -> Tensor:
        return 0.5 * (self.high - self.low)

    def _next_value(self, batch: TensorDictBase) -> Tensor:
        """The least target value of s' ``(batch,)``, at a noisy action of the target policy."""
        action = call_network(
            self.target_actor_network, batch, self.tensor_keys.action, next_step=True
        )
        noise = (self.policy_noise * torch.randn_like(action)).clamp(
            -self.noise_clip, self.noise_clip
        )
        action = torch.addcmul(action, noise, self._half).clamp(self.low, self.high)
        return self._q(self.target_qvalue_network, batch, action, next_step=True).amin(0)

    def _q(
        self, networks: nn.ModuleList, batch: TensorDictBase, action: Tensor, **options: bool
    ) -> Tensor:
        """Q(s, a) of the critics, ``(critics, batch)``."""
        key, given = self.tensor_keys.state_action_value, {self.tensor_keys.action: action}
        return self.values_of(networks, batch, key, given=given, **options)
