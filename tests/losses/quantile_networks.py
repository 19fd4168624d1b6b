"""Stand-ins for quantile networks: a formula of state, action and fraction; a list of calls."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDict
from torch import Tensor, nn


class Formula(nn.Module):
    """F(s, a, tau) = table[s, a] + scale[a] * shape(tau); the observation is the state's number."""

    def __init__(
        self, table: list[list[float]], scale: list[float], shape: Callable = lambda tau: tau
    ) -> None:
        super().__init__()
        self.in_keys = ["observation"]
        self.table = nn.Parameter(torch.tensor(table))
        self.scale = nn.Parameter(torch.tensor(scale))
        self.shape = shape

    def features(self, observation: Tensor) -> Tensor:
        return self.table[observation.squeeze(-1).long()]

    def quantiles(self, features: Tensor, taus: Tensor) -> Tensor:
        return features[..., None] + self.scale[:, None] * self.shape(taus)[..., None, :]


class Recorder(nn.Module):
    """A quantile network that remembers the fractions it was asked for."""

    def __init__(self, network: nn.Module, calls: list[Tensor]) -> None:
        super().__init__()
        self.network, self.calls, self.in_keys = network, calls, network.in_keys

    def features(self, observation: Tensor) -> Tensor:
        return self.network.features(observation)

    def quantiles(self, features: Tensor, taus: Tensor) -> Tensor:
        self.calls.append(taus)
        return self.network.quantiles(features, taus)


def record(loss: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Make the loss's online and target network record their fractions."""
    online, target = [], []
    loss.value_network = Recorder(loss.value_network, online)
    loss.target_value_network = Recorder(loss.target_value_network, target)
    return online, target


def transition(
    state: int,
    action: int,
    reward: float,
    next_state: int,
    *,
    terminated: bool = False,
    truncated: bool = False,
    steps: int | None = None,
) -> TensorDict:
    batch = TensorDict(
        {
            "observation": torch.tensor([[float(state)]]),
            "action": torch.tensor([action]),
            "next": {
                "observation": torch.tensor([[float(next_state)]]),
                "reward": torch.tensor([[reward]]),
                "done": torch.tensor([[terminated or truncated]]),
                "terminated": torch.tensor([[terminated]]),
                "truncated": torch.tensor([[truncated]]),
            },
        },
        [1],
    )
    if steps is not None:
        batch.set("steps_to_next_obs", torch.tensor([[steps]]))
    return batch
