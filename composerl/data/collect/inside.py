"""What is inside a TorchRL environment: gymnasium ones, and transforms simple enough to repeat."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor
from torchrl.data import Categorical
from torchrl.envs import (
    CatTensors,
    Compose,
    DoubleToFloat,
    EnvBase,
    GymWrapper,
    ObservationNorm,
    RewardClipping,
    RewardScaling,
    Transform,
    TransformedEnv,
)

__all__ = ["Inside", "apply", "asks_at_steps", "look_inside"]

#: Transforms that take each number by itself and remember nothing, and the entries they may change.
_SIMPLE: dict[type, set[str]] = {
    DoubleToFloat: {"observation", "reward"},
    CatTensors: {"observation"},  # of one entry: nothing happens
    ObservationNorm: {"observation"},
    RewardClipping: {"reward"},
    RewardScaling: {"reward"},
}


#: Options of TorchRL's collector that ask for nothing at a step; others do, unless off.
_HARMLESS = {
    "auto_register_policy_transforms", "create_env_kwargs", "device", "env_device",
    "exploration_type", "extend_buffer", "no_cuda_sync", "policy_device", "policy_factory",
    "post_collect_hook", "postproc", "pre_collect_hook", "replay_buffer", "reset_when_done",
    "return_same_td", "set_truncated", "split_trajs", "storing_device", "track_traj_ids",
    "traj_pool", "trust_policy", "use_buffers", "weight_recv_schemes", "weight_sync_schemes",
    "weight_updater", "worker_idx",
}  # fmt: skip


class Inside(NamedTuple):
    """The environments, and the transforms of what they give, in order.

    ``observation`` is empty where no transform does more than a cast, which an array does itself.
    """

    envs: list[gym.Env]
    observation: list[Transform]
    reward: list[Transform]


def look_inside(env: EnvBase) -> Inside | None:
    """The gymnasium environments of a TorchRL one, if it adds nothing but simple transforms."""
    layers: list[Transform] = []
    while isinstance(env, TransformedEnv):
        layers = _flat(env.transform) + layers
        env = env.base_env
    envs = _gym_environments(env)
    if envs is None:
        return None
    ndim = len(envs[0].observation_space.shape or ())
    if not all(_is_simple(layer, ndim) for layer in layers):
        return None
    observation = [layer for layer in layers if "observation" in layer.in_keys]
    if not any(type(layer) is ObservationNorm for layer in observation):
        observation = []
    reward = [layer for layer in layers if type(layer) in (RewardClipping, RewardScaling)]
    return Inside(envs, observation, reward)


def apply(layers: list[Transform], data: Tensor) -> Tensor:
    """What the transforms make of one entry."""
    for layer in layers:
        if type(layer) is not CatTensors:
            data = layer._apply_transform(data)
    return data


def _flat(transform: Transform) -> list[Transform]:
    if isinstance(transform, Compose):
        return [layer for part in transform for layer in _flat(part)]
    return [transform]


def _is_simple(layer: Transform, ndim: int) -> bool:
    """Whether it does to a batch of steps what it does to one step."""
    keys = _SIMPLE.get(type(layer))
    if keys is None or list(layer.in_keys) != list(layer.out_keys) or set(layer.in_keys) - keys:
        return False
    if type(layer) is DoubleToFloat:
        return list(layer.in_keys_inv) == list(layer.out_keys_inv)
    if layer.in_keys_inv:  # it would change actions
        return False
    ndim = ndim if layer.in_keys == ["observation"] else 1
    return all(
        buffer.device.type == "cpu"
        and buffer.ndim <= ndim
        and (buffer.ndim == 0 or buffer.dtype == torch.float32)  # others would change the type
        for buffer in layer.buffers()
    )


def _gym_environments(env: EnvBase) -> list[gym.Env] | None:
    if type(env) is not GymWrapper or env.wrapper_frame_skip != 1 or env.info_dict_reader:
        return None
    inner = env._env
    if isinstance(inner, gym.vector.VectorEnv):
        if type(inner) is not SyncVectorEnv:
            return None
        if inner.metadata.get("autoreset_mode") != AutoresetMode.DISABLED:
            return None
        envs = list(inner.envs)
    else:
        envs = [inner]
    space = envs[0].action_space
    simple = isinstance(envs[0].observation_space, gym.spaces.Box) and (
        isinstance(space, gym.spaces.Box)
        or (isinstance(space, gym.spaces.Discrete) and isinstance(env.action_spec, Categorical))
    )
    return envs if simple else None


def asks_at_steps(options: dict[str, Any]) -> bool:
    """Whether options of TorchRL's collector ask for something at each step."""
    if options.get("replay_buffer") is not None and not options.get("extend_buffer", True):
        return True  # each step is written to the buffer
    return any(
        not (name in _HARMLESS or value is None or (isinstance(value, (bool, int)) and not value))
        for name, value in options.items()
    )
