"""What open environments say of their observations and actions: the fields of ``Spaces``."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from composerl.envs.masks import MASK, has_mask
from composerl.envs.opening import flat_space

__all__ = ["fields_of_gym", "fields_of_torchrl"]


def fields_of_gym(env: Any) -> dict[str, Any]:
    """Those of a gymnasium environment, or of each in a vector of them."""
    space = flat_space(getattr(env, "single_observation_space", env.observation_space))
    action = getattr(env, "single_action_space", env.action_space)
    seen = {"obs_shape": space.shape, "obs_dtype": _obs_dtype(space.dtype), **_inside(space)}
    if isinstance(action, gym.spaces.Discrete):
        if action.start != 0:
            raise ValueError(
                f"discrete actions must start at 0, got {action}; wrap the environment with "
                "gymnasium's TransformAction"
            )
        masked = has_mask(getattr(env, "envs", [env])[0])
        return {**seen, "num_actions": int(action.n), "masked": masked}
    if not isinstance(action, gym.spaces.Box) or len(action.shape) != 1:
        known = "Discrete and one-dimensional Box actions"
        raise ValueError(f"only {known} are supported, got {action}")
    return {**seen, "low": _floats(action.low), "high": _floats(action.high)}


def fields_of_torchrl(env: Any) -> dict[str, Any]:
    """Those of a TorchRL environment, with the transforms that it has."""
    # Not above: who generates data needs no torch.
    from torchrl.data import Bounded, Categorical, OneHot, Unbounded
    from torchrl.envs import GymWrapper, TransformedEnv

    if "observation" not in env.observation_spec.keys():  # noqa: SIM118
        names = ", ".join(map(str, env.observation_spec.keys(True, True)))
        raise ValueError(
            f"the environment has no 'observation', but {names}: join or rename them by a "
            "transform, for example CatTensors(out_key='observation')"
        )
    spec, action = env.observation_spec["observation"], env.action_spec_unbatched
    masked = MASK in env.observation_spec.keys()  # noqa: SIM118
    shape = tuple(spec.shape[len(env.batch_size) :])
    seen: dict[str, Any] = {"obs_shape": shape, "obs_dtype": _obs_dtype(str(spec.dtype))}
    # Of an environment of ours, so that a dataset's parts can be put into its order.
    while isinstance(env, TransformedEnv):
        env = env.base_env
    space = None
    if isinstance(env, GymWrapper):
        space = getattr(env, "single_observation_space", env.observation_space)
    if getattr(space, "shape", None) == shape:
        seen |= _inside(space)
    number = int(getattr(action.space, "n", 0))
    one_hot = isinstance(action, OneHot) and tuple(action.shape) == (number,)
    if one_hot or (isinstance(action, Categorical) and tuple(action.shape) in ((), (1,))):
        return {**seen, "num_actions": number, "masked": masked}
    if not isinstance(action, (Bounded, Unbounded)) or len(action.shape) != 1:
        known = "OneHot, Categorical and one-dimensional Bounded or Unbounded actions"
        raise ValueError(f"only {known} are supported, got {action}")
    return {**seen, "low": _floats(action.space.low), "high": _floats(action.space.high)}


def _inside(space: Any) -> dict[str, Any]:
    """What is known of the arrays that an observation is made of."""
    if parts := getattr(space, "parts", None):
        return {"obs_parts": tuple(parts), "obs_part_shapes": tuple(parts.values())}
    return {"obs_layout": getattr(space, "layout", None)}


def _floats(values: Any) -> tuple[float, ...]:
    """Bounds; TorchRL writes the largest float32 for infinity."""
    found = np.array([float(value) for value in values])
    endless = np.abs(found) >= np.finfo(np.float32).max
    return tuple(np.where(endless, np.copysign(np.inf, found), found).tolist())


def _obs_dtype(dtype: Any) -> str:
    """Float observations of any width are handled as float32; pixels stay uint8."""
    return "uint8" if dtype in (np.uint8, "torch.uint8") else "float32"
