"""Demonstrations for imitation: from a behaviour, a file or a trained policy."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch

from composerl.data.offline.behaviours import controller_for
from composerl.data.offline.buffer import OfflineBuffer, inner_bounds
from composerl.data.offline.dataset import Dataset, validate
from composerl.data.offline.formats import read_dataset
from composerl.data.offline.generation import play_episodes
from composerl.envs.spaces import Spaces

__all__ = ["Expert", "ExpertBuffer", "load_experts"]


class Expert(Protocol):
    """A policy that can demonstrate: a :class:`composerl.Policy`."""

    spaces: Spaces

    def predict(self, observation: Any, first: Any = None) -> np.ndarray:
        """Deterministic actions."""
        ...


def load_experts(
    source: str | Path | Expert,
    env: str | Callable[[], gym.Env],
    *,
    episodes: int | None = 10,
    subsample: int = 1,
    seed: int = 0,
    batch_size: int = 256,
    device: str | torch.device = "cpu",
) -> ExpertBuffer:
    """Demonstrations in an environment, checked, as a buffer to sample state-action pairs from.

    Args:
        source: ``scripted`` (a hand-written controller, for CartPole-v1 and Pendulum-v1) or
            ``random``; a dataset file (npz, D4RL-style HDF5, Minari); or a policy, for example of
            ``composerl.load(run)``, which then plays greedily.
        env: the gymnasium id or factory that the demonstrations are for.
        episodes: how many; the first ones of a file. None takes all that a file has.
        subsample: keep every so many-th step of an episode, from a random one on, as Ho & Ermon
            (2016) do with 20.
        seed: of the episodes that are played, and of the subsampling.
        batch_size: rows of a sample.
        device: where the data live and the batches come from.
    """
    for name, value in (("episodes", episodes), ("subsample", subsample)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} of the experts must be an integer of at least 1, got {value}")
    spaces = Spaces.of(env)
    name = str(source)
    path = Path(name).expanduser()
    if not isinstance(source, (str, Path)):
        data = play_episodes(env, _act(source, spaces), _number(episodes, name), seed, name)
    elif path.suffix or os.sep in name or path.exists():
        data = _first(read_dataset(path), episodes)
    elif name in ("noisy", "mixed"):
        raise ValueError(f"experts cannot be {name!r}: expected 'scripted', 'random' or a path")
    else:
        label = env if isinstance(env, str) else getattr(env, "__name__", "a factory")
        controller = controller_for(label, name)
        data = play_episodes(env, controller, _number(episodes, name), seed, f"{label} {name}")
    data = validate(data, spaces)
    if not spaces.discrete:
        data = replace(data, actions=np.clip(data.actions, *inner_bounds(spaces)))
    return ExpertBuffer(data, subsample=subsample, seed=seed, batch_size=batch_size, device=device)


class ExpertBuffer(OfflineBuffer):
    """An :class:`~composerl.data.OfflineBuffer` of demonstrations.

    Args:
        dataset: whole episodes.
        subsample: keep every so many-th step of each, from one of the first on.
        seed: of the choice of that first step.
        options: of ``OfflineBuffer``.

    ``mean_return`` and the attributes are those of the whole episodes.

    Attributes:
        episodes: how many there are.
        lengths: their numbers of steps.
        terminated: share of steps that terminate an episode (time limits do not), with half an end
            added, since none seen does not mean that none can happen.
    """

    def __init__(
        self, dataset: Dataset, *, subsample: int = 1, seed: int = 0, **options: Any
    ) -> None:
        bounds = dataset.episodes()
        super().__init__(_every(dataset, bounds, subsample, seed), **options)
        self._mean_return = float(dataset.returns().mean())
        self.episodes = len(bounds)
        self.lengths = tuple((bounds[:, 1] - bounds[:, 0]).tolist())
        self.terminated = (int(dataset.terminals.sum()) + 0.5) / (len(dataset) + 1)


def _act(policy: Expert, spaces: Spaces) -> Callable[[np.ndarray], np.ndarray]:
    if policy.spaces != spaces:
        raise ValueError(
            f"{policy} is for {policy.spaces.to_json()}, but the environment has {spaces.to_json()}"
        )
    return policy.predict


def _number(episodes: int | None, source: str) -> int:
    if episodes is None:
        raise ValueError(f"say how many episodes {source} shall play: episodes is None")
    return episodes


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
