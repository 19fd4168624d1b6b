"""Action-value and state-value networks, as TensorDictModules."""

from __future__ import annotations

from collections.abc import Sequence

from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.envs import EnvBase

from composerl.envs.spaces import Spaces
from composerl.modules.mlp import MLP, Head, Normalize, ObsStats

__all__ = ["twin_q", "value"]


class _StateAction(Head):
    """Q(s, a): observation and action concatenated."""

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        return self.features(observation, action)


def twin_q(
    env: EnvBase | Spaces,
    hidden: Sequence[int] = (256, 256),
    *,
    number: int = 2,
    activation: str = "relu",
    layer_norm: bool = False,
    init: str = "default",
    normalize: ObsStats = False,
) -> list[TensorDictModule]:
    """A list of independent critics: ``observation, action -> state_action_value`` ``(batch, 1)``.

    A list, because that is what TorchRL's own losses take without re-initialising the networks.
    ``number`` is how many; the other arguments are as in
    :func:`~composerl.modules.gaussian_actor`.
    """
    spaces = Spaces.of(env).require_box("twin_q")
    critics = []
    for _ in range(number):
        trunk = MLP(spaces.obs_dim + spaces.action_dim, 1, hidden, activation=activation,
                    layer_norm=layer_norm, init=init)  # fmt: skip
        net = _StateAction(spaces, trunk, normalize)
        critics.append(TensorDictModule(net, ["observation", "action"], ["state_action_value"]))
    return critics


def value(
    env: EnvBase | Spaces,
    hidden: Sequence[int] = (256, 256),
    *,
    activation: str = "relu",
    layer_norm: bool = False,
    init: str = "default",
    normalize: ObsStats = False,
) -> TensorDictModule:
    """V(s): ``observation -> state_value`` ``(batch, 1)``; arguments as in ``gaussian_actor``."""
    spaces = Spaces.of(env)
    net: nn.Module = MLP(spaces.obs_dim, 1, hidden, activation=activation,
                         layer_norm=layer_norm, init=init)  # fmt: skip
    if normalize:
        net = nn.Sequential(Normalize(spaces.obs_shape, normalize), net)
    return TensorDictModule(net, in_keys=["observation"], out_keys=["state_value"])
