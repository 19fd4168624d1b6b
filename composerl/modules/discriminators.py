"""Discriminators: who acted here, the expert or the policy?"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm as normalise_spectrum
from torchrl.envs import EnvBase
from typing_extensions import Unpack

from composerl.envs.spaces import Spaces
from composerl.modules.mlp import MLP, Layers

__all__ = ["Discriminator", "RunningNormalize", "discriminator"]


class RunningNormalize(nn.Module):
    """``(x - mean) / std`` with statistics of all that :meth:`update` was shown so far.

    They are buffers, so that a checkpoint has them. Calling the module never changes them, and
    neither does :meth:`update` in evaluation mode. Before the first update nothing is changed.
    """

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Take rows ``(n, *shape)`` into the statistics, as if all had come together."""
        if not self.training or not len(x):
            return
        self.count += len(x)
        share = (len(x) / self.count).to(self.mean.dtype)
        variance, mean = torch.var_mean(x.to(self.mean.dtype), 0, correction=0)
        # Chan et al. 1979: the distance of the means is a part of the variance of both together.
        between = share * (1 - share) * (mean - self.mean).square()
        self.variance.lerp_(variance, share).add_(between)
        self.mean.lerp_(mean, share)

    def forward(self, x: Tensor) -> Tensor:
        """Standardise the last dimensions of ``x``; the deviation is at least 0.001."""
        return (x - self.mean) / self.variance.sqrt().clamp_min(1e-3)


class _Pair(nn.Module):
    """Observation and action, each made of order 1, concatenated."""

    middle: Tensor
    half_range: Tensor

    def __init__(self, spaces: Spaces, trunk: MLP, normalize: bool) -> None:
        super().__init__()
        self.normalize = RunningNormalize(spaces.obs_shape) if normalize else None
        self.trunk = trunk
        self.num_actions = spaces.num_actions
        self.obs_ndim = len(spaces.obs_shape)
        if not spaces.discrete:
            low, high = torch.tensor(spaces.low), torch.tensor(spaces.high)
            bounded = torch.isfinite(high - low)
            self.register_buffer("middle", torch.where(bounded, (high + low) / 2, 0.0))
            self.register_buffer("half_range", torch.where(bounded, (high - low) / 2, 1.0))

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        first: Any = self.trunk[0]
        observation = observation.to(first.weight.dtype)
        if self.normalize is not None:
            observation = self.normalize(observation)
        observation = observation.flatten(observation.ndim - self.obs_ndim)
        if self.num_actions is None:
            action = (action - self.middle) / self.half_range
        elif action.ndim < observation.ndim or action.shape[-1] != self.num_actions:
            index = action.reshape(observation.shape[:-1])
            action = F.one_hot(index, self.num_actions)
        return self.trunk(torch.cat([observation, action.to(observation.dtype)], -1))


class Discriminator(TensorDictModule):
    """A TensorDictModule ``observation, action -> logits``, and the statistics of its inputs."""

    def observe(self, *observations: Tensor) -> None:
        """Take rows of observations into the input statistics (not in evaluation mode)."""
        if self.module.normalize is not None:
            for rows in observations:
                self.module.normalize.update(rows)


def discriminator(
    env: EnvBase | Spaces,
    hidden: Sequence[int] = (64, 64),
    *,
    normalize: bool = True,
    spectral_norm: bool = False,
    **layers: Unpack[Layers],
) -> Discriminator:
    """Logits ``(batch, 1)`` of a state-action pair being the expert's; for GAIL.

    Discrete actions may be integers ``(batch,)``, ``(batch, 1)`` or one-hot; the network sees them
    one-hot. Float actions are scaled by their bounds.

    Args:
        normalize: standardise observations by running statistics, which ``observe`` updates.
        spectral_norm: keep each layer's largest singular value at 1, which bounds the slope of
            the logits (Miyato et al. 2018, https://arxiv.org/abs/1802.05957).
    """
    spaces = Spaces.of(env).require_one_array("discriminator")
    trunk = MLP(prod(spaces.obs_shape) + spaces.action_dim, 1, hidden, **layers)
    if spectral_norm:
        for layer in trunk:
            if isinstance(layer, nn.Linear):
                normalise_spectrum(layer)
    return Discriminator(
        _Pair(spaces, trunk, normalize), in_keys=["observation", "action"], out_keys=["logits"]
    )
