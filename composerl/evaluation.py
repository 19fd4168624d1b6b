"""Evaluation: seeded episodes of a deterministic policy, on a batch of environments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from composerl.checkpoint import restore_rng, rng_state
from composerl.spaces import Spaces, open_gym

__all__ = ["Evaluation", "Evaluator"]

MAX_ENVS = 32


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of the evaluated episodes, in the order of their seeds."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns."""
        return float(np.std(self.returns))

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.std:.1f} over {len(self.returns)} episodes"


class Evaluator:
    """Plays episodes; keeps its environments, since making some of them takes long.

    Args:
        env: gymnasium id or factory of a gymnasium environment.

    Episode ``k`` of seed ``s`` starts from a seed derived from ``(s, k)``: the same call gives the
    same returns, whatever was evaluated before, and training's random numbers are left untouched.
    """

    def __init__(self, env: str | Callable[[], gym.Env]) -> None:
        self._make = env
        self._envs: list[gym.Env] = []

    def __call__(self, act: Callable[[Tensor], Tensor], episodes: int, seed: int) -> Evaluation:
        """Play ``episodes`` episodes with ``act``: observations ``(n, ...)`` to actions."""
        if episodes < 1:
            raise ValueError(f"episodes must be at least 1, got {episodes}")
        kept = rng_state()
        try:
            while len(self._envs) < min(episodes, MAX_ENVS):
                self._envs.append(open_gym(self._make))
            with torch.no_grad():
                return self._play(act, episodes, seed, Spaces.of(self._envs[0]))
        finally:
            restore_rng(kept)

    def _play(
        self, act: Callable[[Tensor], Tensor], episodes: int, seed: int, spaces: Spaces
    ) -> Evaluation:
        returns, lengths = np.zeros(episodes), np.zeros(episodes, dtype=int)
        waiting = iter(range(episodes))
        playing: list[tuple[gym.Env, int, Any]] = []

        def start(env: gym.Env) -> None:
            episode = next(waiting, None)
            if episode is not None:
                state = np.random.SeedSequence([seed, episode]).generate_state(1)
                obs, _ = env.reset(seed=int(state[0]))
                playing.append((env, episode, obs))

        for env in self._envs[:episodes]:
            start(env)
        while playing:
            batch = np.stack([obs for _, _, obs in playing]).astype(spaces.obs_dtype, copy=False)
            actions = act(torch.from_numpy(batch)).cpu().numpy()
            now, playing = playing, []
            for (env, episode, _), action in zip(now, actions, strict=True):
                obs, reward, terminated, truncated, _ = env.step(
                    int(action) if spaces.discrete else action
                )
                returns[episode] += float(reward)
                lengths[episode] += 1
                if terminated or truncated:
                    start(env)
                else:
                    playing.append((env, episode, obs))
        return Evaluation(tuple(returns.tolist()), tuple(lengths.tolist()))

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()
        self._envs.clear()
