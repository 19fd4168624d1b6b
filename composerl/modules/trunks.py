"""Trunks: what turns an observation, a vector or an image, into features."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from composerl.envs.spaces import Spaces
from composerl.modules.mlp import hidden_layers

__all__ = ["Trunk"]

#: (channels, kernel, stride) of the convolutions: those of Nature DQN for images of 36 pixels or
#: more a side (their receptive field), and MinAtar's single one for smaller grids.
NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
GRID = ((16, 3, 1),)


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
        shape = spaces.obs_shape
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
        self.layers = nn.Sequential(*hidden_layers(size, hidden, layer_norm=layer_norm))
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
