"""Conservative Q-learning for continuous actions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor, nn
from torchrl.modules.distributions.utils import rsample_and_log_prob

from composerl.losses.arguments import action_box, check_whole
from composerl.losses.calling import distribution
from composerl.losses.pure_sac import cql_loss
from composerl.losses.reading import read
from composerl.losses.sac import SACLoss

__all__ = ["CQLLoss"]


class CQLLoss(SACLoss):
    r"""CQL(H): SAC whose critics are pushed down where the data have no actions.

    Paper: Kumar, Zhou, Tucker, Levine 2020, https://arxiv.org/abs/2006.04779, equation 4 and
    appendix F. For each critic

    .. math::
        L_{Q_i} = (y - Q_i(s, a))^2 + \alpha \Big( T \log \sum_{j=1}^{3n}
            e^{z_j / T} - Q_i(s, a) \Big), \quad
        y = r + \gamma (1 - terminated) \min_k \bar Q_k(s', a'), \; a' \sim \pi(s')

    where the 3n entries, all at s, are importance-corrected: n uniform actions
    :math:`Q_i(s, a) + \log vol(box)`, n of the policy :math:`Q_i(s, a) - \log \pi(a|s)`, and n of
    the policy *at s'*, :math:`Q_i(s, a') - \log \pi(a'|s')`. Sampled actions carry no gradient.
    The actor and its temperature are SAC's.

    Difference to ``torchrl.objectives.CQLLoss``: there the logsumexp spans three values whatever
    ``num_random`` is, uniform actions are drawn from [-1, 1] whatever the bounds, the Lagrange
    multiplier never multiplies, and ``loss_actor_bc`` would be summed with the rest.

    Args:
        actor_network: see :class:`~composerl.losses.SACLoss`, like the next.
        qvalue_network: one critic or a list.

    Keyword Args:
        temperature: T > 0 of the logsumexp; small values approach the maximum.
        min_q_weight: alpha >= 0, weight of the penalty: larger is more conservative. 5 to 10.
        num_random: n >= 1.
        max_q_backup: the target takes the best of n actions instead of one.
        deterministic_backup: no entropy bonus in the target.
        with_lagrange: tune the weight instead (``min_q_weight`` is not used) so that the
            difference of logsumexp and Q(s, a) stays at ``lagrange_thresh``.
        lagrange_thresh: that gap, >= 0 (TorchRL: 0 by default).
        calibrated: Cal-QL (Nakamoto et al. 2023): values of policy actions count at least as much
            as the data's Monte Carlo return, read from ``mc_return``.
        **options: the keyword arguments of :class:`~composerl.losses.SACLoss`.

    Reads, writes and returns what :class:`~composerl.losses.SACLoss` does; if calibrated reads
    ``mc_return`` ``(batch, 1)``; also returns ``loss_cql`` and, with Lagrange,
    ``loss_alpha_prime`` and ``alpha_prime``.

    ``loss.imitate = True`` makes the actor maximise the log-probability of the data's actions, and
    nothing else: a behaviour-cloning start. The temperature, which has no say in it, waits.
    """

    @dataclass
    class _AcceptedKeys(SACLoss._AcceptedKeys):
        mc_return: NestedKey = "mc_return"
        # TorchRL's for what it keeps in the batch on the way, which is not done here.
        pred_q1: NestedKey = "pred_q1"
        pred_q2: NestedKey = "pred_q2"
        cql_q1_loss: NestedKey = "cql_q1_loss"
        cql_q2_loss: NestedKey = "cql_q2_loss"

    tensor_keys: _AcceptedKeys
    default_keys = _AcceptedKeys

    def __init__(
        self,
        actor_network: ProbabilisticTensorDictSequential,
        qvalue_network: TensorDictModule | Sequence[TensorDictModule],
        *,
        temperature: float = 1.0,
        min_q_weight: float = 5.0,
        num_random: int = 10,
        max_q_backup: bool = False,
        deterministic_backup: bool = True,
        with_lagrange: bool = False,
        lagrange_thresh: float = 5.0,
        calibrated: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(actor_network, qvalue_network, None, **options)
        low, high = action_box(actor_network, options.get("action_spec"), self.tensor_keys.action)
        self.num_random = check_whole("num_random", num_random, 1)
        self.max_q_backup = max_q_backup
        self.deterministic_backup = deterministic_backup
        self.with_lagrange = with_lagrange
        self.register_buffer("calibrating", torch.tensor(False), persistent=False)
        self.calibrated = calibrated
        self.imitate = False
        self.register_buffer("log_volume", (high - low).log().sum())
        self.coefficient("temperature", temperature)
        self.coefficient("min_q_weight", min_q_weight, "[0, inf)", symbol="alpha")
        self.coefficient("lagrange_thresh", lagrange_thresh, "[0, inf)")
        if with_lagrange:
            self.log_alpha_prime = nn.Parameter(torch.zeros(()))
        tuned = ["loss_alpha_prime", "alpha_prime"] if with_lagrange else []
        self.out_keys = [*self.out_keys, "loss_cql", *tuned]

    @property
    def calibrated(self) -> bool:
        """Whether it is Cal-QL, as when a run goes online."""
        return self._calibrated

    @calibrated.setter
    def calibrated(self, value: bool) -> None:
        self._calibrated = bool(value)
        self.calibrating.fill_(self._calibrated)

    def _floor(self, batch: TensorDictBase) -> Tensor | None:
        """What actions of the policy are worth at least, ``(batch,)``."""
        key = self.tensor_keys.mc_return
        if torch.compiler.is_compiling() and batch.get(key, None) is not None:
            # One graph for both: a second one would be compiled when a run goes online.
            floor = read(batch, key, (1,)).squeeze(-1)
            return torch.where(self.calibrating, floor, -torch.inf)
        return read(batch, key, (1,)).squeeze(-1) if self.calibrated else None

    def reads(self) -> list[NestedKey]:
        return super().reads() + ([self.tensor_keys.mc_return] if self.calibrated else [])

    def rows(self, batch: TensorDictBase, mask: Tensor | None) -> dict[str, Tensor]:
        n = self.num_random
        data_action = self._data_action(batch)
        dist = distribution(self.actor_network, batch)
        new_action, log_prob = rsample_and_log_prob(dist)
        alpha = self._alpha

        with torch.no_grad():
            policy_action, policy_log_prob = rsample_and_log_prob(dist, (n,))
            next_dist = distribution(self.target_actor_network, batch, next_step=True)
            next_action, next_log_prob = rsample_and_log_prob(next_dist, (n + 1,))
            next_value = self._best_value(batch, next_action, next_log_prob, alpha)
            target = self.td_target(batch, next_value)
            next_action, next_log_prob = next_action[:n], next_log_prob[:n]
            uniform = self.low + (self.high - self.low) * torch.rand_like(policy_action)
            actions = torch.cat([uniform, policy_action, next_action, data_action.unsqueeze(0)])
            density = torch.cat(
                [(-self.log_volume).expand_as(policy_log_prob), policy_log_prob, next_log_prob]
            )

        with self._apart(self.qvalue_network, self.actor_network):
            q = self._q(self.qvalue_network, batch, actions)
        policy_q = q[:, -1].detach() if self.imitate else self._policy_q(batch, new_action)
        metrics, alpha_prime = {"alpha": alpha}, None
        if self.with_lagrange:
            metrics["alpha_prime"] = alpha_prime = self.log_alpha_prime.exp().clamp(0.0, 1e6)
        rows = cql_loss(
            q[:, -1], target, policy_q, log_prob, self.log_alpha, q[:, :-1], density,
            target_entropy=self._tuned_to,
            temperature=self.temperature,
            min_q_weight=self.min_q_weight,
            alpha_prime=alpha_prime,
            lagrange_thresh=self.lagrange_thresh,
            mc_return=self._floor(batch),
            loss_function=self.loss_function,
        )  # fmt: skip
        if self.imitate:
            rows["loss_actor"] = -dist.log_prob(data_action)
            # Tuned while the entropy does not follow it, the temperature would run away.
            rows |= {key: 0 * row for key, row in rows.items() if key == "loss_alpha"}
        return {**self._prioritized(rows), **metrics}

    def _best_value(
        self, batch: TensorDictBase, actions: Tensor, log_prob: Tensor, alpha: Tensor
    ) -> Tensor:
        """Value of s' ``(batch,)``: of the last sampled action, or the best of the others."""
        if self.max_q_backup:
            actions, log_prob = actions[:-1], log_prob[:-1]
        else:
            actions, log_prob = actions[-1:], log_prob[-1:]
        values = self._q(self.target_qvalue_network, batch, actions, next_step=True).amin(0)
        if not self.deterministic_backup:
            values = values - alpha * log_prob
        return values.amax(0)
