"""Demonstrations for imitation: from a behaviour, a file or a trained policy."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from composerl.data.offline.behaviours import Controller, controller_for
from composerl.data.offline.dataset import Dataset
from composerl.data.offline.formats import read_dataset
from composerl.data.offline.generation import play_episodes
from composerl.data.offline.loading import fit_to
from composerl.envs.opening import env_name
from composerl.envs.spaces import Spaces

__all__ = ["Demonstrations", "Expert", "load_experts"]


class Expert(Protocol):
    """A policy that can demonstrate: a :class:`composerl.Policy`."""

    spaces: Spaces

    def predict(self, observation: Any, first: Any = None) -> np.ndarray:
        """Deterministic actions."""
        ...


@dataclass(frozen=True, kw_only=True)
class Demonstrations:
    """What experts have shown.

    ``TensorDictReplayBuffer(storage=DatasetStorage(experts.dataset))`` samples it. The numbers
    are those of the whole episodes, whatever part of them is kept.
    """

    dataset: Dataset
    """The steps that are kept."""
    mean_return: float
    """Mean undiscounted return, in the environment's own rewards."""
    lengths: tuple[int, ...]
    """Steps of each episode."""
    terminated: float
    """Share of steps that terminate an episode (time limits do not), with half an end added,
    since none seen does not mean that none can happen."""


def load_experts(
    source: str | Path | Expert,
    env: str | Callable[..., gym.Env],
    *,
    episodes: int | None = 10,
    subsample: int = 1,
    seed: int = 0,
    spaces: Any = None,
    env_kwargs: Mapping[str, Any] | None = None,
) -> Demonstrations:
    """Demonstrations in an environment, checked.

    Args:
        source: ``scripted`` (a hand-written controller, for CartPole-v1 and Pendulum-v1) or
            ``random``; a dataset file (npz, D4RL-style HDF5, Minari); or a policy, for example of
            ``composerl.load(run)``, which then plays greedily.
        env: the gymnasium id or factory that the demonstrations are for.

    Keyword Args:
        episodes: how many; the first ones of a file. None takes all that a file has.
        subsample: keep every so many-th step of an episode, from a random one on, as Ho & Ermon
            (2016) do with 20.
        seed: of the episodes that are played, and of the subsampling.
        spaces: an open environment or :class:`~composerl.envs.Spaces`, if there is one: saves
            opening ``env`` for its shapes.
        env_kwargs: of ``gymnasium.make``.
    """
    for name, value in (("episodes", episodes), ("subsample", subsample)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} of the experts must be an integer of at least 1, got {value}")
    kwargs = env_kwargs or {}
    spaces = Spaces.of(env, **kwargs) if spaces is None else Spaces.of(spaces)
    name = str(source)
    path = Path(name).expanduser()

    def play(act: Controller | None, label: str) -> Dataset:
        if episodes is None:
            raise ValueError(f"say how many episodes {name} shall play: episodes is None")
        return play_episodes(env, act, episodes, seed, label, env_kwargs=kwargs)

    if not isinstance(source, (str, Path)):
        data = play(_act(source, spaces), name)
    elif path.suffix or os.sep in name or path.exists():
        data = _first(read_dataset(path), episodes)
    elif name in ("noisy", "mixed"):
        raise ValueError(f"experts cannot be {name!r}: expected 'scripted', 'random' or a path")
    else:
        label = env_name(env)
        data = play(controller_for(label, name), f"{label} {name}")
    data = fit_to(data, spaces)
    bounds = data.episodes()
    return Demonstrations(
        dataset=_every(data, bounds, subsample, seed),
        mean_return=float(data.returns().mean()),
        lengths=tuple((bounds[:, 1] - bounds[:, 0]).tolist()),
        terminated=(int(data.terminals.sum()) + 0.5) / (len(data) + 1),
    )


def _act(policy: Expert, spaces: Spaces) -> Callable[[np.ndarray], np.ndarray]:
    if policy.spaces != spaces:
        raise ValueError(
            f"{policy} is for {policy.spaces.to_json()}, but the environment has {spaces.to_json()}"
        )
    return policy.predict


def _first(data: Dataset, episodes: int | None) -> Dataset:
    """The first episodes of a dataset."""
    bounds = data.episodes()
    if episodes is None:
        return data
    if len(bounds) < episodes:
        raise ValueError(
            f"{data.source} has {len(bounds)} episodes, but {episodes} demonstrations are asked for"
        )
    return _rows(data, np.arange(bounds[episodes - 1, 1]))


def _every(data: Dataset, bounds: np.ndarray, subsample: int, seed: int) -> Dataset:
    if subsample == 1:
        return data
    parts = []
    for number, (start, stop) in enumerate(bounds):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number, 2)))
        parts.append(np.arange(start + rng.integers(min(subsample, stop - start)), stop, subsample))
    return _rows(data, np.concatenate(parts))


def _rows(data: Dataset, rows: np.ndarray) -> Dataset:
    keys = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
    arrays = {key: getattr(data, key)[rows] for key in keys}
    origin = rows if data.rows is None else data.rows[rows]
    return replace(data, **arrays, rows=origin)
