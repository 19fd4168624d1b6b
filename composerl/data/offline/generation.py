"""Datasets made by a behaviour in an environment: a function of their arguments, and cached."""

import hashlib
import json
import logging
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from composerl._files import cache_dir, replace_file
from composerl.data.offline.behaviours import (
    Controller,
    Noise,
    act,
    controller_for,
    noise,
    noise_of,
)
from composerl.data.offline.checks import KEYS
from composerl.data.offline.dataset import Dataset
from composerl.data.offline.formats import read_npz
from composerl.envs.arguments import env_name
from composerl.envs.opening import open_gym
from composerl.envs.spaces import Spaces

__all__ = ["cache_dir", "generate", "play_episodes"]

_log = logging.getLogger(__name__)

# Part of a cache file's name: raise it whenever a behaviour or the rollout below changes.
_VERSION = 1
_LANES = 8
LARGEST = 10**9  # transitions, more than any machine holds


def generate(
    env: str | Callable[..., gym.Env],
    behaviour: str,
    size: int,
    seed: int,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    cache: bool = True,
) -> Dataset:
    """Let a behaviour act in an environment for ``size`` steps.

    Episode ``k`` is seeded from ``(seed, k)`` alone. Episodes are whole, except that the last one
    is cut (a timeout) where ``size`` is reached: a smaller dataset is the beginning of a larger.

    Args:
        env: A gymnasium id, or a factory (``random`` only, never cached).
        behaviour: ``random``; ``scripted``, a hand-written controller; ``noisy``, the controller
            with a little noise on its actions, as experts' data are: good and narrow; or
            ``mixed``, in which also a share of the actions is random and differs between episodes.
        size: Number of transitions.
        seed: Same arguments, same bytes.
        env_kwargs: Of ``gymnasium.make``, or of the factory.
        cache: Keep the result in :func:`cache_dir`. Only environments that come with gymnasium
            are kept, as only of those the version is known.
    """
    name = env_name(env)
    controller = controller_for(env, behaviour)
    for what, value, least in (("size", size, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise ValueError(
                f"{what} of a generated dataset must be an integer of at least {least}"
                f", got {value!r}"
            )
    size, seed, kwargs = int(size), int(seed), dict(env_kwargs or {})
    told = f", {kwargs}" if kwargs else ""
    source = f"{name} {behaviour} (size {size}, seed {seed}{told})"
    if size > LARGEST:
        raise ValueError(f"size of a generated dataset must be at most {LARGEST}, got {size}")
    path = None
    if cache and _ships_with_gymnasium(env) and _is_json(kwargs):
        key = [_VERSION, env, behaviour, size, seed, gym.__version__]
        # Without arguments, the names of the files are those of earlier versions.
        request = json.dumps([*key, kwargs] if kwargs else key, sort_keys=True)
        path = cache_dir() / f"{hashlib.sha256(request.encode()).hexdigest()[:32]}.npz"
        if (kept := _load(path, request, source)) is not None:
            return kept
    _log.info(f"generating {size:,} transitions of {name} by {behaviour!r} ...")
    options: dict[str, Any] = {"behaviour": behaviour, "size": size, "env_kwargs": kwargs}
    dataset = play_episodes(env, controller, sys.maxsize, seed, source, **options)
    if path is not None:
        _save(path, request, dataset)
    return dataset


# ---- playing -----------------------------------------------------------------------------------


class _Episode:
    """One episode under way: its environment, its noise and the rows so far."""

    def __init__(self, env: gym.Env, spaces: Spaces, level: Noise, seed: int, index: int) -> None:
        sequence = np.random.SeedSequence(seed, spawn_key=(index,))
        self.noise = noise(spaces, level, np.random.default_rng(sequence.spawn(1)[0]))
        self.ended = False
        self._env, self._spaces = env, spaces
        self.observation = np.array(env.reset(seed=int(sequence.generate_state(1)[0]))[0])
        self.rows: dict[str, list] = {key: [] for key in KEYS}

    def __len__(self) -> int:
        return len(self.rows["rewards"])

    def step(self, action: np.ndarray) -> None:
        """Act once, and remember the transition."""
        given = int(action) if self._spaces.discrete else action.copy()  # theirs to change
        following, reward, terminated, truncated, _ = self._env.step(given)
        following = np.array(following)  # some environments hand out one buffer again and again
        cut = bool(truncated and not terminated)
        row = (self.observation, action, reward, following, bool(terminated), cut)
        for key, value in zip(KEYS, row, strict=True):
            self.rows[key].append(value)
        self.observation = following
        self.ended = bool(terminated or truncated)


def play_episodes(
    env: str | Callable[..., gym.Env],
    controller: Controller | None,
    episodes: int,
    seed: int,
    source: str,
    *,
    behaviour: str | None = None,
    level: Noise | None = None,
    size: int = sys.maxsize,
    env_kwargs: Mapping[str, Any] | None = None,
) -> Dataset:
    """Whole episodes of a controller (None acts at random), but for the end of ``size`` steps.

    They are seeded as those of :func:`generate`, and have the noise of a ``behaviour``, if any, or
    the same ``level`` of it in all episodes.
    """
    behaviour = behaviour or ("random" if controller is None else "scripted")
    finished: list[_Episode] = []
    room, kwargs = size, env_kwargs or {}
    with ExitStack() as stack:
        number = min(_LANES, episodes)
        envs = [stack.enter_context(closing(open_gym(env, **kwargs))) for _ in range(number)]
        spaces = Spaces.of(envs[0]).require_one_array("a dataset")
        if spaces.masked:
            raise ValueError(f"{env_name(env)} masks its actions, and datasets hold no masks")
        if not spaces.discrete and not np.isfinite(np.array([spaces.low, spaces.high])).all():
            raise ValueError(
                f"{env_name(env)} has no bounds to its actions, so that random ones cannot be "
                "drawn evenly"
            )
        while room > 0 and len(finished) < episodes:
            first = len(finished)
            played = [
                _Episode(lane, spaces, level or noise_of(behaviour, spaces, seed, k), seed, k)
                for k, lane in enumerate(envs[: episodes - first], start=first)
            ]
            _play(played, controller, spaces, room)
            room -= sum(map(len, played))
            finished += played
    seen = spaces.obs_dtype
    types = {"observations": seen, "next_observations": seen, "rewards": "float32"}
    columns: dict[str, Any] = {}
    for key in KEYS:
        rows = [row for episode in finished for row in episode.rows[key]][:size]
        columns[key] = np.stack(rows, dtype=types.get(key), casting="unsafe")
    columns["timeouts"][-1] = ~columns["terminals"][-1]
    return Dataset(**columns, source=source)


def _play(
    episodes: list[_Episode], controller: Controller | None, spaces: Spaces, room: int
) -> None:
    """Step all episodes together until each is over or lies beyond the rows there is room for."""
    while True:
        # Earlier episodes only grow: what is beyond the room now will stay beyond it.
        filled = np.cumsum([len(episode) for episode in episodes])
        active = [
            e for e, rows in zip(episodes, filled, strict=True) if not e.ended and rows < room
        ]
        if not active:
            return
        observations = [episode.observation for episode in active]
        actions = act(controller, spaces, observations, [episode.noise for episode in active])
        for episode, action in zip(active, actions, strict=True):
            episode.step(action)


# ---- the cache ---------------------------------------------------------------------------------


def _ships_with_gymnasium(env: str | Callable[..., gym.Env]) -> bool:
    try:
        return isinstance(env, str) and str(gym.spec(env).entry_point).startswith("gymnasium.")
    except gym.error.Error:
        return False  # opening it says what is wrong


def _is_json(kwargs: Mapping[str, Any]) -> bool:
    """Whether the arguments can be told from others by their text."""
    try:
        return json.loads(json.dumps(kwargs)) == kwargs
    except (TypeError, ValueError):
        return False


def _checksum(request: str, dataset: Dataset) -> str:
    return hashlib.sha256(f"{request} {dataset.fingerprint}".encode()).hexdigest()


def _load(path: Path, request: str, source: str) -> Dataset | None:
    """What was kept for a request, or None; a damaged file counts as absent, with a warning."""
    try:
        if not path.exists():
            return None
        arrays: dict[str, Any] = read_npz(path, (*KEYS, "checksum"))
        stored = str(arrays.pop("checksum"))
        dataset = Dataset(**arrays, source=source)
        if stored == _checksum(request, dataset):
            return dataset
        problem = "its content does not match its checksum"
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = str(error)
    warnings.warn(f"cached dataset {path} is damaged and made again: {problem}", stacklevel=3)
    return None


def _save(path: Path, request: str, dataset: Dataset) -> None:
    """Write whole or not at all: a reader never sees half a file. Failing is only a warning."""
    arrays = dataset.arrays() | {"checksum": np.array(_checksum(request, dataset))}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, lambda file: np.savez(file, **arrays))
    except OSError as error:
        warnings.warn(f"generated dataset is not cached: {error}", stacklevel=3)
