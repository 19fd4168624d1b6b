"""What the networks of a world model are made of: layers, heads, categorical latents."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["BlockLinear", "Dense", "Head", "Linear", "dense_layers", "draw", "join", "mix_uniform",
           "silu", "tanh", "truncated_normal_"]  # fmt: skip

#: Share of the uniform distribution in every categorical: no class is ever impossible.
UNIFORM = 0.01
#: What is added to the mean square under the root of every norm.
EPSILON = 1e-4
#: One over the deviation of a normal distribution that is cut off at two deviations.
_WIDENED = 1.1368


def silu(x: Tensor) -> Tensor:
    """SiLU, in place where no gradient needs its input (which would be copied first)."""
    return F.silu(x, inplace=not torch.is_grad_enabled())


def tanh(x: Tensor) -> Tensor:
    """As a sigmoid, which takes PyTorch a fourth of the time; off by 2e-7 at most."""
    return 2 * (2 * x).sigmoid() - 1


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
    below = torch.searchsorted(probs.cumsum(-1), noise)
    return below.clamp_max(probs.shape[-1] - 1)  # the cumulated sum may round to less than 1


@torch.no_grad()
def truncated_normal_(weight: Tensor, fan_in: int, scale: float = 1.0) -> None:
    """The authors' initialisation: variance ``scale**2 / fan_in``, cut off at two deviations."""
    std = _WIDENED * fan_in**-0.5
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)
    weight.mul_(scale)


class Linear(nn.Linear):
    """``nn.Linear`` with the authors' initialisation, the bias at 0.

    Args:
        fan_in: inputs that are counted, where this is but a part of a wider layer.
        scale: factor of the initial weights; at 0 the output starts at 0.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        fan_in: int | None = None,
        scale: float = 1.0,
    ) -> None:
        self.fan_in, self.scale = fan_in or in_features, scale
        super().__init__(in_features, out_features, bias=bias)

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        truncated_normal_(self.weight, self.fan_in, self.scale)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class BlockLinear(nn.Module):
    """A linear layer whose weights are a block-diagonal matrix, of ``blocks`` blocks.

    The weights have the shape (blocks, inputs, outputs of a block), the outputs
    ``(blocks, batch, outputs of a block)``.

    Args:
        fan_in: inputs that are counted by the initialisation; the authors count those of all
            blocks, not of one.
    """

    def __init__(
        self, in_features: int, out_features: int, blocks: int, fan_in: int | None = None
    ) -> None:
        super().__init__()
        self.blocks, self.fan_in = blocks, fan_in or in_features
        self.weight = nn.Parameter(
            torch.empty(blocks, in_features // blocks, out_features // blocks)
        )
        self.bias = nn.Parameter(torch.empty(blocks, 1, out_features // blocks))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        truncated_normal_(self.weight, self.fan_in)
        nn.init.zeros_(self.bias)

    def split(self, x: Tensor) -> Tensor:
        """``(batch, features)`` as ``(blocks, batch, features of a block)``, a view."""
        return x.unflatten(-1, (self.blocks, -1)).transpose(0, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply inputs ``(blocks, batch, inputs of a block)``."""
        if self.blocks == 1:
            return torch.addmm(self.bias[0], x[0], self.weight[0]).unsqueeze(0)
        return torch.baddbmm(self.bias, x, self.weight)


def join(x: Tensor) -> Tensor:
    """``(blocks, batch, features of a block)`` as ``(batch, features)``."""
    return x[0] if len(x) == 1 else x.transpose(0, 1).flatten(1)


class Dense(nn.Module):
    """A linear layer, RMSNorm, SiLU; ``fan_in`` as in :class:`Linear`."""

    def __init__(self, in_features: int, out_features: int, fan_in: int | None = None) -> None:
        super().__init__()
        self.linear = Linear(in_features, out_features, fan_in=fan_in)
        self.norm = nn.RMSNorm(out_features, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """Evaluate the layer."""
        return self.after(self.linear(x))

    def after(self, x: Tensor) -> Tensor:
        """What follows on the linear layer."""
        return silu(self.norm(x))


class Head(nn.Module):
    """Features ``(..., in_dim)`` to ``(..., out_dim)``: dense layers; last a linear one.

    Args:
        units: width of the hidden layers, of which there are ``layers``.
        out_scale: factor of the last layer's initial weights; at 0 the output starts at 0.
    """

    def __init__(
        self, in_dim: int, out_dim: int, units: int, layers: int = 1, out_scale: float = 1.0
    ) -> None:
        super().__init__()
        self.hidden = dense_layers(in_dim, [units] * layers)
        self.last = Linear(units, out_dim, scale=out_scale)

    def forward(self, x: Tensor) -> Tensor:
        """Evaluate the head."""
        return self.last(self.hidden(x))


def dense_layers(in_dim: int, widths: Sequence[int]) -> nn.Sequential:
    """Dense layers of these widths, one after the other."""
    ins = [in_dim, *widths[:-1]]
    return nn.Sequential(*(Dense(n, width) for n, width in zip(ins, widths, strict=True)))
