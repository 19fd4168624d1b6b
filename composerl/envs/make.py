"""Environments: a gymnasium id or a factory becomes a (vectorised) TorchRL environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torchrl.envs import DoubleToFloat, EnvBase, GymWrapper, SerialEnv, TransformedEnv

from composerl.envs.spaces import open_gym

__all__ = ["make_env"]


def make_env(
    env: str | Callable[[], gym.Env | EnvBase],
    num_envs: int = 1,
    *,
    seed: int | None = None,
    device: str | torch.device = "cpu",
) -> EnvBase:
    """A TorchRL environment with float32 observations and actions in the environment's own terms.

    Float actions keep their bounds; discrete actions are integers, not one-hot.

    Args:
        env: gymnasium id, or a function that makes a gymnasium or TorchRL environment.
        num_envs: with more than one, a batch of environments stepped together in this process.
        seed: seed of the environment; None leaves it unseeded.
        device: where its tensors live.

    A time limit ends an episode as ``truncated``, never as ``terminated``.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, got {num_envs}")
    first = open_gym(env)
    made: EnvBase
    if isinstance(first, EnvBase):
        made = (first if num_envs == 1 else SerialEnv(num_envs, env)).to(device)
    elif num_envs == 1:
        made = _wrap(first, device)
    else:
        first.close()
        # TorchRL resets finished environments itself; gymnasium's default autoreset would hand
        # it one junk transition per episode.
        made = _wrap(
            SyncVectorEnv(
                [lambda: open_gym(env)] * num_envs, autoreset_mode=AutoresetMode.DISABLED
            ),
            device,
        )
    if seed is not None:
        made.set_seed(seed)
    return made


def _wrap(env: Any, device: str | torch.device) -> EnvBase:
    wrapped = GymWrapper(env, device=device, categorical_action_encoding=True)
    wide = wrapped.observation_spec["observation"].dtype == torch.float64
    wide_action = wrapped.action_spec.dtype == torch.float64
    if not wide and not wide_action:
        return wrapped
    return TransformedEnv(
        wrapped,
        DoubleToFloat(
            in_keys=["observation"] if wide else [], in_keys_inv=["action"] if wide_action else []
        ),
    )
