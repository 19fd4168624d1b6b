"""Where :class:`~composerl.envs.Spaces` used to be; kept for code that imports it from here."""

from composerl.envs.opening import open_gym
from composerl.envs.spaces import Spaces

__all__ = ["Spaces", "open_gym"]
