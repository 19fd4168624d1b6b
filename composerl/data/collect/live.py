"""Where the gymnasium environments of a collector stand, and the arrays of a batch of steps."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from composerl._private import unchecked_tensordict
from composerl.data.collect.inside import Inside, apply

_log = logging.getLogger(__name__)

__all__ = ["Finished", "Live", "Steps", "for_gym"]


class Finished:
    """Returns and lengths of the latest finished episodes, and how many there were."""

    def __init__(self) -> None:
        self.latest: deque[tuple[float, int]] = deque(maxlen=20)
        self.number = 0

    def add(self, live: Live, i: int) -> None:
        """The episode in environment i, whose return and length count from zero again."""
        self.latest.append((live.returns[i], live.lengths[i]))
        self.number += 1
        live.returns[i], live.lengths[i] = 0.0, 0

    def count(self, batch: TensorDictBase, live: Live) -> None:
        """Those that end in a batch of TorchRL's own rollout."""
        number = len(live.returns)
        reward = batch["next", "reward"].reshape(number, -1).tolist()
        done = batch["next", "done"].reshape(number, -1).tolist()
        for i in range(number):
            for gained, end in zip(reward[i], done[i], strict=True):
                live.returns[i] += gained
                live.lengths[i] += 1
                if end:
                    self.add(live, i)

    def metrics(self) -> dict[str, float]:
        """Means over the latest ones, and the number of all."""
        found = {"collect/episodes": float(self.number)}
        if self.latest:
            returns, lengths = zip(*self.latest, strict=True)
            found["collect/return"] = float(np.mean(returns))
            found["collect/length"] = float(np.mean(lengths))
        return found

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        return {"latest": [list(pair) for pair in self.latest], "number": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.latest.clear()
        # TorchRL's collectors in other processes make tensors of them.
        self.latest.extend((float(gained), int(length)) for gained, length in state["latest"])
        self.number = int(state["number"])


class Live:
    """Where the environments stand between two steps; ``obs`` is what the policy sees of them."""

    def __init__(self, obs: np.ndarray, ids: np.ndarray | None = None) -> None:
        number = len(obs)
        self.obs = obs
        self.ids = np.zeros(number, np.int64) if ids is None else ids
        self.returns = [0.0] * number
        self.lengths = [0] * number
        self.started = [0] * number  # episodes so far, this one included
        self.actions: list[list[Any]] = [[] for _ in range(number)]  # of this episode

    def start(self, env: gym.Env, i: int, seed: int | None) -> Any:
        """Start the next episode of environment i; returns its first observation."""
        self.returns[i], self.lengths[i], self.actions[i] = 0.0, 0, []
        if seed is None:
            return env.reset()[0]
        state = np.random.SeedSequence([seed, i, self.started[i]]).generate_state(1)
        self.started[i] += 1
        return env.reset(seed=int(state[0]))[0]

    def step(self, env: gym.Env, i: int, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Act in environment i; returns what it says."""
        said = env.step(action)
        self.returns[i] += float(said[1])
        self.lengths[i] += 1
        self.actions[i].append(action)
        return said

    def play_again(
        self, envs: Sequence[gym.Env], seed: int, see: Callable[[Any], Any]
    ) -> list[int]:
        """Bring new environments to where these were: the same seeds, the same actions.

        ``see`` makes of an environment's observation what the policy sees.

        Returns: the environments that do not repeat themselves, and must start a new episode.
        """
        failed = []
        for i, env in enumerate(envs):
            before = self.returns[i], self.lengths[i], self.actions[i]
            self.started[i] -= 1
            seen, over = self.start(env, i, seed), False
            self.returns[i], self.lengths[i], self.actions[i] = before
            for action in self.actions[i]:
                seen, _, ended, cut, _ = env.step(action)
                over = ended or cut
                if over:
                    break
            if over or not np.array_equal(np.asarray(see(seen), self.obs.dtype), self.obs[i]):
                _log.warning(
                    f"environment {i} does not repeat itself from its seed: it goes on with a "
                    "new episode, and this run will differ from one that was not interrupted"
                )
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


def for_gym(action: Tensor, space: gym.Space) -> Any:
    """A batch of actions as gymnasium environments take them, one after the other."""
    if isinstance(space, gym.spaces.Discrete):
        return (action.reshape(-1) + int(space.start)).tolist()
    # A copy, theirs to change.
    return action.numpy().reshape(-1, *(space.shape or ())).astype(space.dtype)


class Steps:
    """Buffers ``(environments, time, ...)`` that a rollout writes to."""

    def __init__(self, seen: np.ndarray, inside: Inside, number: int) -> None:
        shape = (len(seen), number)
        self.inside = inside
        raw = inside.raw_dtype if inside.observation else seen.dtype
        self.obs = np.empty((*shape, *seen.shape[1:]), seen.dtype)
        self.next_obs = np.empty(self.obs.shape, raw)
        self.reward = np.empty((*shape, 1), np.float32)
        self.terminated = np.zeros((*shape, 1), bool)
        self.truncated = np.zeros((*shape, 1), bool)
        self.ids = np.empty(shape, np.int64)
        self.said: list[dict[str, Tensor]] = []  # what the policy wrote, step by step

    def tensordict(self, *, ids: bool, single: bool) -> TensorDict:
        """The batch in TorchRL's layout; ``single`` has no dimension of environments."""

        def tensor(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array[0] if single else array)

        size = torch.Size(self.ids.shape[1:] if single else self.ids.shape)
        names = ["time"] if single else [None, "time"]
        ends = {"terminated": tensor(self.terminated), "truncated": tensor(self.truncated)}
        ends["done"] = ends["terminated"] | ends["truncated"]
        root = {key: torch.zeros_like(value) for key, value in ends.items()}
        for key in self.said[0]:
            root[key] = torch.stack([said[key] for said in self.said], len(size) - 1)
        root["observation"] = tensor(self.obs)
        # Transforms of single numbers do to the batch what they do to each step.
        following = {
            "observation": apply(self.inside.observation, tensor(self.next_obs)),
            "reward": apply(self.inside.reward, tensor(self.reward)),
        }
        root["next"] = unchecked_tensordict(following | ends, size, names=names)
        if ids:
            traj_ids = {"traj_ids": tensor(self.ids)}
            root["collector"] = unchecked_tensordict(traj_ids, size, names=names)
        return unchecked_tensordict(root, size, names=names)
