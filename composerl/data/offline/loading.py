"""Datasets and demonstrations by name: generated, played or read from a file, and checked."""

import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import gymnasium as gym
import numpy as np

from composerl.data.offline.behaviours import BEHAVIOURS, Controller, controller_for
from composerl.data.offline.dataset import Dataset, validate
from composerl.data.offline.formats import read_dataset
from composerl.data.offline.generation import generate, play_episodes
from composerl.data.offline.statistics import return_scale
from composerl.envs.arguments import env_name
from composerl.envs.spaces import Spaces

__all__ = ["Demonstrations", "Expert", "load_dataset", "load_experts"]

_log = logging.getLogger(__name__)

#: Of half an action's range. Of a bound itself atanh is infinite; 1e-5 inside of it is still 6.1,
#: so far out that a squashed policy fits little else. From here it is 3.8.
_INSIDE = 1e-3


def load_dataset(
    dataset: str,
    env: str | Callable[..., gym.Env],
    *,
    size: int = 40_000,
    seed: int = 0,
    reward_scale: float | Literal["returns"] = 1.0,
    reward_shift: float = 0.0,
    spaces: Any = None,
    env_kwargs: Mapping[str, Any] | None = None,
) -> Dataset:
    """A dataset for an environment, checked; logs a warning if rows had to be dropped.

    ``TensorDictReplayBuffer(storage=DatasetStorage(load_dataset(...)), batch_size=256)`` samples
    from it.

    Args:
        dataset: a behaviour (``random``, ``scripted``, ``noisy``, ``mixed``) or a file's path.
        env: the gymnasium id or factory that the dataset must fit.

    Keyword Args:
        size: transitions to generate; a file is read whole.
        seed: of the generated dataset; a file has none.
        reward_scale: rewards become ``reward * reward_scale + reward_shift``; ``"returns"`` is
            :func:`return_scale` of the dataset. Which it was is the dataset's ``reward_scale``.
        reward_shift: see ``reward_scale``.
        spaces: an open environment or :class:`~composerl.envs.Spaces`, if there is one: saves
            opening ``env`` for its shapes.
        env_kwargs: of ``gymnasium.make``.
    """
    scale = 1.0 if reward_scale == "returns" else reward_scale
    if not math.isfinite(scale) or scale == 0 or not math.isfinite(reward_shift):
        raise ValueError(
            "reward_scale must be finite and not 0, reward_shift finite, got "
            f"{reward_scale} and {reward_shift}"
        )
    if _is_file(dataset):
        data = read_dataset(dataset)
    else:
        data = generate(env, dataset, size, seed, env_kwargs=env_kwargs)
    data = _fit(data, _spaces(env, spaces, env_kwargs))
    if data.dropped or data.replaced:
        kept = f", {data.replaced} terminal ones kept without it" if data.replaced else ""
        _log.warning(
            f"{data.source}: {data.dropped} rows dropped, whose next observation is of another "
            f"episode or missing{kept}"
        )
    scale = return_scale(data) if reward_scale == "returns" else scale
    rewards = (data.rewards * scale + reward_shift).astype(np.float32)
    return replace(data, rewards=rewards, reward_scale=scale)


class Expert(Protocol):
    """A policy that can demonstrate: a :class:`composerl.Policy`."""

    spaces: Spaces

    def predict(self, observation: Any, first: Any = None) -> np.ndarray:
        """Deterministic actions."""


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
        spaces: see :func:`load_dataset`.
        env_kwargs: of ``gymnasium.make``.
    """
    for name, value in (("episodes", episodes), ("subsample", subsample)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} of the experts must be an integer of at least 1, got {value}")
    spaces = _spaces(env, spaces, env_kwargs)
    if isinstance(source, (str, Path)) and _is_file(str(source)):
        data = read_dataset(source)
        data = data if episodes is None else _first(data, episodes)
    elif episodes is None:
        raise ValueError(f"say how many episodes {source} shall play: episodes is None")
    else:
        controller, label = _demonstrator(source, env, spaces)
        data = play_episodes(env, controller, episodes, seed, label, env_kwargs=env_kwargs)
    data = _fit(data, spaces)
    bounds = data.episodes()
    return Demonstrations(
        dataset=_every(data, bounds, subsample, seed),
        mean_return=float(data.returns().mean()),
        lengths=tuple((bounds[:, 1] - bounds[:, 0]).tolist()),
        terminated=(int(data.terminals.sum()) + 0.5) / (len(data) + 1),
    )


def _is_file(name: str) -> bool:
    """Whether a dataset is a file's path; else it is taken for a behaviour."""
    path = Path(name).expanduser()
    return name not in BEHAVIOURS and bool(path.suffix or os.sep in name or path.exists())


def _spaces(
    env: str | Callable[..., gym.Env], opened: Any, env_kwargs: Mapping[str, Any] | None
) -> Spaces:
    return Spaces.of(env, **(env_kwargs or {})) if opened is None else Spaces.of(opened)


def _fit(data: Dataset, spaces: Spaces) -> Dataset:
    """The dataset, checked against the spaces, with float actions moved just inside the bounds."""
    data = validate(data, spaces)
    if spaces.discrete:
        return data
    low, high = np.asarray(spaces.low), np.asarray(spaces.high)
    margin = np.where(np.isfinite(high - low), _INSIDE * 0.5 * (high - low), 0.0)
    # By a hair, and by one float32 at least.
    least = np.nextafter(low.astype(np.float32), np.float32(np.inf))
    most = np.nextafter(high.astype(np.float32), np.float32(-np.inf))
    least = np.maximum((low + margin).astype(np.float32), least)
    most = np.minimum((high - margin).astype(np.float32), most)
    return replace(data, actions=np.clip(data.actions, least, most))


def _demonstrator(
    source: str | Path | Expert, env: str | Callable[..., gym.Env], spaces: Spaces
) -> tuple[Controller | None, str]:
    """What acts, and what to call it."""
    if isinstance(source, (str, Path)):
        behaviour = str(source)
        if behaviour in ("noisy", "mixed"):
            raise ValueError(f"experts cannot be {behaviour!r}: expected 'scripted' or 'random'")
        return controller_for(env, behaviour), f"{env_name(env)} {behaviour}"
    if source.spaces != spaces:
        raise ValueError(
            f"{source} is for {source.spaces.to_json()}, but the environment has {spaces.to_json()}"
        )
    return source.predict, str(source)


def _first(data: Dataset, episodes: int) -> Dataset:
    stops = data.episodes()[:, 1]
    if len(stops) < episodes:
        raise ValueError(
            f"{data.source} has {len(stops)} episodes, but {episodes} demonstrations are asked for"
        )
    return data.take(np.arange(stops[episodes - 1]))


def _every(data: Dataset, bounds: np.ndarray, subsample: int, seed: int) -> Dataset:
    if subsample == 1:
        return data
    parts = []
    for number, (start, stop) in enumerate(bounds):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number, 2)))
        parts.append(np.arange(start + rng.integers(min(subsample, stop - start)), stop, subsample))
    return data.take(np.concatenate(parts))
