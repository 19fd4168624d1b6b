"""The gymnasium environments behind a collector, and where they stand."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor
from torchrl.data import Categorical
from torchrl.envs import Compose, DoubleToFloat, EnvBase, GymWrapper, TransformedEnv

_log = logging.getLogger(__name__)

__all__ = ["Live", "for_gym", "gym_environments"]


class Live:
    """Where the environments stand between two steps."""

    def __init__(self, obs: np.ndarray, ids: np.ndarray) -> None:
        number = len(obs)
        self.obs = obs
        self.ids = ids
        self.returns = [0.0] * number
        self.lengths = [0] * number
        self.started = [0] * number  # episodes so far, this one included
        self.actions: list[list[Any]] = [[] for _ in range(number)]  # of this episode

    def start(self, env: gym.Env, i: int, seed: int | None) -> Any:
        """Start the next episode of environment i; returns its first observation."""
        self.actions[i] = []
        if seed is None:
            return env.reset()[0]
        state = np.random.SeedSequence([seed, i, self.started[i]]).generate_state(1)
        self.started[i] += 1
        return env.reset(seed=int(state[0]))[0]

    def play_again(self, envs: Sequence[gym.Env], seed: int) -> list[int]:
        """Bring new environments to where these were: the same seeds, the same actions.

        Returns: the environments that do not repeat themselves, which start a new episode.
        """
        failed = []
        for i, (env, actions) in enumerate(zip(envs, self.actions, strict=True)):
            self.started[i] -= 1
            seen, over = self.start(env, i, seed), False
            for action in actions:
                seen, _, ended, cut, _ = env.step(action)
                over = ended or cut
                if over:
                    break
            self.actions[i] = actions
            if over or not np.array_equal(np.asarray(seen, self.obs.dtype), self.obs[i]):
                _log.warning(
                    f"environment {i} does not repeat itself from its seed: it goes on with a "
                    "new episode, and this run will differ from one that was not interrupted"
                )
                self.returns[i], self.lengths[i] = 0.0, 0
                self.obs[i] = self.start(env, i, seed)
                failed.append(i)
        return failed

    def state_dict(self) -> dict[str, Any]:
        """What leads there again, and what must be found there."""
        return {
            "obs": torch.from_numpy(self.obs.copy()),
            "ids": torch.from_numpy(self.ids.copy()),
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "started": list(self.started),
            "actions": [torch.from_numpy(np.array(actions)) for actions in self.actions],
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Live:
        """What :meth:`state_dict` was made from."""
        live = cls(state["obs"].numpy().copy(), state["ids"].numpy().copy())
        live.returns, live.lengths = list(state["returns"]), list(state["lengths"])
        live.started = list(state["started"])
        # Integers as Python's, rows as numpy's, as the environments got them.
        live.actions = [
            actions.tolist() if actions.ndim == 1 else list(actions.numpy().copy())
            for actions in state["actions"]
        ]
        return live


def gym_environments(env: EnvBase) -> list[gym.Env] | None:
    """The gymnasium environments behind a TorchRL one, if nothing but a cast lies in between."""
    if isinstance(env, TransformedEnv):
        transform = env.transform
        layers = list(transform) if isinstance(transform, Compose) else [transform]
        if any(type(layer) is not DoubleToFloat for layer in layers):
            return None
        env = env.base_env
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


def for_gym(action: Tensor, space: gym.Space) -> Any:
    """A batch of actions as gymnasium environments take them, one after the other."""
    if isinstance(space, gym.spaces.Discrete):
        return (action.reshape(-1) + int(space.start)).tolist()
    return action.numpy().reshape(-1, *space.shape).astype(space.dtype)  # a copy, theirs to change
