"""Games whose frames need preparation: Atari as in the papers, MinAtar as an image."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import (
    AtariPreprocessing,
    FrameStackObservation,
    TimeLimit,
    TransformObservation,
)

__all__ = ["PREFIXES", "open_game"]

#: Ids that start so are opened here.
PREFIXES = ("ALE/", "MinAtar/")


def open_game(name: str, **options: Any) -> gym.Env:
    """An Atari or MinAtar game with observations ``(channels, height, width)``, uint8.

    ``ALE/...`` (extra ``atari``): the usual preparation of DQN and its successors, which the
    ``-v5`` ids leave out: up to 30 idle steps at the start, each action for 4 frames, of which
    the last two are joined, 84 x 84 grey, the last 4 stacked. Sticky actions as the id says.
    What is to differ follows the id, for example ``ALE/Breakout-v5,size=64,stack=1,colour=true``
    for a policy with memory, so that the one string says all about the environment:

    - ``size``: pixels a side (84).
    - ``colour``: three channels a frame instead of one (false).
    - ``stack``: frames of an observation, the newest last (4).
    - ``repeat``: frames that an action lasts (4).
    - ``sticky``: probability that a frame repeats the action of the one before instead (the id's
      own, 0.25 for ``-v5``).
    - ``life_loss``: steps tell in their info, as ``life_loss``, whether a life was lost, which a
      :class:`~composerl.data.RecordCollector` makes a terminal record of; the game goes on, so
      that its return is that of the whole game (false).
    - ``limit``: steps after which a game is cut (the id's own, 27,000 for ``-v5``); a policy that
      never serves would play on to the end.

    ``MinAtar/...`` (extra ``minatar``): the planes come first, as 0 and 255; ``limit`` may follow
    the id here too (10,000: MinAtar itself has none, and a policy may wait for ever).

    Keyword Args:
        options: of ``gymnasium.make``.
    """
    if name.startswith("ALE/"):
        return _open_atari(*_split(name), **options)
    return _open_minatar(*_split(name, ("limit",)), **options)


# ---- MinAtar -----------------------------------------------------------------------------------


def _open_minatar(name: str, settings: dict[str, Any], **options: Any) -> gym.Env:
    from minatar.gym import register_envs

    if "MinAtar/Breakout-v1" not in gym.registry:
        register_envs()
    game = _MinAtar(gym.make(name, **options))
    game.metadata = {"render_modes": []}  # its rgb_array asks for seaborn
    return TimeLimit(game, settings.get("limit", 10_000))


class _MinAtar(gym.ObservationWrapper):
    """Planes first, as an image; episodes that depend on nothing but their seed."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        height, width, planes = env.observation_space.shape
        self.observation_space = gym.spaces.Box(0, 255, (planes, height, width), np.uint8)

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        found = super().reset(**options)
        # Sticky actions would repeat the last one of the episode before.
        self.unwrapped.game.last_action = 0
        return found

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(observation.transpose(2, 0, 1)).astype(np.uint8) * 255


# ---- settings ----------------------------------------------------------------------------------


def _truth(word: str) -> bool:
    return {"true": True, "false": False}[word]


def _count(word: str) -> int:
    number = int(word)
    if number < 1:
        raise ValueError
    return number


def _probability(word: str) -> float:
    number = float(word)
    if not 0 <= number <= 1:
        raise ValueError
    return number


#: What may follow an id: how it is read, and what it must be.
_SETTINGS: dict[str, tuple[Callable[[str], Any], str]] = {
    "size": (_count, "a number of at least 1"),
    "colour": (_truth, "true or false"),
    "stack": (_count, "a number of at least 1"),
    "repeat": (_count, "a number of at least 1"),
    "sticky": (_probability, "a number from 0 to 1"),
    "life_loss": (_truth, "true or false"),
    "limit": (_count, "a number of at least 1"),
}


def _split(name: str, known: Collection[str] = _SETTINGS.keys()) -> tuple[str, dict[str, Any]]:
    """The gymnasium id, and the settings that follow it."""
    game, *parts = name.split(",")
    settings: dict[str, Any] = {}
    for part in parts:
        key, _, word = part.partition("=")
        if key not in known:
            raise ValueError(f"environment {name!r}: {key!r} is none of {', '.join(known)}")
        if key in settings:
            raise ValueError(f"environment {name!r}: {key} is given twice")
        read, expected = _SETTINGS[key]
        try:
            settings[key] = read(word)
        except (ValueError, KeyError):
            raise ValueError(
                f"environment {name!r}: {key} must be {expected}, got {word!r}"
            ) from None
    return game, settings


# ---- Atari -------------------------------------------------------------------------------------


def _open_atari(name: str, settings: dict[str, Any], **options: Any) -> gym.Env:
    import ale_py

    gym.register_envs(ale_py)
    colour, stack = settings.get("colour", False), settings.get("stack", 4)
    if "sticky" in settings:
        options["repeat_action_probability"] = settings["sticky"]
    # The frames are read from the emulator: what the environment itself copies is not looked at.
    game = gym.make(name, frameskip=1, obs_type="rgb" if colour else "grayscale", **options)
    screen: gym.Env = _Atari(
        game, settings.get("repeat", 4), settings.get("size", 84), colour,
        settings.get("life_loss", False),
    )  # fmt: skip
    if "limit" in settings:
        screen = TimeLimit(screen, settings["limit"])
    if stack == 1:
        return screen
    channels, height, width = screen.observation_space.shape
    joined = gym.spaces.Box(0, 255, (stack * channels, height, width), np.uint8)
    return TransformObservation(
        FrameStackObservation(screen, stack), lambda obs: obs.reshape(joined.shape), joined
    )


class _Atari(AtariPreprocessing):
    """Gymnasium's preparation, with channels first, the true last frame and lost lives told."""

    def __init__(self, env: gym.Env, repeat: int, size: int, colour: bool, tell: bool) -> None:
        super().__init__(
            env, frame_skip=repeat, screen_size=size,
            grayscale_obs=not colour, grayscale_newaxis=True,
        )  # fmt: skip
        height, width, channels = self.observation_space.shape
        self.observation_space = gym.spaces.Box(0, 255, (channels, height, width), np.uint8)
        self._tell = tell

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        lives = self.ale.lives()
        obs, reward, ended, cut, info = super().step(action)
        if ended or cut:
            # Gymnasium leaves the frame of the step before, which tells nothing of the end.
            read = self.ale.getScreenGrayscale if self.grayscale_obs else self.ale.getScreenRGB
            read(self.obs_buffer[0])
            self.obs_buffer[1].fill(0)
            obs = self._get_obs()
        if self._tell:
            info["life_loss"] = self.ale.lives() < lives
        return obs, reward, ended, cut, info

    def _get_obs(self) -> np.ndarray:
        return np.ascontiguousarray(super()._get_obs().transpose(2, 0, 1))
