"""Learned models of an environment: a probabilistic ensemble as one batched network."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.envs import EnvBase

from composerl.envs.spaces import Spaces

__all__ = ["Ensemble", "ensemble"]

#: Bounds of the log-variance before training; they are learned.
LOG_VAR_RANGE = (-10.0, 0.5)


class _BatchedLinear(nn.Module):
    """One linear layer per member: ``(members, rows, in) -> (members, rows, out)``."""

    def __init__(self, members: int, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(members, in_dim, out_dim))
        self.bias = nn.Parameter(torch.empty(members, 1, out_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        std = 0.5 / math.sqrt(self.weight.shape[1])
        nn.init.trunc_normal_(self.weight, std=std, a=-2 * std, b=2 * std)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, chosen: Tensor | None = None) -> Tensor:
        if chosen is None:
            return torch.baddbmm(self.bias, x, self.weight)
        return torch.baddbmm(self.bias[chosen], x, self.weight[chosen])


class Ensemble(nn.Module):
    """Several Gaussian models of (next observation - observation, reward), computed together.

    The layers have the members as their first dimension, so that one can be taken or restored
    without the others; the bounds of the variance are the same for all, as in PETS. The
    normaliser and the elites are buffers: they travel in the state dict.

    Attributes:
        elites: indices of the members that :meth:`forward` draws from.
        mean: of the inputs (observation and action side by side), which ``std`` divides then.
        target_mean: of the outputs (change and reward), which ``target_std`` multiplies before.
    """

    mean: Tensor
    std: Tensor
    target_mean: Tensor
    target_std: Tensor
    elites: Tensor

    def __init__(
        self, spaces: Spaces, hidden: Sequence[int], members: int, elites: int, terminates: bool
    ) -> None:
        super().__init__()
        if len(spaces.obs_shape) != 1:
            raise ValueError(f"ensemble needs flat observations, got shape {spaces.obs_shape}")
        if not 1 <= elites <= members:
            raise ValueError(f"elites must be in [1, members={members}], got {elites}")
        if not hidden or any(width < 1 for width in hidden):
            raise ValueError(f"hidden widths must be positive, got {tuple(hidden)}")
        self.members = members
        self.terminates = terminates
        self.out_dim = spaces.obs_dim + 1
        in_dim = spaces.obs_dim + spaces.action_dim
        sizes = [in_dim, *hidden, 2 * self.out_dim + int(terminates)]
        self.layers = nn.ModuleList(_BatchedLinear(members, n, m) for n, m in pairwise(sizes))
        low, high = LOG_VAR_RANGE
        self.min_log_var = nn.Parameter(torch.full((self.out_dim,), low))
        self.max_log_var = nn.Parameter(torch.full((self.out_dim,), high))
        self.register_buffer("mean", torch.zeros(sizes[0]))
        self.register_buffer("std", torch.ones(sizes[0]))
        self.register_buffer("target_mean", torch.zeros(self.out_dim))
        self.register_buffer("target_std", torch.ones(self.out_dim))
        self.register_buffer("elites", torch.arange(elites))

    @torch.no_grad()
    def set_normalizer(
        self, observation: Tensor, action: Tensor, target: Tensor | None = None
    ) -> None:
        """Standardise inputs as these rows are spread; what is constant in them is only shifted.

        With ``target`` (change and reward, ``(rows, obs + 1)``) the outputs too: otherwise what
        has the largest numbers, often the reward, is all that a model cares for.
        """
        pairs = [(torch.cat([observation, action], -1), self.mean, self.std)]
        pairs += [] if target is None else [(target, self.target_mean, self.target_std)]
        for x, mean, deviation in pairs:
            std = x.double().std(0, correction=0)
            mean.copy_(x.double().mean(0))
            deviation.copy_(torch.where(std < 1e-6, 1.0, std))

    def predict(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Mean and log-variance of (change of the observation, reward) by every member.

        Inputs are ``(rows, n)``, the same for all members, or ``(members, rows, n)``.

        Returns: mean and log-variance ``(members, rows, obs + 1)``, and the logit of a termination
        ``(members, rows)`` if the model has that head, else None.
        """
        x = self._normalize(observation, action)
        return self._heads(x.expand(self.members, *x.shape[-2:]), None)

    def forward(self, observation: Tensor, action: Tensor) -> tuple[Tensor, ...]:
        """Draw what follows: next observation, reward ``(..., 1)`` and, with a head, terminated.

        Every row is drawn from one elite, a random one. Rows are dealt out evenly, as a deck of
        cards is, so that each member computes its own rows and no others.
        """
        shape, rows = observation.shape[:-1], observation.shape[:-1].numel()
        x = self._normalize(observation, action).reshape(rows, -1)
        number = self.elites.shape[0]
        each = -(-rows // number)
        # On the CPU, so that a run draws the same on every device.
        place = torch.randperm(number * each)[:rows].to(x.device)
        dealt = x.new_zeros(number * each, x.shape[-1]).index_copy(0, place, x)
        mean, log_var, logit = self._heads(dealt.view(number, each, -1), self.elites)
        mean, log_var = (y.flatten(0, 1).index_select(0, place) for y in (mean, log_var))
        drawn = mean + (0.5 * log_var).exp() * torch.randn_like(mean)
        change, reward = drawn.reshape(*shape, -1).split([self.out_dim - 1, 1], -1)
        following = (observation + change, reward)
        if logit is None:
            return following
        terminated = logit.flatten().index_select(0, place) > 0
        return *following, terminated.reshape(*shape, 1)

    def _normalize(self, observation: Tensor, action: Tensor) -> Tensor:
        return (torch.cat([observation, action], -1) - self.mean) / self.std

    def _heads(self, x: Tensor, chosen: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        *inner, last = self.layers
        for layer in inner:
            # In place where no gradient needs the input: less memory to go through.
            x = F.silu(layer(x, chosen), inplace=not torch.is_grad_enabled())
        out = last(x, chosen)
        low, high = self.min_log_var, self.max_log_var
        mean, raw = out[..., : self.out_dim], out[..., self.out_dim : 2 * self.out_dim]
        log_var = high - F.softplus(high - raw)
        log_var = low + F.softplus(log_var - low)
        mean = torch.addcmul(self.target_mean, mean, self.target_std)
        log_var = log_var + 2 * self.target_std.log()
        return mean, log_var, out[..., -1] if self.terminates else None


def ensemble(
    env: EnvBase | Spaces,
    hidden: Sequence[int] = (200, 200, 200, 200),
    *,
    members: int = 7,
    elites: int = 5,
    terminates: bool = False,
) -> TensorDictModule:
    """A probabilistic ensemble of dynamics: PETS (Chua et al. 2018), MBPO (Janner et al. 2019).

    Reads ``observation`` and ``action``, writes ``("next", "observation")`` and
    ``("next", "reward")``, drawn from a random elite for each row. Train its :class:`Ensemble`
    (``.module``) with :class:`~composerl.losses.DynamicsLoss`; SiLU between the layers.

    Args:
        members: how many models.
        elites: how many of them are used; the first ones until they are chosen.
        terminates: learn when episodes terminate too, and write ``("next", "terminated")``.
    """
    spaces = Spaces.of(env).require_box("ensemble")
    model = Ensemble(spaces, hidden, members, elites, terminates)
    out_keys = [("next", "observation"), ("next", "reward")]
    out_keys += [("next", "terminated")] if terminates else []
    return TensorDictModule(model, in_keys=["observation", "action"], out_keys=out_keys)
