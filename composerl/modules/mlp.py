"""What turns observations, vectors or images, into features: perceptrons and trunks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import TypedDict

import torch
from torch import Tensor, nn

from composerl.envs.spaces import Spaces

__all__ = ["INITS", "MLP", "Head", "Layers", "Normalize", "ObsStats", "Trunk"]

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU, "elu": nn.ELU, "gelu": nn.GELU}
INITS = ("default", "orthogonal")

#: (channels, kernel, stride) of the convolutions: those of Nature DQN for images of 36 pixels or
#: more a side (their receptive field), and MinAtar's single one for smaller grids.
NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
GRID = ((16, 3, 1),)

#: Mean and standard deviation of the observations, or whether to make room for them.
ObsStats = tuple[Tensor, Tensor] | bool


class Layers(TypedDict, total=False):
    """The options of :class:`MLP` that factories of networks hand on."""

    activation: str
    layer_norm: bool
    init: str


class Normalize(nn.Module):
    """``(x - mean) / std`` with fixed statistics, which travel in the state dict."""

    mean: Tensor
    std: Tensor

    def __init__(self, shape: Sequence[int], stats: ObsStats = True) -> None:
        super().__init__()
        mean, std = (torch.zeros(shape), torch.ones(shape)) if isinstance(stats, bool) else stats
        if tuple(mean.shape) != tuple(shape) or tuple(std.shape) != tuple(shape):
            raise ValueError(
                f"observation statistics must have shape {tuple(shape)}, "
                f"got {tuple(mean.shape)} and {tuple(std.shape)}"
            )
        self.register_buffer("mean", mean.clone().float())
        self.register_buffer("std", std.clone().float())

    def forward(self, x: Tensor) -> Tensor:
        """Standardise the last dimensions of ``x``."""
        return (x - self.mean) / self.std


class Head(nn.Module):
    """Observation to what a trunk makes of it, standardised before if there are statistics."""

    def __init__(self, spaces: Spaces, trunk: MLP, normalize: ObsStats) -> None:
        super().__init__()
        self.normalize = Normalize(spaces.obs_shape, normalize) if normalize else None
        self.trunk = trunk

    def features(self, observation: Tensor, *others: Tensor) -> Tensor:
        """The trunk's outputs; ``others`` stand beside the observation."""
        x = observation if self.normalize is None else self.normalize(observation)
        return self.trunk(torch.cat([x, *others], -1) if others else x)


class MLP(nn.Sequential):
    """Linear layers with an activation between them: ``in_dim -> hidden... -> out_dim``.

    Args:
        in_dim: size of the input.
        out_dim: size of the output; no activation follows it.
        hidden: width of each hidden layer.
        activation: one of ``relu tanh silu elu gelu``.
        layer_norm: LayerNorm before each activation.
        init: ``default`` (PyTorch's) or ``orthogonal`` (gain sqrt 2, ``out_gain`` for the last
            layer, zero biases).
        out_gain: gain of the last layer's orthogonal initialisation.

    Attributes:
        arguments: ``hidden``, ``activation``, ``layer_norm`` and ``init`` as JSON can hold them.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        hidden: Sequence[int] = (256, 256),
        *,
        activation: str = "relu",
        layer_norm: bool = False,
        init: str = "default",
        out_gain: float = 1.0,
    ) -> None:
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {sorted(ACTIVATIONS)}, got {activation!r}")
        if init not in INITS:
            raise ValueError(f"init must be one of {INITS}, got {init!r}")
        layers = _hidden_layers(in_dim, hidden, activation, layer_norm=layer_norm)
        super().__init__(*layers, nn.Linear(hidden[-1] if hidden else in_dim, out_dim))
        self.arguments = {"hidden": list(hidden), "activation": activation,
                          "layer_norm": layer_norm, "init": init}  # fmt: skip
        if init == "orthogonal":
            *inner, last = self  # slicing a Sequential would build another MLP
            for layer in inner:
                _orthogonal_(layer, 2**0.5)
            _orthogonal_(last, out_gain)


def _hidden_layers(
    in_dim: int, hidden: Sequence[int], activation: str = "relu", *, layer_norm: bool = False
) -> list[nn.Module]:
    """Linear layers of these widths, each followed by its activation."""
    if any(width < 1 for width in hidden):
        raise ValueError(f"hidden widths must be positive, got {tuple(hidden)}")
    layers: list[nn.Module] = []
    for n, width in pairwise([in_dim, *hidden]):
        # ReLU's gradient needs only its output: in place it saves an allocation per layer.
        act = nn.ReLU(inplace=True) if activation == "relu" else ACTIVATIONS[activation]()
        layers += [nn.Linear(n, width), *([nn.LayerNorm(width)] if layer_norm else []), act]
    return layers


def _orthogonal_(layer: nn.Module, gain: float) -> None:
    """Orthogonal weights and zero biases for a linear layer; anything else is left alone."""
    if isinstance(layer, nn.Linear):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)


class Trunk(nn.Module):
    """Observation ``(..., *shape)`` to features ``(..., out_dim)``, each layer ending in a ReLU.

    Vectors go through linear layers. Images (channels, height, width) go through convolutions
    first: Nature DQN's (Mnih et al. 2015) from 36 pixels a side, one of 16 channels below that.
    uint8 is divided by 255; every other type is taken as it is.

    Args:
        spaces: whose observations.
        hidden: widths of the linear layers; images need none.
        layer_norm: LayerNorm before the ReLU of each linear layer.
    """

    def __init__(
        self, spaces: Spaces, hidden: Sequence[int] = (), *, layer_norm: bool = False
    ) -> None:
        super().__init__()
        shape = spaces.require_one_array("this network").obs_shape
        if len(shape) not in (1, 3):
            raise ValueError(
                "observations must be vectors (n,) or images (channels, height, width), "
                f"got shape {shape}"
            )
        if len(shape) == 1 and not hidden:
            raise ValueError(f"the trunk of observations of shape {shape} needs a hidden layer")
        self.obs_shape = shape
        self.convolutions: nn.Sequential | None = None
        size = shape[0]
        if len(shape) == 3:
            self.convolutions = _convolutions(shape)
            with torch.no_grad():
                size = prod(self.convolutions(torch.zeros(1, *shape)).shape)
        self.layers = nn.Sequential(*_hidden_layers(size, hidden, layer_norm=layer_norm))
        self.out_dim = hidden[-1] if hidden else size

    def forward(self, observation: Tensor) -> Tensor:
        """Features of a batch of observations."""
        x = observation
        if x.dtype == torch.uint8:
            x = x.to(next(self.parameters()).dtype).mul_(1 / 255)
        if self.convolutions is None:
            return self.layers(x)
        if x.shape[-3:] != self.obs_shape:
            raise ValueError(
                f"observations must have shape (..., {', '.join(map(str, self.obs_shape))}), "
                f"got {tuple(x.shape)}"
            )
        lead = x.shape[:-3]
        features = self.convolutions(x.reshape(-1, *self.obs_shape))
        return self.layers(features.reshape(*lead, -1))


def _convolutions(shape: Sequence[int]) -> nn.Sequential:
    channels, *sides = shape
    if min(sides) < 3:
        raise ValueError(f"images must be at least 3 pixels high and wide, got shape {shape}")
    layers: list[nn.Module] = []
    for out, kernel, stride in NATURE if min(sides) >= 36 else GRID:
        layers += [nn.Conv2d(channels, out, kernel, stride), nn.ReLU(inplace=True)]
        channels = out
    return nn.Sequential(*layers)
