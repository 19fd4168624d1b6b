"""Networks of return distributions: quantiles at any fraction (IQN), proposed fractions (FQF).

What the losses call (any module with these works):

- the value network: ``in_keys``; ``features(*inputs)`` -> ``(batch, d)``;
  ``quantiles(features, taus)`` -> ``(batch, actions, n)`` for fractions ``(batch, n)`` or ``(n,)``;
- FQF's fraction network: called with features, returns ``taus`` ``(batch, n + 1)``, ``tau_hats``
  ``(batch, n)`` and the fractions' entropy ``(batch,)``.
"""

from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import Tensor, nn

from composerl.envs.spaces import Spaces
from composerl.modules.mlp import MLP, Trunk

__all__ = ["FractionProposal", "QuantileNetwork", "Shape", "check_count"]


class Shape(TypedDict, total=False):
    """The options of :class:`QuantileNetwork` that factories hand on."""

    head_layers: int
    embedding_dim: int
    layer_norm: bool
    dueling: bool


class QuantileNetwork(nn.Module):
    r"""Quantiles of the return of each action, at any fractions (Dabney et al. 2018).

    .. math:: F(s, \tau) = head(\psi(s) \odot ReLU(W c(\tau) + b)), \quad
        c_i(\tau) = \cos(\pi i \tau), \; i = 1, ..., embedding\_dim

    Args:
        spaces: observations (vectors or images) and discrete actions.
        hidden: widths of the trunk :math:`\psi`, then those of the head. Images need no trunk
            width: ``(512,)`` is the paper's network.
        head_layers: how many of the widths, the last ones, are the head's; 0 for a linear head.
        embedding_dim: number of cosines.
        layer_norm: LayerNorm before the ReLUs of trunk and head.
        dueling: the head has two streams, V + A - mean A (Wang et al. 2016).

    Attributes:
        arguments: ``hidden`` and the options as JSON can hold them.
    """

    frequencies: Tensor

    def __init__(
        self,
        spaces: Spaces,
        hidden: Sequence[int] = (128, 128),
        *,
        head_layers: int = 1,
        embedding_dim: int = 64,
        layer_norm: bool = False,
        dueling: bool = False,
    ) -> None:
        super().__init__()
        check_count("embedding_dim", embedding_dim)
        check_count("head_layers", head_layers, 0)
        needed = head_layers + (len(spaces.obs_shape) == 1)
        if len(hidden) < needed:
            raise ValueError(
                f"hidden must hold the trunk's widths and those of the head (head_layers="
                f"{head_layers}): at least {needed} for observations of shape "
                f"{spaces.obs_shape}, got {tuple(hidden)}"
            )
        self.in_keys = ["observation"]
        self.arguments = {"hidden": list(hidden), "head_layers": head_layers,
                          "embedding_dim": embedding_dim, "layer_norm": layer_norm,
                          "dueling": dueling}  # fmt: skip
        split = len(hidden) - head_layers
        self.trunk = Trunk(spaces, hidden[:split], layer_norm=layer_norm)
        size, last = self.trunk.out_dim, hidden[split:]
        self.embedding = nn.Linear(embedding_dim, size)
        self.head = MLP(size, spaces.action_dim, last, layer_norm=layer_norm)
        self.value = MLP(size, 1, last, layer_norm=layer_norm) if dueling else None
        frequencies = torch.pi * torch.arange(1, embedding_dim + 1)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def features(self, observation: Tensor) -> Tensor:
        """Psi(s), ``(batch, d)``."""
        return self.trunk(observation)

    def quantiles(self, features: Tensor, taus: Tensor) -> Tensor:
        """F(s, tau) of every action, ``(batch, actions, n)``, at ``(batch, n)`` or ``(n,)``."""
        # Rows instead of (batch, n): a linear layer returns a view of more dimensions, and its
        # ReLU in place would copy it.
        cosines = (taus.reshape(-1, 1) * self.frequencies).cos_()
        embedded = self.embedding(cosines).relu_().view(*taus.shape, -1)
        features = features.unsqueeze(-2)
        # Fresh megabytes cost more than the arithmetic on them; a gradient needs both factors.
        reuse = not torch.is_grad_enabled() and embedded.ndim == features.ndim
        joined = embedded.mul_(features) if reuse else embedded * features
        rows = joined.flatten(0, -2)
        out = self.head(rows)
        if self.value is not None:
            out = out + (self.value(rows) - out.mean(-1, keepdim=True))
        return out.view(*joined.shape[:-1], -1).transpose(-1, -2)

    def forward(self, observation: Tensor, taus: Tensor) -> Tensor:
        """Quantiles ``(batch, actions, n)`` of observations at fractions."""
        return self.quantiles(self.features(observation), taus)


class FractionProposal(nn.Linear):
    """FQF's fractions of a state: one linear layer, softmax, cumulative sum (Yang et al. 2019).

    It reads *detached* features, so that nothing but this layer learns from the fraction loss.
    ``num_quantiles`` is n, how many intervals (0, 1) is cut into.
    """

    def __init__(self, in_features: int, num_quantiles: int = 32) -> None:
        check_count("num_quantiles", num_quantiles, 2)
        super().__init__(in_features, num_quantiles)

    def reset_parameters(self) -> None:
        """Nearly uniform fractions: Xavier with gain 0.01."""
        nn.init.xavier_uniform_(self.weight, gain=0.01)
        nn.init.zeros_(self.bias)

    # A Linear by its weights alone: it returns more than one tensor.
    def forward(  # type: ignore[override]
        self, features: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``taus`` (0 first, 1 last), their midpoints ``tau_hats``, and the entropy.

        Shapes ``(batch, n + 1)``, ``(batch, n)`` and ``(batch,)``.
        """
        log_shares = super().forward(features.detach()).log_softmax(-1)
        shares = log_shares.exp()
        inner = shares.cumsum(-1)[..., :-1]
        edge = inner[..., :1]
        taus = torch.cat([torch.zeros_like(edge), inner, torch.ones_like(edge)], -1)
        tau_hats = (taus[..., 1:] + taus[..., :-1]) / 2
        return taus, tau_hats, -(shares * log_shares).sum(-1)


def check_count(name: str, value: int, least: int = 1) -> None:
    """Refuse what is no integer of at least ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
