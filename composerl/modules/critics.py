"""Action-value and state-value networks, as TensorDictModules."""

from __future__ import annotations

from collections.abc import Sequence

from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.envs import EnvBase
from typing_extensions import Unpack

from composerl.envs.spaces import Spaces
from composerl.modules.mlp import MLP, Head, Layers, Normalize, ObsStats

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
    normalize: ObsStats = False,
    **layers: Unpack[Layers],
) -> list[TensorDictModule]:
    """A list of independent critics: ``observation, action -> state_action_value`` ``(batch, 1)``.

    A list of so many (``number``), as TorchRL's own losses take it without initialising anew.
    """
    spaces = Spaces.of(env).require_box("twin_q")
    critics = []
    for _ in range(number):
        trunk = MLP(spaces.obs_dim + spaces.action_dim, 1, hidden, **layers)
        net = _StateAction(spaces, trunk, normalize)
        critics.append(TensorDictModule(net, ["observation", "action"], ["state_action_value"]))
    return critics


def value(
    env: EnvBase | Spaces,
    hidden: Sequence[int] = (256, 256),
    *,
    normalize: ObsStats = False,
    **layers: Unpack[Layers],
) -> TensorDictModule:
    """V(s): ``observation -> state_value`` ``(batch, 1)``."""
    spaces = Spaces.of(env)
    net: nn.Module = MLP(spaces.obs_dim, 1, hidden, **layers)
    if normalize:
        net = nn.Sequential(Normalize(spaces.obs_shape, normalize), net)
    return TensorDictModule(net, in_keys=["observation"], out_keys=["state_value"])
