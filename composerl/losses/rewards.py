"""The reward of adversarial imitation, from a discriminator's logits."""

import math
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor

from composerl.losses.arguments import check_number
from composerl.losses.calling import call_network
from composerl.losses.reading import read

__all__ = ["GAILReward", "gail_reward"]

GAIL_REWARDS = ("softplus", "log_d", "airl")


def gail_reward(logits: Tensor, kind: str = "softplus") -> Tensor:
    r"""What the policy is paid for looking like the expert, from the discriminator's logits.

    With D the probability that a pair is the expert's:

    - ``softplus``: :math:`-\log(1 - D)`. Never negative, so that staying alive is paid for;
    - ``log_d``: :math:`\log D`. Never positive, so that ending early is paid for;
    - ``airl``: the logits, :math:`\log D - \log(1 - D)`, of both signs (Fu et al. 2018,
      https://arxiv.org/abs/1710.11248).
    """
    if kind not in GAIL_REWARDS:
        raise ValueError(f"the reward must be one of {GAIL_REWARDS}, got {kind!r}")
    if kind == "airl":
        return logits
    return F.softplus(logits) if kind == "softplus" else -F.softplus(-logits)


class GAILReward(TensorDictModuleBase):
    r"""Puts a discriminator's reward in the place of the environment's.

    Paper: Ho & Ermon 2016, https://arxiv.org/abs/1606.03476; the forms of the reward are those of
    :func:`~composerl.losses.gail_reward`.

    The plain reward is biased where episodes end at different times (Kostrikov et al. 2019,
    https://arxiv.org/abs/1809.02925): with ``softplus``, whose rewards are positive, whoever lives
    longer is paid more, be it what the expert does or not. Their cure is to let a terminated
    episode go on, in an absorbing state that the discriminator judges like any other. Given
    ``gamma`` and ``expert_terminated`` this is done here, in closed form: the absorbing state is
    one point, where the best logits are the logarithm of a ratio of frequencies. With
    :math:`e` and :math:`p` the shares of time that expert and policy spend there, if each end is
    followed by :math:`1/(1-\gamma)` steps of it,

    .. math::
        l(s, a) \mathrel{+}= \log \frac{1 - e}{1 - p}, \qquad
        r_T \mathrel{+}= \frac{\gamma}{1-\gamma} \, r\big(\log \tfrac{e}{p}\big)

    the first since the discriminator compares living states only, the second (for steps that
    terminate) the return of staying there for ever.

    Args:
        discriminator: reads observation and action, writes ``logits`` ``(*batch, 1)``.
        kind: ``softplus``, ``log_d`` or ``airl``.

    Keyword Args:
        gamma: discount of the policy's returns, in [0, 1); needed with ``expert_terminated``.
        expert_terminated: share of the expert's steps that terminate (time limits do not), in
            (0, 1); with none in n steps say 0.5 / (n + 1). None leaves the absorbing state out.

    Reads the discriminator's ``in_keys``, ``("next", "reward")`` and ``("next", "terminated")``;
    the policy's share is that of the batch, which should be a whole on-policy batch. Writes
    ``("next", "reward")`` and ``("next", "env_reward")``: what the environment said, for logging
    only (kept if it is there already). Warns, once, if episodes terminate, the reward has one sign
    and the absorbing state is left out.
    """

    # Numbers wherever the absorbing state counts; the constructor sees to it.
    gamma: Any
    expert_terminated: Any

    def __init__(
        self,
        discriminator: TensorDictModule,
        kind: str = "softplus",
        *,
        gamma: float | None = None,
        expert_terminated: float | None = None,
    ) -> None:
        super().__init__()
        if kind not in GAIL_REWARDS:
            raise ValueError(f"kind must be one of {GAIL_REWARDS}, got {kind!r}")
        if expert_terminated is not None:
            check_number("expert_terminated", expert_terminated, "(0, 1)")
            check_number("gamma", gamma, "[0, 1)")
        self.discriminator = discriminator
        self.kind = kind
        self.gamma = gamma
        self.expert_terminated = expert_terminated
        self.in_keys = [*discriminator.in_keys, ("next", "reward"), ("next", "terminated")]
        self.out_keys = [("next", "reward"), ("next", "env_reward")]
        self._unbiased = kind == "airl" or expert_terminated is not None

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Replace the rewards of a batch of transitions."""
        given = read(tensordict, ("next", "reward"))
        logits = call_network(self.discriminator, tensordict, "logits")
        if logits.shape != given.shape:
            raise ValueError(
                f"logits must have the reward's shape {tuple(given.shape)}, "
                f"got {tuple(logits.shape)}"
            )
        ends = read(tensordict, ("next", "terminated"))
        if not self._unbiased and ends.any():
            self._unbiased = True  # say it once
            paid = "positive: living" if self.kind == "softplus" else "negative: ending"
            warnings.warn(
                f"episodes end at different times and {self.kind} rewards are always {paid} is "
                "paid for, whatever the expert does; give expert_terminated, or use airl",
                stacklevel=2,
            )
        if self.expert_terminated is None:
            reward = gail_reward(logits, self.kind)
        else:
            alive, absorbing = self.absorbing_logits(ends)
            after = self.gamma / (1 - self.gamma) * gail_reward(absorbing, self.kind)
            reward = gail_reward(logits + alive, self.kind) + ends * after
        if ("next", "env_reward") not in tensordict.keys(True):
            tensordict.set(("next", "env_reward"), given)
        return tensordict.set(("next", "reward"), reward)

    def absorbing_logits(self, terminated: Tensor) -> tuple[Tensor, Tensor]:
        """What to add to the logits of living states, and the logits of the absorbing one."""
        horizon = 1 / (1 - self.gamma)
        # Half an end more than were seen: none in a batch does not mean that none can happen.
        policy = horizon * (terminated.sum() + 0.5) / (terminated.numel() + 1)
        expert = horizon * self.expert_terminated
        # The shares are x / (1 + x), and the rest of the time 1 / (1 + x).
        alive = (1 + policy).log() - math.log1p(expert)
        return alive, alive + math.log(expert) - policy.log()
