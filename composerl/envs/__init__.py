"""Environments: gymnasium ids and factories as TorchRL environments, and what they look like."""

from typing import TYPE_CHECKING

from composerl._lazy import lazy

if TYPE_CHECKING:
    from composerl.envs.games import open_game
    from composerl.envs.make import make_env
    from composerl.envs.opening import open_gym
    from composerl.envs.spaces import Spaces

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
