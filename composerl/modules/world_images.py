"""How a world model sees and draws images."""

from itertools import pairwise
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from composerl.modules.world_convolutions import Doubling, Halving
from composerl.modules.world_parts import (
    EPSILON,
    BlockLinear,
    Dense,
    Linear,
    silu,
    truncated_normal_,
)
from composerl.modules.world_size import WorldSize

__all__ = ["ImageDecoder", "ImageEncoder", "PooledDecoder", "PooledEncoder"]

#: Grids that convolutions may end in.
GRID = (4, 7)
#: Channels of each stage with pooling, in multiples of the depth; later stages as the last.
_MULTIPLES = (2, 3, 4, 4)


def _stages(shape: tuple[int, ...]) -> int:
    """How often an image can be halved until its shorter side is 4 to 7."""
    if len(shape) == 3:
        height, width, stages = *shape[1:], 0
        while min(height, width) > GRID[1] and height % 2 == width % 2 == 0:
            height, width, stages = height // 2, width // 2, stages + 1
        if stages and GRID[0] <= min(height, width) <= GRID[1]:
            return stages
    raise ValueError(
        "a world model needs images (channels, height, width) whose sides can be halved until the "
        f"shorter is 4 to 7, for example (3, 64, 64), or vectors; got {tuple(shape)}"
    )


def _sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """Height and width of the grid that convolutions end in."""
    scale = 2 ** _stages(shape)
    return shape[1] // scale, shape[2] // scale


def _channels(shape: tuple[int, ...], depth: int) -> list[int]:
    """Channels of each stage with pooling."""
    return [depth * _MULTIPLES[min(stage, 3)] for stage in range(_stages(shape))]


def _initialize(layers: nn.Module) -> None:
    """The authors' initialisation of all convolutions."""
    for layer in layers.modules():
        if isinstance(layer, nn.Conv2d):
            truncated_normal_(layer.weight, prod(layer.weight.shape[1:]))
        elif isinstance(layer, nn.ConvTranspose2d):
            truncated_normal_(layer.weight, layer.weight.shape[0] * prod(layer.kernel_size))
        if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)) and layer.bias is not None:
            nn.init.zeros_(layer.bias)


class _ImageNorm(nn.Module):
    """Each image's activations at mean 0 and variance 1, then SiLU.

    One group per image: a norm over the channels of each pixel takes four times as long.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, channels)

    def forward(self, x: Tensor) -> Tensor:
        return silu(self.norm(x))


class _PixelNorm(nn.Module):
    """RMSNorm over the channels of each pixel, then SiLU: as published."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(channels, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        return silu(self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


