"""Datasets made by a behaviour in an environment: a function of their arguments, and cached."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import gymnasium as gym
import numpy as np

from composerl.data.offline import cache as cache_files
from composerl.data.offline.behaviours import Controller, Noise, act, controller_for, random_share
from composerl.data.offline.checks import KEYS
from composerl.data.offline.dataset import Dataset
from composerl.envs.arguments import env_name
from composerl.envs.opening import open_gym
from composerl.envs.spaces import Spaces

__all__ = ["generate", "play_episodes"]

# Part of a cache file's name: raise it whenever a behaviour or the rollout below changes.
_VERSION = 1
_LANES = 8


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
        cache: Keep the result in ``$COMPOSERL_CACHE``, else ``$XDG_CACHE_HOME/composerl``, else
            ``~/.cache/composerl``. Only environments that come with gymnasium are kept, as
            only of those the version is known.
    """
    name = env_name(env)
    controller_for(name, behaviour)
    for what, value, least in (("size", size, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise ValueError(
                f"{what} of a generated dataset must be an integer of at least {least}"
                f", got {value!r}"
            )
    kwargs = dict(env_kwargs or {})
    told = f", {kwargs}" if kwargs else ""
    source = f"{name} {behaviour} (size {size}, seed {seed}{told})"
    arguments = (env, name, behaviour, int(size), int(seed), source, kwargs)
    if not (cache and _ships_with_gymnasium(env) and _is_json(kwargs)):
        return _roll_out(*arguments)
    key: list[Any] = [_VERSION, env, behaviour, int(size), int(seed), gym.__version__]
    if kwargs:  # without, the names of the files are those of earlier versions
        key.append(kwargs)
    request = json.dumps(key, sort_keys=True)
    dataset = cache_files.load(request, source)
    if dataset is None:
        dataset = _roll_out(*arguments)
        cache_files.save(request, dataset)
    return dataset


class _Episode:
    """One episode under way: its environment, its noise and the rows so far."""

    def __init__(self, env: gym.Env, spaces: Spaces, behaviour: str, seed: int, index: int) -> None:
        sequence = np.random.SeedSequence(seed, spawn_key=(index,))
        share = random_share(behaviour, seed, index)
        rng = np.random.default_rng(sequence.spawn(1)[0])
        self.noise = Noise(spaces, share, behaviour in ("noisy", "mixed"), rng)
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
        row = (self.observation, action, reward, following, terminated, truncated)
        for key, value in zip(KEYS, row, strict=True):
            self.rows[key].append(value)
        self.observation = following
        self.ended = bool(terminated or truncated)


def _roll_out(
    env: str | Callable[..., gym.Env],
    name: str,
    behaviour: str,
    size: int,
    seed: int,
    source: str,
    kwargs: Mapping[str, Any],
) -> Dataset:
    finished: list[_Episode] = []
    room = size
    with _lanes(env, _LANES, kwargs) as envs:
        spaces, controller = Spaces.of(envs[0]), controller_for(name, behaviour)
        if not spaces.discrete and not np.isfinite(np.array([spaces.low, spaces.high])).all():
            raise ValueError(
                f"{name} has no bounds to its actions, so that random ones cannot be drawn evenly"
            )
        while room > 0:
            first = len(finished)
            episodes = [
                _Episode(lane, spaces, behaviour, seed, first + k) for k, lane in enumerate(envs)
            ]
            _play(episodes, controller, spaces, room)
            room -= sum(map(len, episodes))
            finished += episodes
    return _joined(finished, spaces, size, source)


def play_episodes(
    env: str | Callable[..., gym.Env],
    controller: Controller | None,
    episodes: int,
    seed: int,
    source: str,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
) -> Dataset:
    """Whole episodes of a controller (None acts at random), seeded as those of :func:`generate`."""
    behaviour = "random" if controller is None else "scripted"
    finished: list[_Episode] = []
    with _lanes(env, min(_LANES, episodes), env_kwargs or {}) as envs:
        spaces = Spaces.of(envs[0])
        while len(finished) < episodes:
            numbers = range(len(finished), min(len(finished) + len(envs), episodes))
            lanes = [
                _Episode(lane, spaces, behaviour, seed, number)
                for lane, number in zip(envs, numbers, strict=False)
            ]
            _play(lanes, controller, spaces, room=sys.maxsize)
            finished += lanes
    return _joined(finished, spaces, sum(map(len, finished)), source)


@contextmanager
def _lanes(
    env: str | Callable[..., gym.Env], number: int, kwargs: Mapping[str, Any]
) -> Iterator[list[gym.Env]]:
    """So many environments, stepped side by side, and closed in the end."""
    with ExitStack() as stack:
        envs = [open_gym(env, **kwargs) for _ in range(number)]
        for lane in envs:
            stack.callback(lane.close)
        yield envs


def _joined(episodes: list[_Episode], spaces: Spaces, size: int, source: str) -> Dataset:
    """The first ``size`` steps of the episodes; the last one ends there."""
    columns = {
        key: np.stack([row for episode in episodes for row in episode.rows[key]][:size])
        for key in KEYS
    }
    columns["timeouts"][-1] = True
    types = (spaces.obs_dtype, None, "float32", spaces.obs_dtype, bool, bool)
    arrays: dict[str, Any] = {
        key: columns[key].astype(kind or columns[key].dtype)
        for key, kind in zip(KEYS, types, strict=True)
    }
    arrays["timeouts"] &= ~arrays["terminals"]
    return Dataset(**arrays, source=source)


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
