"""Environments: a gymnasium id or a factory becomes a (vectorised) TorchRL environment."""

from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDictBase
from torch.nn.parameter import UninitializedBuffer, is_lazy
from torchrl.data import Binary, Composite
from torchrl.envs import EnvBase, GymWrapper, SerialEnv, default_info_dict_reader
from torchrl.envs.transforms import ActionMask, Compose, DoubleToFloat, Transform, TransformedEnv

from composerl.envs.masks import MASK, has_mask
from composerl.envs.opening import open_gym

__all__ = ["make_env", "maker_of"]


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
    of Boxes are one vector, in gymnasium's order, or bytes if there are images among them (see
    :mod:`composerl.envs.packing`), which Dreamer reads. A time limit ends an episode as
    ``truncated``, never as ``terminated``. A mask of the actions, in a gymnasium environment's
    observation or info, is the entry ``action_mask``, and random actions keep to it (TorchRL's
    ``ActionMask``).

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
        if has_mask(getattr(gyms, "envs", [gyms])[0]):
            size = (*base.batch_size, base.action_spec_unbatched.n)
            spec = Composite({MASK: Binary(shape=size, dtype=torch.bool)}, shape=base.batch_size)
            base.set_info_dict_reader(_MaskReader([MASK], spec))
            cast.append(ActionMask())
    layers = [*cast, *_copies(transforms)]
    if layers:
        base = TransformedEnv(base, layers[0] if len(layers) == 1 else Compose(*layers))
    made = base.to(device)
    if seed is not None:
        made.set_seed(seed)
    vars(made)["made_by"] = partial(make_env, env, device=device, **kwargs), len(cast)
    return made


def maker_of(env: EnvBase) -> Callable[[int], EnvBase]:
    """A function of a number, for other processes, that makes so many environments like these.

    They have the same transforms, as they are now.

    Args:
        env: of :func:`make_env`.
    """
    # Not by the attribute: a TransformedEnv around ours would show that of ours.
    if "made_by" not in vars(env):
        raise ValueError(
            "other processes need an environment that composerl.envs.make_env has made, with its "
            f"transforms in make_env(transforms=...), got {env}"
        )
    make, casts = vars(env)["made_by"]
    layers = _copies(env.transform)[casts:] if isinstance(env, TransformedEnv) else []
    return partial(make, transforms=layers)


class _MaskReader(default_info_dict_reader):
    """Reads masks; environments that were not reset with others keep theirs.

    gymnasium's vector of environments tells nothing of those, as zeros.
    """

    _last: Any = None

    def __call__(self, info_dict: dict[str, Any], tensordict: TensorDictBase) -> TensorDictBase:
        mask, told = info_dict[MASK], info_dict.get(f"_{MASK}")
        if told is not None and self._last is not None:
            mask = np.where(told[:, None], mask, self._last)
        self._last = mask
        return super().__call__({MASK: mask}, tensordict)


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
