"""Where the gymnasium environments of a collector stand."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

_log = logging.getLogger(__name__)

__all__ = ["Finished", "Live", "for_gym"]


class Finished:
    """Returns and lengths of the latest finished episodes, and how many there were."""

    def __init__(self) -> None:
        self.latest: deque[tuple[float, int]] = deque(maxlen=20)
        self.number = 0

    def add(self, gained: float, length: int) -> None:
        """One more."""
        self.latest.append((gained, length))
        self.number += 1

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
                    self.add(*live.finish(i))

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

    def finish(self, i: int) -> tuple[float, int]:
        """Return and length of the episode in environment i, which count from zero again."""
        found = self.returns[i], self.lengths[i]
        self.returns[i], self.lengths[i] = 0.0, 0
        return found

    def play_again(
        self, envs: Sequence[gym.Env], seed: int, see: Callable[[Any], Any]
    ) -> list[int]:
        """Bring new environments to where these were: the same seeds, the same actions.

        Args:
            envs: the new environments.
            seed: that of the run.
            see: makes of an environment's observation what the policy sees.

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
            if over or not np.array_equal(np.asarray(see(seen), self.obs.dtype), self.obs[i]):
                _log.warning(
                    f"environment {i} does not repeat itself from its seed: it goes on with a "
                    "new episode, and this run will differ from one that was not interrupted"
                )
                self.finish(i)
                self.obs[i] = see(self.start(env, i, seed))
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
