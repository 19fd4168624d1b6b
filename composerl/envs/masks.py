"""Action masks: environments that say which of their discrete actions are allowed."""

from typing import Any

import gymnasium as gym
import numpy as np

__all__ = ["MASK", "MaskedActions", "has_mask", "random_allowed", "with_mask"]

#: The name of a mask, in gymnasium's infos and observations, and as TorchRL's key.
MASK = "action_mask"


class MaskedActions(gym.Wrapper):
    """The mask always in ``info["action_mask"]``, bool ``(actions,)``, wherever it was.

    PettingZoo-like environments have it in a Dict observation, which is left without it here;
    others, as gymnasium's Taxi, in the info.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        assert isinstance(env.action_space, gym.spaces.Discrete)
        self._number = int(env.action_space.n)
        space = env.observation_space
        self._inside = isinstance(space, gym.spaces.Dict) and MASK in space.spaces
        if isinstance(space, gym.spaces.Dict) and self._inside:
            parts = {key: part for key, part in space.spaces.items() if key != MASK}
            alone = list(parts) == ["observation"]
            self.observation_space = parts["observation"] if alone else gym.spaces.Dict(parts)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        return self._apart(*self.env.reset(**options))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Act."""
        seen, reward, ended, cut, info = self.env.step(action)
        seen, info = self._apart(seen, info)
        return seen, reward, ended, cut, info

    def _apart(self, seen: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        mask = np.asarray(seen[MASK] if self._inside else info.get(MASK))
        if mask.shape != (self._number,) or mask.dtype.kind not in "biu":
            raise ValueError(
                f"{MASK} must be {self._number} flags, one for each action, got "
                f"{mask.dtype} of shape {mask.shape}"
            )
        if self._inside:
            rest = {key: part for key, part in seen.items() if key != MASK}
            seen = (
                rest if isinstance(self.observation_space, gym.spaces.Dict) else rest.popitem()[1]
            )
        return seen, {**info, MASK: mask.astype(bool)}


def with_mask(env: gym.Env) -> gym.Env:
    """The environment, wrapped if it has a mask: in its observations, or in the first info."""
    if not isinstance(getattr(env, "action_space", None), gym.spaces.Discrete) or has_mask(env):
        return env
    space = env.observation_space
    inside = isinstance(space, gym.spaces.Dict) and MASK in space.spaces
    # No space tells of infos; what is opened here is seeded when it is played.
    _, info = (None, {}) if inside else env.reset() or (None, {})
    return MaskedActions(env) if inside or MASK in info else env


def has_mask(env: Any) -> bool:
    """Whether a gymnasium environment, or any that it wraps, is one of :class:`MaskedActions`."""
    while isinstance(env, gym.Wrapper) and not isinstance(env, MaskedActions):
        env = env.env
    return isinstance(env, MaskedActions)


def random_allowed(mask: Any) -> Any:
    """A random action among those allowed, for each row of a mask, a bool tensor."""
    return mask.float().uniform_().masked_fill(~mask, -1.0).argmax(-1)
