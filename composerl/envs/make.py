"""Environments: a gymnasium id or a factory becomes a (vectorised) TorchRL environment."""

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

import gymnasium as gym
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch.nn.parameter import UninitializedBuffer, is_lazy
from torchrl.envs import EnvBase, GymWrapper, SerialEnv
from torchrl.envs.transforms import Compose, DoubleToFloat, Transform, TransformedEnv

from composerl.envs.opening import open_gym

__all__ = ["make_env"]


def make_env(
    env: str | Callable[..., gym.Env | EnvBase],
    num_envs: int | None = None,
    *,
    transforms: Transform | Iterable[Transform] = (),
    seed: int | None = None,
    device: str | torch.device = "cpu",
    **kwargs: Any,
) -> EnvBase:
    """A TorchRL environment with float32 observations and actions in the environment's own terms.

    Float actions keep their bounds; discrete actions are integers, not one-hot. Dict observations
    of Boxes are one vector, in gymnasium's order. A time limit ends an episode as ``truncated``,
    never as ``terminated``.

    Args:
        env: gymnasium id, or a function that makes a gymnasium or TorchRL environment.
        num_envs: so many environments, a batch of them, stepped together in this process; None
            is one without a batch dimension.
        transforms: of TorchRL, applied in this order to the whole batch; copies of them are, so
            that several environments can be made with the same ones.
        seed: seed of the environment; None leaves it unseeded.
        device: where its tensors live.
        kwargs: of ``gymnasium.make``, or of the function.

    No environment is opened but those that are stepped (TorchRL opens one more, for its specs,
    where it steps several of its own).
    """
    if num_envs is not None and num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, got {num_envs}")
    ready = [open_gym(env, **kwargs)]  # tells of which kind they are

    def make() -> Any:
        return ready.pop() if ready else open_gym(env, **kwargs)

    base: EnvBase
    cast: list[Transform] = []
    if isinstance(ready[0], EnvBase):
        base = make() if num_envs is None else SerialEnv(num_envs, make)
    else:
        # TorchRL resets finished environments itself; gymnasium's default autoreset would hand
        # it one junk transition per episode.
        off = AutoresetMode.DISABLED
        gyms = make() if num_envs is None else SyncVectorEnv([make] * num_envs, autoreset_mode=off)
        base = GymWrapper(gyms, device=device, categorical_action_encoding=True)
        cast = _to_single(base)
    layers = [*cast, *_copies(transforms)]
    if layers:
        base = TransformedEnv(base, layers[0] if len(layers) == 1 else Compose(*layers))
    made = base.to(device)
    if seed is not None:
        made.set_seed(seed)
    return made


def _to_single(env: EnvBase) -> list[Transform]:
    """The cast that an environment in float64 needs."""
    wide = env.observation_spec["observation"].dtype == torch.float64
    keys = ["observation"] if wide else []
    inverse = ["action"] if env.action_spec.dtype == torch.float64 else []
    return [DoubleToFloat(in_keys=keys, in_keys_inv=inverse)] if keys or inverse else []


def _copies(transforms: Transform | Iterable[Transform]) -> list[Transform]:
    """One flat list of transforms that belong to no environment yet."""
    if isinstance(transforms, Compose) or not isinstance(transforms, Transform):
        return [copy for transform in transforms for copy in _copies(transform)]
    # A clone is free of the environment, a deep copy of the other's buffers; torch cannot copy
    # those that have no shape yet.
    memo = {}
    for buffer in filter(is_lazy, transforms.buffers()):
        options: Any = {"device": buffer.device, "dtype": buffer.dtype}
        memo[id(buffer)] = UninitializedBuffer(**options)
    return [deepcopy(transforms.clone(), memo)]
