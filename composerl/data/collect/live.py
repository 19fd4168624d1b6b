"""Where the gymnasium environments of a collector stand, and the arrays of a batch of steps."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from composerl._private import unchecked_tensordict
from composerl.data.collect.inside import Inside, apply
from composerl.envs.masks import MASK

_log = logging.getLogger(__name__)

__all__ = ["Live", "Steps", "for_gym", "warn_of_other"]


class Live:
    """Where the environments stand between two steps; ``obs`` is what the policy sees of them.

    ``masks`` ``(environments, actions)``, if they have any, say which actions are allowed now.
    ``first`` is how many there are before them in other processes: each is seeded by its number
    among all, and has the same episodes wherever it is stepped.
    """

    def __init__(
        self,
        obs: np.ndarray,
        ids: np.ndarray | None = None,
        masks: np.ndarray | None = None,
        first: int = 0,
    ) -> None:
        number = len(obs)
        self.obs, self.masks, self.first = obs, masks, first
        self.ids = np.zeros(number, np.int64) if ids is None else ids
        self.returns = [0.0] * number
        self.lengths = [0] * number
        self.started = [0] * number  # episodes so far, this one included
        self.actions: list[list[Any]] = [[] for _ in range(number)]  # of this episode

    def start(self, env: gym.Env, i: int, seed: int | None) -> Any:
        """Start the next episode of environment i; returns its first observation."""
        self.returns[i], self.lengths[i], self.actions[i] = 0.0, 0, []
        number = None
        if seed is not None:
            words: Any = [seed, self.first + i, self.started[i]]
            if seed < 1 << 32:  # the same to numpy, and half the time
                words = np.array(words, np.uint32)
            self.started[i] += 1
            number = int(np.random.SeedSequence(words).generate_state(1)[0])
        seen, info = env.reset(seed=number)
        if self.masks is not None:
            self.masks[i] = info[MASK]
        return seen

    def step(self, env: gym.Env, i: int, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Act in environment i; returns what it says."""
        said = env.step(action)
        self.returns[i] += float(said[1])
        self.lengths[i] += 1
        self.actions[i].append(action)
        if self.masks is not None:
            self.masks[i] = said[4][MASK]
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
                seen, _, ended, cut, info = env.step(action)
                over = ended or cut
                if self.masks is not None:
                    self.masks[i] = info[MASK]
                if over:
                    break
            if over or not np.array_equal(np.asarray(see(seen), self.obs.dtype), self.obs[i]):
                warn_of_other(self.first + i)
                failed.append(i)
        return failed

    def follow(self, state: dict[str, Any]) -> None:
        """Be where these environments are after some steps elsewhere, by the state from there."""
        after = Live.from_state_dict(state)
        self.obs, self.returns, self.lengths = after.obs, after.returns, after.lengths
        self.started = after.started
        for kept, newest, length in zip(self.actions, after.actions, self.lengths, strict=True):
            kept += newest
            del kept[: len(kept) - length]

    def state_dict(self, newest: int = sys.maxsize) -> dict[str, Any]:
        """What leads there again, and what must be found there; of actions the ``newest``."""
        return {
            "obs": torch.from_numpy(self.obs.copy()),
            "ids": torch.from_numpy(self.ids.copy()),
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "started": list(self.started),
            "actions": [torch.from_numpy(np.array(taken[-newest:])) for taken in self.actions],
        }

    @classmethod
    def from_state_dict(
        cls, state: dict[str, Any], masks: np.ndarray | None = None, first: int = 0
    ) -> Live:
        """What :meth:`state_dict` was made from; masks come back when it is played again."""
        live = cls(state["obs"].numpy().copy(), state["ids"].numpy().copy(), masks, first)
        live.returns, live.lengths = list(state["returns"]), list(state["lengths"])
        live.started = list(state["started"])
        # Integers as Python's, rows as numpy's, as the environments got them.
        live.actions = [
            actions.tolist() if actions.ndim == 1 else list(actions.numpy().copy())
            for actions in state["actions"]
        ]
        return live


def warn_of_other(environment: int) -> None:
    """Say that an environment was led to another place than before."""
    _log.warning(
        f"environment {environment} does not repeat itself from its seed: it goes on with a new "
        "episode, and this run will differ from one that was not interrupted"
    )


def for_gym(action: Tensor, space: gym.Space) -> Any:
    """A batch of actions as gymnasium environments take them, one after the other."""
    if isinstance(space, gym.spaces.Discrete):
        moves = action.reshape(-1).tolist()
        return [move + int(space.start) for move in moves] if space.start else moves
    # A copy, theirs to change.
    return action.numpy().reshape(-1, *(space.shape or ())).astype(space.dtype)


class Steps:
    """Buffers ``(environments, time, ...)`` that a rollout writes to."""

    def __init__(self, live: Live, inside: Inside, number: int) -> None:
        seen, shape = live.obs, (len(live.obs), number)
        self.inside = inside
        raw = inside.raw_dtype if inside.observation else seen.dtype
        self.obs = np.empty((*shape, *seen.shape[1:]), seen.dtype)
        self.next_obs = np.empty(self.obs.shape, raw)
        self.reward = np.empty((*shape, 1), np.float32)
        self.terminated = np.zeros((*shape, 1), bool)
        self.truncated = np.zeros((*shape, 1), bool)
        self.ids = np.repeat(live.ids[:, None], number, 1)
        self.masks = self.next_masks = None
        if live.masks is not None:
            self.masks = np.empty((*shape, live.masks.shape[1]), bool)
            self.next_masks = np.empty_like(self.masks)
        self.said: list[dict[str, Tensor]] = []  # what the policy wrote, step by step

    def tensordict(self, *, ids: bool, single: bool) -> TensorDict:
        """The batch in TorchRL's layout; ``single`` has no dimension of environments."""

        def tensor(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array[0] if single else array)

        size = torch.Size(self.ids.shape[1:] if single else self.ids.shape)
        names = ["time"] if single else [None, "time"]
        # numpy's calls: those of torch take several times as long on so few flags.
        done = self.terminated | self.truncated
        ends = {"terminated": tensor(self.terminated), "truncated": tensor(self.truncated),
                "done": tensor(done)}  # fmt: skip
        root = {key: tensor(np.zeros(done.shape, bool)) for key in ends}
        for key in self.said[0]:
            root[key] = torch.stack([said[key] for said in self.said], len(size) - 1)
        root["observation"] = tensor(self.obs)
        # Transforms of single numbers do to the batch what they do to each step.
        following = {
            "observation": apply(self.inside.observation, tensor(self.next_obs)),
            "reward": apply(self.inside.reward, tensor(self.reward)),
        }
        if self.masks is not None and self.next_masks is not None:
            root[MASK], following[MASK] = tensor(self.masks), tensor(self.next_masks)
        root["next"] = unchecked_tensordict(following | ends, size, names=names)
        if ids:
            traj_ids = {"traj_ids": tensor(self.ids)}
            root["collector"] = unchecked_tensordict(traj_ids, size, names=names)
        return unchecked_tensordict(root, size, names=names)
