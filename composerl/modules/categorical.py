"""A policy for discrete actions, as a TorchRL ``ProbabilisticActor``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.distributions import Categorical as CategoricalDistribution
from torchrl.data import Categorical
from torchrl.envs import EnvBase

from composerl.envs.spaces import Spaces
from composerl.modules.actors import Actor
from composerl.modules.mlp import MLP, Normalize, ObsStats

__all__ = ["categorical_actor"]


class _CategoricalHead(nn.Module):
    """Observation -> logits of the actions."""

    def __init__(self, spaces: Spaces, trunk: MLP, normalize: ObsStats) -> None:
        super().__init__()
        self.normalize = Normalize(spaces.obs_shape, normalize) if normalize else None
        self.trunk = trunk

    def forward(self, observation: Tensor) -> Tensor:
        return self.trunk(observation if self.normalize is None else self.normalize(observation))

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
    trunk = MLP(spaces.obs_dim, spaces.num_actions, hidden, activation=activation,
                layer_norm=layer_norm, init=init, out_gain=0.01)  # fmt: skip
    head = _CategoricalHead(spaces, trunk, normalize)
    actor = Actor(
        module=TensorDictModule(head, in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        spec=Categorical(spaces.num_actions),
        distribution_class=CategoricalDistribution,
        distribution_kwargs={"validate_args": False},
    )
    actor.description = {
        "factory": "categorical_actor",
        "spaces": spaces.to_json(),
        "arguments": {"hidden": list(hidden), "activation": activation, "layer_norm": layer_norm,
                      "init": init, "normalize": bool(normalize)},
    }  # fmt: skip
    return actor
