"""A policy for discrete actions, as a TorchRL ``ProbabilisticActor``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Categorical
from torchrl.envs import EnvBase

from composerl.envs.spaces import Spaces
from composerl.modules.actors import Actor, make_actor
from composerl.modules.mlp import MLP, Head, ObsStats

__all__ = ["categorical_actor"]


class _CategoricalHead(Head):
    """Observation -> logits of the actions."""

    def forward(self, observation: Tensor) -> Tensor:
        return self.features(observation)

    def greedy(self, observation: Tensor) -> Tensor:
        return self(observation).argmax(-1)

    def explore(self, observation: Tensor) -> Tensor:
        logits = self(observation)
        # The largest of logits plus Gumbel noise is a sample, without a softmax and its checks.
        return (logits - torch.empty_like(logits).exponential_().log_()).argmax(-1)


def categorical_actor(
    env: EnvBase | Spaces,
    hidden: Sequence[int] = (64, 64),
    *,
    activation: str = "tanh",
    layer_norm: bool = False,
    init: str = "orthogonal",
    normalize: ObsStats = False,
) -> Actor:
    """A probability for each discrete action; the policy of PPO and GAIL.

    Actions are integers ``(batch,)``. With orthogonal initialisation the last layer starts small,
    so that all actions are about equally likely. Arguments as in
    :func:`~composerl.modules.gaussian_actor`.
    """
    spaces = Spaces.of(env).require_discrete("categorical_actor")
    trunk = MLP(spaces.obs_dim, spaces.action_dim, hidden, activation=activation,
                layer_norm=layer_norm, init=init, out_gain=0.01)  # fmt: skip
    head = _CategoricalHead(spaces, trunk, normalize)
    return make_actor("categorical_actor", head, spaces, Categorical, validate_args=False)
