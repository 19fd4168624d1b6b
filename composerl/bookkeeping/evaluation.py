"""Evaluation: seeded episodes of a deterministic policy, and what comes of them in a run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from composerl.bookkeeping.console import say
from composerl.bookkeeping.machine import untouched_rng
from composerl.bookkeeping.stages import GymStage, Stage, open_stage
from composerl.envs.games import PREFIXES
from composerl.envs.opening import env_name
from composerl.envs.spaces import Spaces

__all__ = ["Evaluation", "Evaluator", "Player", "Score", "State", "episode_seed"]

MAX_ENVS = 32
PATIENCE = 30.0  # seconds until it is asked whether an episode has an end
MANY_STEPS = 1000  # of one episode, below which it is not


State = dict[str, Tensor]
"""What a policy with memory carries from step to step: tensors ``(batch, ...)``."""


class Player(Protocol):
    """What plays: a :class:`composerl.Policy`, as evaluation, films and exports see it."""

    actor: nn.Module
    env: Any
    env_kwargs: dict[str, Any]
    trained_in: str | None
    spaces: Spaces
    recurrent: bool

    @property
    def predict(self) -> Callable[..., np.ndarray]:
        """Deterministic actions for observations."""

    @property
    def evaluate(self) -> Callable[..., Evaluation]:
        """Play seeded episodes."""


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


@dataclass
class Score:
    """Remembers evaluations; its state is part of a checkpoint.

    Attributes:
        latest: step, return, standard deviation and episodes of the last evaluation.
        best: the same of the best one.
        episodes: step, number, return and length of each episode of all evaluations.
        stopped: why the run should stop, or None.
    """

    latest: dict[str, Any] | None = None
    best: dict[str, Any] | None = None
    episodes: list[list[float]] = field(default_factory=list)
    stopped: str | None = None
    _since_best: int = 0

    def add(
        self, step: int, result: Evaluation, stop_at: float | None, patience: int | None
    ) -> bool:
        """Take an evaluation in; returns whether it is the best so far."""
        self.latest = {
            "step": step,
            "return": result.mean,
            "std": result.std,
            "episodes": len(result.returns),
            "returns": list(result.returns),
        }
        played = enumerate(zip(result.returns, result.lengths, strict=True))
        self.episodes += [[step, number, *episode] for number, episode in played]
        # NaN, which nothing is larger than, is the best only until there is a number.
        best = -math.inf if self.best is None else self.best["return"]
        better = math.isnan(best) and not math.isnan(result.mean)
        is_best = self.best is None or better or result.mean > best
        if is_best:
            self.best = self.latest
        self._since_best = 0 if is_best else self._since_best + 1
        if stop_at is not None and result.mean >= stop_at:
            self.stopped = f"return {result.mean:.1f} reached stop_at {stop_at:g}"
        elif patience is not None and self._since_best >= patience:
            self.stopped = f"no better evaluation in {patience} (patience)"
        return is_best


class Evaluator:
    """Plays episodes; keeps its environments, since making some of them takes long.

    Args:
        env: gymnasium id, or factory of a gymnasium environment or of a TorchRL one (a single
            one, of batch size (), with any transforms; returns are sums of its own rewards).
        env_kwargs: of ``gymnasium.make``, or of the factory.
        film: a list to append a picture of everything to that an environment shows.

    Episode ``k`` of seed ``s`` starts from a seed derived from ``(s, k)``: the same call gives the
    same returns, whatever was evaluated before, and training's random numbers are left untouched.
    A policy that draws its actions by torch's generator draws the same ones.
    """

    def __init__(
        self,
        env: str | Callable[..., Any] | None,
        env_kwargs: dict[str, Any] | None = None,
        *,
        film: list[np.ndarray] | None = None,
    ) -> None:
        if env is None:
            raise ValueError(
                "the policy does not know its environment: give it, by env=... or --env module:Id"
            )
        self._make = env
        self._kwargs = dict(env_kwargs or {})
        self._film = film
        self._stages: list[Stage] = []
        self._spaces: Spaces | None = None

    @property
    def spaces(self) -> Spaces:
        """Those of the environment, of which one is opened for it and kept to be played in."""
        if self._spaces is None:
            with untouched_rng():
                self._spaces = self._open(1)[0].spaces
        return self._spaces

    @property
    def fps(self) -> float:
        """Pictures a second at which the environment is to be shown."""
        metadata = getattr(self._open(1)[0].env, "metadata", None) or {}
        return float(metadata.get("render_fps") or 30)

    @torch.no_grad()
    @untouched_rng()
    def __call__(
        self,
        act: Callable[..., Any],
        episodes: int,
        seed: int,
        *,
        recurrent: bool = False,
        spaces: Spaces | None = None,
    ) -> Evaluation:
        """Play ``episodes`` episodes with ``act``: observations ``(n, ...)`` to actions.

        With ``recurrent`` it is ``act(observations, state, first) -> (actions, state)``: the state
        is None at the start, and ``first`` is true in rows whose episode starts.

        In TorchRL environments ``act`` takes a TensorDict ``(n,)`` of all that they show, and
        returns it with actions, or the actions. A gymnasium environment must have the shapes of
        ``spaces``, those that ``act`` is for.
        """
        if episodes < 1:
            raise ValueError(f"episodes must be at least 1, got {episodes}")
        stages = self._open(min(episodes, MAX_ENVS))
        if spaces is not None and isinstance(stages[0], GymStage):
            spaces.require_shapes_of(stages[0].spaces, env_name(self._make))
        torch.manual_seed(episode_seed(seed, episodes))
        kind: Any = stages[0]
        returns, lengths = np.zeros(episodes), np.zeros(episodes, dtype=int)
        waiting = iter(range(episodes))
        state: State | None = None

        def start(stage: Stage) -> tuple[Any, int, Any] | None:
            episode = next(waiting, None)
            if episode is None:
                return None
            shown = stage.start(episode_seed(seed, episode))
            self._picture(stage, shown)
            return stage, episode, shown

        playing: list[Any] = [start(stage) for stage in stages]
        begun, patience = time.monotonic(), PATIENCE
        while playing:
            if time.monotonic() - begun > patience:
                self._doubt(max(lengths[episode] for _, episode, _ in playing))
                patience *= 2
            seen = kind.together([shown for _, _, shown in playing])
            if recurrent:
                first = torch.from_numpy(lengths[[episode for _, episode, _ in playing]] == 0)
                answer, state = act(seen, state, first)
            else:
                answer = act(seen)
            following: list[Any] = []
            for (stage, episode, shown), action in zip(playing, kind.apart(answer), strict=True):
                shown, reward, over = stage.step(shown, action)
                self._picture(stage, shown)
                returns[episode] += reward
                lengths[episode] += 1
                following.append(start(stage) if over else (stage, episode, shown))
            rows = [row for row, goes_on in enumerate(following) if goes_on]
            if state is not None and len(rows) < len(following):
                state = {key: value[rows] for key, value in state.items()}
            playing = [following[row] for row in rows]
        return Evaluation(tuple(returns.tolist()), tuple(lengths.tolist()))

    def _doubt(self, steps: int) -> None:
        """Say that an episode may have no end, unless one is known to have."""
        name = env_name(self._make)
        if steps >= MANY_STEPS and not name.startswith(PREFIXES) and not self._open(1)[0].limited:
            say(
                f"evaluation: an episode of environment {name!r} has not ended in {steps:,} steps, "
                "and no time limit is known; if it never ends, set one: max_episode_steps=1000 "
                "where it is registered, or run --env-kwargs '{\"max_episode_steps\": 1000}'"
            )

    def _open(self, number: int) -> list[Stage]:
        while len(self._stages) < number:
            self._stages.append(open_stage(self._make, self._kwargs, self._film is not None))
        return self._stages[:number]

    def _picture(self, stage: Stage, shown: Any) -> None:
        if self._film is not None:
            self._film.append(stage.frame(shown))

    def close(self) -> None:
        """Close the environments."""
        for stage in self._stages:
            stage.env.close()
        self._stages.clear()


def episode_seed(seed: int, episode: int) -> int:
    """What the environment of an evaluation's episode is seeded by."""
    return int(np.random.SeedSequence([seed, episode]).generate_state(1)[0])