class ImageEncoder(nn.Module):
    """Images ``(n, channels, height, width)`` in [0, 1] to features ``(n, out_dim)``.

    Each stage halves the sides by its stride and doubles the channels, from ``depth``.
    Activations are channels_last throughout, which convolutions on a CPU are fastest in; weights
    are not, as an optimizer's state, loaded from a file, would then have another order in memory
    than they.
    """

    def __init__(self, shape: tuple[int, ...], depth: int) -> None:
        super().__init__()
        channels = shape[0]
        layers: list[nn.Module] = []
        for stage in range(_stages(shape)):
            out = depth * 2**stage
            layers += [Halving(channels, out), _ImageNorm(out)]
            channels = out
        self.layers = nn.Sequential(*layers)
        self.out_dim = channels * prod(_sides(shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew, after the layers have had PyTorch's initialisation."""
        _initialize(self.layers)

    def forward(self, image: Tensor) -> Tensor:
        """Encode a batch of images."""
        x = self.layers(image.contiguous(memory_format=torch.channels_last) - 0.5)
        return x.permute(0, 2, 3, 1).flatten(1)  # in the order of memory: no copy


class ImageDecoder(nn.Module):
    """Features ``(n, in_dim)`` to images ``(n, channels, height, width)``: the encoder backwards.

    The images are means, about 0 to 1, not clipped. They start black, as most of a game's screen
    is: an optimizer would take hundreds of steps to move the last bias there.
    """

    def __init__(self, in_dim: int, shape: tuple[int, ...], depth: int) -> None:
        super().__init__()
        stages = _stages(shape)
        channels = depth * 2 ** (stages - 1)
        self.grid = (*_sides(shape), channels)
        self.linear = Linear(in_dim, prod(self.grid))
        layers: list[nn.Module] = [_ImageNorm(channels)]
        for stage in reversed(range(stages)):
            if stage == 0:
                # Without overlap: at full resolution a kernel of 4 takes twice as long.
                layers.append(Doubling(channels, shape[0], overlap=False))
                continue
            out = depth * 2 ** (stage - 1)
            layers += [Doubling(channels, out), _ImageNorm(out)]
            channels = out
        self.layers = nn.Sequential(*layers)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew, and be black, after the layers have had PyTorch's."""
        _initialize(self.layers)
        for parameter in self.layers[-1].parameters():
            nn.init.zeros_(parameter)

    def forward(self, features: Tensor) -> Tensor:
        """Decode a batch of features."""
        x = self.linear(features).view(-1, *self.grid).permute(0, 3, 1, 2)
        return self.layers(x)


class PooledEncoder(nn.Module):
    """Like :class:`ImageEncoder`, as published: convolutions of 5 x 5, pooled by 2 x 2."""

    def __init__(self, shape: tuple[int, ...], depth: int) -> None:
        super().__init__()
        channels = [shape[0], *_channels(shape, depth)]
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(i, o, 5, padding=2), nn.MaxPool2d(2), _PixelNorm(o))
                for i, o in pairwise(channels)
            )
        )
        self.out_dim = channels[-1] * prod(_sides(shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew, after the layers have had PyTorch's initialisation."""
        _initialize(self.layers)

    def forward(self, image: Tensor) -> Tensor:
        """Encode a batch of images."""
        x = self.layers(image.contiguous(memory_format=torch.channels_last) - 0.5)
        return x.permute(0, 2, 3, 1).flatten(1)


class PooledDecoder(nn.Module):
    """Like :class:`ImageDecoder`, as published: convolutions of 5 x 5 of doubled pixels.

    The grid that they start from is the sum of a block-diagonal layer of the recurrent state and
    of two layers of the latents. A sigmoid comes last.
    """

    def __init__(self, size: WorldSize, shape: tuple[int, ...]) -> None:
        super().__init__()
        channels = _channels(shape, size.depth)
        self.grid, self.deter = (*_sides(shape), channels[-1]), size.deter
        if channels[-1] % size.blocks:
            raise ValueError(
                f"size: {channels[-1]} channels cannot be divided into blocks={size.blocks}"
            )
        self.of_deter = BlockLinear(size.deter, prod(self.grid), size.blocks)
        self.of_stoch = nn.Sequential(
            Dense(size.stoch, 2 * size.units), Linear(2 * size.units, prod(self.grid))
        )
        self.norm = _PixelNorm(channels[-1])
        outs = [*channels[-2::-1], shape[0]]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(i, o, 5, padding=2) for i, o in zip([channels[-1], *outs], outs, strict=False)
        )
        self.norms = nn.ModuleList(_PixelNorm(o) for o in outs[:-1])
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew, after the layers have had PyTorch's initialisation."""
        _initialize(self.convolutions)

    def forward(self, features: Tensor) -> Tensor:
        """Decode a batch of features."""
        deter, stoch = features[:, : self.deter], features[:, self.deter :]
        height, width, channels = self.grid
        # A block holds some of the channels of all places.
        x = self.of_deter(self.of_deter.split(deter)).unflatten(-1, (height * width, -1))
        x = x.permute(1, 2, 0, 3).flatten(1) + self.of_stoch(stoch)
        x = x.view(-1, height, width, channels).permute(0, 3, 1, 2)
        x = self.norm(x)
        for convolution, norm in zip(self.convolutions, [*self.norms, torch.sigmoid], strict=True):
            x = norm(convolution(F.interpolate(x, scale_factor=2.0)))
        return x
