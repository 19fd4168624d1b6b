"""Multi-layer perceptrons and input normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["ACTIVATIONS", "INITS", "MLP", "Normalize", "ObsStats", "orthogonal_"]

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU, "elu": nn.ELU, "gelu": nn.GELU}
INITS = ("default", "orthogonal")

#: Mean and standard deviation of the observations, or whether to make room for them.
ObsStats = tuple[Tensor, Tensor] | bool


class Normalize(nn.Module):
    """``(x - mean) / std`` with fixed statistics, which travel in the state dict."""

    def __init__(self, shape: Sequence[int], stats: ObsStats = True) -> None:
        super().__init__()
        mean, std = (torch.zeros(shape), torch.ones(shape)) if stats is True else stats
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
        if any(width < 1 for width in hidden):
            raise ValueError(f"hidden widths must be positive, got {tuple(hidden)}")
        layers: list[nn.Module] = []
        for width in hidden:
            layers.append(nn.Linear(in_dim, width))
            if layer_norm:
                layers.append(nn.LayerNorm(width))
            layers.append(_activation(activation))
            in_dim = width
        super().__init__(*layers, nn.Linear(in_dim, out_dim))
        if init == "orthogonal":
            *inner, last = self  # slicing a Sequential would build another MLP
            for layer in inner:
                orthogonal_(layer, 2**0.5)
            orthogonal_(last, out_gain)


def orthogonal_(layer: nn.Module, gain: float) -> None:
    """Orthogonal weights and zero biases for a linear layer; anything else is left alone."""
    if isinstance(layer, nn.Linear):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)


def _activation(name: str) -> nn.Module:
    # ReLU's gradient needs only its output: in place it saves an allocation per layer.
    return nn.ReLU(inplace=True) if name == "relu" else ACTIVATIONS[name]()
