"""What a world model is made of: image encoder and decoder, dense heads, categorical latents."""

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Head", "ImageDecoder", "ImageEncoder", "draw", "mix_uniform", "silu"]

#: Share of the uniform distribution in every categorical: no class is ever impossible.
UNIFORM = 0.01
#: Grids that convolutions may end in.
GRID = (4, 7)


def silu(x: Tensor) -> Tensor:
    """SiLU, in place where no gradient needs its input (which would be copied first)."""
    return F.silu(x, inplace=not torch.is_grad_enabled())


def mix_uniform(logits: Tensor) -> Tensor:
    """Probabilities ``(..., classes)``: 99 % softmax of the logits, 1 % uniform."""
    return logits.softmax(-1) * (1 - UNIFORM) + UNIFORM / logits.shape[-1]


def draw(probs: Tensor, noise: Tensor | None) -> Tensor:
    """Integers ``(..., 1)`` from probabilities ``(..., classes)``; the likeliest without noise.

    By the inverse of the cumulated probabilities: one uniform number ``noise`` ``(..., 1)`` each,
    a fifth of the time of Gumbel noise or ``torch.multinomial``.
    """
    if noise is None:
        return probs.argmax(-1, keepdim=True)
    below = (probs.cumsum(-1) < noise).sum(-1, keepdim=True)
    return below.clamp_max(probs.shape[-1] - 1)  # the cumulated sum may round to less than 1


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
        f"shorter is 4 to 7, for example (3, 64, 64); got {tuple(shape)}"
    )


class _Norm(nn.Module):
    """Each image's activations at mean 0 and variance 1, then SiLU.

    One group per image: a norm over the channels of each pixel takes four times as long.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, channels)

    def forward(self, x: Tensor) -> Tensor:
        return silu(self.norm(x))


class ImageEncoder(nn.Module):
    """Images ``(n, channels, height, width)`` in [0, 1] to features ``(n, out_dim)``.

    Each stage halves the sides and doubles the channels, from ``depth``. Activations are
    channels_last throughout, which convolutions on a CPU are fastest in; weights are not, as an
    optimizer's state, loaded from a file, would then have another order in memory than they.
    """

    def __init__(self, shape: tuple[int, ...], depth: int) -> None:
        super().__init__()
        channels = shape[0]
        layers: list[nn.Module] = []
        for stage in range(_stages(shape)):
            out = depth * 2**stage
            layers += [nn.Conv2d(channels, out, 4, 2, 1), _Norm(out)]
            channels = out
        self.layers = nn.Sequential(*layers)
        scale = 2 ** _stages(shape)
        self.out_dim = channels * shape[1] // scale * (shape[2] // scale)

    def forward(self, image: Tensor) -> Tensor:
        """Encode a batch of images."""
        x = self.layers(image.contiguous(memory_format=torch.channels_last) - 0.5)
        return x.permute(0, 2, 3, 1).flatten(1)  # in the order of memory: no copy


class ImageDecoder(nn.Module):
    """Features ``(n, in_dim)`` to images ``(n, channels, height, width)``: the encoder backwards.

    The images are means, about 0 to 1, not clipped. They start black, as most of a game's screen
    is: Adam would take hundreds of steps to move the last bias there.
    """

    def __init__(self, in_dim: int, shape: tuple[int, ...], depth: int) -> None:
        super().__init__()
        stages = _stages(shape)
        sides = (shape[1] // 2**stages, shape[2] // 2**stages)
        channels = depth * 2 ** (stages - 1)
        self.grid = (*sides, channels)
        self.linear = nn.Linear(in_dim, prod(self.grid))
        layers: list[nn.Module] = [_Norm(channels)]
        for stage in reversed(range(stages)):
            if stage == 0:
                # Without overlap: at full resolution a kernel of 4 takes twice as long.
                layers.append(nn.ConvTranspose2d(channels, shape[0], 2, 2))
                continue
            out = depth * 2 ** (stage - 1)
            layers += [nn.ConvTranspose2d(channels, out, 4, 2, 1), _Norm(out)]
            channels = out
        self.layers = nn.Sequential(*layers)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Black, after the layers have had PyTorch's initialisation."""
        for parameter in self.layers[-1].parameters():
            nn.init.zeros_(parameter)

    def forward(self, features: Tensor) -> Tensor:
        """Decode a batch of features."""
        x = self.linear(features).view(-1, *self.grid).permute(0, 3, 1, 2)
        return self.layers(x)


class Head(nn.Module):
    """Features ``(..., in_dim)`` to ``(..., out_dim)``: linear, LayerNorm, SiLU; last a linear one.

    Args:
        units: width of the hidden layers, of which there are ``layers``.
        out_scale: factor of the last layer's initial weights; at 0 the output starts at 0.
    """

    def __init__(
        self, in_dim: int, out_dim: int, units: int, layers: int = 1, out_scale: float = 1.0
    ) -> None:
        super().__init__()
        widths = [in_dim, *[units] * layers]
        self.linears = nn.ModuleList(nn.Linear(n, units, bias=False) for n in widths[:-1])
        # LayerNorm, not RMSNorm: the former is one fused call on a CPU, the latter is not.
        self.norms = nn.ModuleList(nn.LayerNorm(units) for _ in range(layers))
        self.last = nn.Linear(widths[-1], out_dim)
        self.out_scale = out_scale
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Scale the last layer, after it has had PyTorch's initialisation."""
        nn.init.zeros_(self.last.bias)
        self.last.weight.mul_(self.out_scale)

    def forward(self, x: Tensor) -> Tensor:
        """Evaluate the head."""
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x = silu(norm(linear(x)))
        return self.last(x)
