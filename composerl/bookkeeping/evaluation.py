"""Evaluation: seeded episodes of a deterministic policy, on a batch of environments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type

from composerl.bookkeeping.machine import restore_rng, rng_state
from composerl.envs.spaces import Spaces, open_gym

__all__ = ["Evaluation", "Evaluator", "Player", "Remember", "State", "episode_seed",
           "film_frames", "greedy"]  # fmt: skip

MAX_ENVS = 32

State = dict[str, Tensor]
"""What a policy with memory carries from step to step: tensors ``(batch, ...)``."""

Remember = Callable[[Tensor, State | None, Tensor], tuple[Tensor, State]]
"""Acts with memory: observations, state (None at the start), first-flags to actions, state."""


class Player(Protocol):
    """What plays: a :class:`composerl.Policy`, as evaluation, films and exports see it."""

    actor: nn.Module
    env: Any
    spaces: Spaces
    recurrent: bool

    def predict(self, observation: Any, first: Any = None) -> np.ndarray:
        """Deterministic actions."""
        ...

    def evaluate(
        self, episodes: int = 10, seed: int = 0, *, evaluator: Evaluator | None = None
    ) -> Evaluation:
        """Play seeded episodes."""
        ...


def greedy(actor: nn.Module, observation: Tensor) -> Tensor:
    """The actor's deterministic action for a batch of observations."""
    if hasattr(actor, "greedy"):
        return actor.greedy(observation)
    data = TensorDict({"observation": observation}, [observation.shape[0]])
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        return actor(data).get("action")


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

    def __call__(
        self,
        act: Callable[[Tensor], Tensor] | Remember,
        episodes: int,
        seed: int,
        *,
        recurrent: bool = False,
    ) -> Evaluation:
        """Play ``episodes`` episodes with ``act``: observations ``(n, ...)`` to actions.

        With ``recurrent``, ``act`` takes and returns a state as well, of which each environment
        has its own; ``first`` is true in rows whose episode starts.
        """
        if episodes < 1:
            raise ValueError(f"episodes must be at least 1, got {episodes}")
        kept = rng_state()
        try:
            while len(self._envs) < min(episodes, MAX_ENVS):
                self._envs.append(open_gym(self._make))
            with torch.no_grad():
                return self._play(act, episodes, seed, Spaces.of(self._envs[0]), recurrent)
        finally:
            restore_rng(kept)

    def _play(
        self, act: Callable[..., Any], episodes: int, seed: int, spaces: Spaces, recurrent: bool
    ) -> Evaluation:
        returns, lengths = np.zeros(episodes), np.zeros(episodes, dtype=int)
        waiting = iter(range(episodes))
        playing: list[tuple[gym.Env, int, Any]] = []
        state: State | None = None

        def start(env: gym.Env) -> None:
            episode = next(waiting, None)
            if episode is not None:
                playing.append((env, episode, env.reset(seed=episode_seed(seed, episode))[0]))

        for env in self._envs[:episodes]:
            start(env)
        while playing:
            batch = np.stack([obs for _, _, obs in playing]).astype(spaces.obs_dtype, copy=False)
            observation = torch.from_numpy(batch)
            if recurrent:
                first = torch.from_numpy(lengths[[episode for _, episode, _ in playing]] == 0)
                actions, state = act(observation, state, first)
            else:
                actions = act(observation)
            actions = actions.cpu().numpy()
            now, playing, rows = playing, [], []
            for row, ((env, episode, _), action) in enumerate(zip(now, actions, strict=True)):
                obs, reward, terminated, truncated, _ = env.step(
                    int(action) if spaces.discrete else action
                )
                returns[episode] += float(reward)
                lengths[episode] += 1
                if terminated or truncated:
                    start(env)
                else:
                    playing.append((env, episode, obs))
                if len(playing) > len(rows):
                    rows.append(row)
            if state is not None and len(rows) < len(now):
                state = {key: value[rows] for key, value in state.items()}
        return Evaluation(tuple(returns.tolist()), tuple(lengths.tolist()))

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()
        self._envs.clear()


def episode_seed(seed: int, episode: int) -> int:
    """What the environment of an evaluation's episode is seeded by."""
    return int(np.random.SeedSequence([seed, episode]).generate_state(1)[0])


def film_frames(policy: Player, seed: int = 0) -> np.ndarray:
    """Frames of one greedy episode, ``(time, height, width, 3)``, uint8, the last one included.

    It is the first episode of ``policy.evaluate(seed=seed)``. The environment renders where it
    can (a gymnasium id that knows ``rgb_array``, or a factory that asks for it); otherwise
    observations that are images are taken: grey or colours as they are, of other channels
    (planes, stacked frames) the brightest.
    """
    if policy.env is None:
        raise ValueError(
            "the policy does not know its environment: give it, load(..., env=make_env)"
        )
    film = _Film(_open_to_film(policy.env))
    evaluator = Evaluator(lambda: film)
    try:
        policy.evaluate(1, seed, evaluator=evaluator)
    finally:
        evaluator.close()
    return np.stack(film.frames)


class _Film(gym.Wrapper):
    """Keeps a frame of everything that an environment shows."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.frames: list[np.ndarray] = []

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        self.frames.append(self._frame(obs))
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, *rest = self.env.step(action)
        self.frames.append(self._frame(obs))
        return obs, *rest

    def _frame(self, obs: Any) -> np.ndarray:
        if self.env.render_mode == "rgb_array":
            return np.array(self.env.render(), np.uint8)
        planes = obs if len(obs) == 3 else obs.max(0, keepdims=True).repeat(3, 0)
        return np.ascontiguousarray(planes.transpose(1, 2, 0))


def _open_to_film(env: str | Callable[[], gym.Env]) -> gym.Env:
    made = open_gym(env)
    if made.render_mode == "rgb_array":
        return made
    if isinstance(env, str) and "rgb_array" in made.metadata.get("render_modes", ()):
        made.close()
        return open_gym(env, render_mode="rgb_array")
    spaces = Spaces.of(made)
    if len(spaces.obs_shape) != 3 or spaces.obs_dtype != "uint8":
        raise ValueError(
            f"environment {env!r} gives no frames: it neither renders to 'rgb_array' nor are its "
            f"observations images (channels, height, width) of uint8, but {spaces.obs_shape}"
        )
    return made
