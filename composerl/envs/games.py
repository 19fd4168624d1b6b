"""Games whose frames need preparation: Atari as in the papers, MinAtar and Crafter as images."""

from collections.abc import Callable
from functools import partial
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np

from composerl.envs.arguments import make_with
from composerl.envs.crafter import Crafter

__all__ = ["PREFIXES", "open_game"]

#: Ids that start so are opened here.
PREFIXES = ("ALE/", "MinAtar/", "Crafter/")


def open_game(name: str, **kwargs: Any) -> gym.Env:
    """An Atari, MinAtar or Crafter game with observations ``(channels, height, width)``, uint8.

    ``ALE/...`` (extra ``atari``): the usual preparation of DQN and its successors, which the
    ``-v5`` ids leave out: up to 30 idle steps at the start, each action for 4 frames, of which
    the last two are joined, 84 x 84 grey, the last 4 stacked. Sticky actions as the id says.

    ``MinAtar/...`` (extra ``minatar``): the planes come first, as 0 and 255. Of the arguments
    below it takes ``limit`` (10,000: MinAtar itself has none, and a policy may wait for ever).

    ``Crafter/Reward-v1`` and ``Crafter/NoReward-v1`` (extra ``crafter``): in colour. They take
    ``size`` (64) and ``limit`` (10,000).

    Keyword Args:
        size: pixels a side (84).
        colour: three channels a frame instead of one (False).
        stack: frames of an observation, the newest last (4); 1 is for a policy with memory.
        repeat: frames that an action lasts (4).
        sticky: probability that a frame repeats the action of the one before instead (the id's
            own, 0.25 for ``-v5``).
        life_loss: steps tell in their info, as ``life_loss``, whether a life was lost, which a
            :class:`~composerl.data.RecordCollector` makes a terminal record of; the game goes on,
            so that its return is that of the whole game (False).
        limit: steps after which a game is cut (the id's own, 27,000 for ``-v5``); a policy that
            never serves would play on to the end.
        kwargs: others are those of ``gymnasium.make``.
    """
    if "," in name:
        raise ValueError(_spelling(name))
    settings = {key: kwargs.pop(key) for key in _SETTINGS if key in kwargs}
    for key, value in settings.items():
        fits, expected = _SETTINGS[key]
        if not fits(value):
            raise ValueError(f"environment {name!r}: {key} must be {expected}, got {value!r}")
    opened = {"ALE": _open_atari, "MinAtar": _open_minatar, "Crafter": _open_crafter}
    return opened[name.partition("/")[0]](name, settings, kwargs)


# Whether a value fits, and what it must be. True is an int for Python, but no number here.
_Check = tuple[Callable[[Any], bool], str]
_COUNT: _Check = (lambda x: type(x) is int and x >= 1, "a number of at least 1")
_SHARE: _Check = (lambda x: type(x) in (int, float) and 0 <= x <= 1, "a number from 0 to 1")
_TRUTH: _Check = (lambda x: isinstance(x, bool), "true or false")

#: Arguments of ours.
_SETTINGS = {
    "size": _COUNT,
    "colour": _TRUTH,
    "stack": _COUNT,
    "repeat": _COUNT,
    "sticky": _SHARE,
    "life_loss": _TRUTH,
    "limit": _COUNT,
}

#: The emulator's arguments that the settings stand for.
_STANDS_FOR = {"frameskip": "repeat", "obs_type": "colour", "repeat_action_probability": "sticky"}


def _spelling(name: str) -> str:
    """How to say what used to follow an id."""
    game, *parts = name.split(",")
    words = (part.partition("=")[::2] for part in parts)
    settings = ", ".join(f'"{key}": {value or "..."}' for key, value in words)
    return (
        f"environment {name!r}: settings do not follow the id, but are keyword arguments: "
        f"--env {game} --env-kwargs '{{{settings}}}'"
    )


def _open_minatar(name: str, settings: dict[str, Any], options: dict[str, Any]) -> gym.Env:
    from minatar.gym import register_envs

    if other := [key for key in settings if key != "limit"]:
        raise ValueError(f"environment {name!r} does not take {', '.join(other)}; it takes limit")
    if "MinAtar/Breakout-v1" not in gym.registry:
        register_envs()
    game = _MinAtar(make_with(partial(gym.make, name), name, options, ["limit"]))
    game.metadata = {"render_modes": []}  # its rgb_array asks for seaborn
    return gym.wrappers.TimeLimit(game, settings.get("limit", 10_000))


def _open_crafter(name: str, settings: dict[str, Any], options: dict[str, Any]) -> gym.Env:
    known = {"Crafter/Reward-v1": True, "Crafter/NoReward-v1": False}
    if name not in known:
        raise ValueError(f"environment {name!r} is unknown; there are {' and '.join(known)}")
    if other := [key for key in settings if key not in ("size", "limit")]:
        raise ValueError(
            f"environment {name!r} does not take {', '.join(other)}; it takes size and limit"
        )
    return make_with(partial(Crafter, known[name], **settings), name, options, _SETTINGS)


class _MinAtar(gym.ObservationWrapper):
    """Planes first, as an image; episodes that depend on nothing but their seed."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.observation_space = _channels_first(env)

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        found = super().reset(**options)
        # Sticky actions would repeat the last one of the episode before.
        inner: Any = self.unwrapped
        inner.game.last_action = 0
        return found

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(observation.transpose(2, 0, 1)).astype(np.uint8) * 255


def _channels_first(env: gym.Env) -> gym.spaces.Box:
    height, width, channels = env.observation_space.shape or ()
    return gym.spaces.Box(0, 255, (channels, height, width), np.uint8)


def _open_atari(name: str, settings: dict[str, Any], options: dict[str, Any]) -> gym.Env:
    import ale_py

    gym.register_envs(ale_py)
    for key, ours in _STANDS_FOR.items():
        if key in options:
            raise ValueError(f"environment {name!r} does not take {key}; say it by {ours}")
    colour, stack = settings.get("colour", False), settings.get("stack", 4)
    own: dict[str, Any] = {"frameskip": 1, "obs_type": "rgb" if colour else "grayscale"}
    if "sticky" in settings:
        own["repeat_action_probability"] = settings["sticky"]
    # The frames are read from the emulator: what the environment itself copies is not looked at.
    game = make_with(partial(gym.make, name, **own), name, options, _SETTINGS)
    skip, size = settings.get("repeat", 4), settings.get("size", 84)
    tell, grey = settings.get("life_loss", False), not colour
    screen: gym.Env = _Atari(game, tell, frame_skip=skip, screen_size=size, grayscale_obs=grey)
    if "limit" in settings:
        screen = gym.wrappers.TimeLimit(screen, settings["limit"])
    if stack == 1:
        return screen
    channels, *sides = screen.observation_space.shape or ()
    stacked = gym.wrappers.FrameStackObservation(screen, stack)
    return gym.wrappers.ReshapeObservation(stacked, (stack * channels, *sides))


class _Atari(gym.wrappers.AtariPreprocessing):
    """Gymnasium's preparation, with channels first, the true last frame and lost lives told."""

    def __init__(self, env: gym.Env, tell: bool, **options: Any) -> None:
        super().__init__(env, grayscale_newaxis=True, **options)
        self.observation_space = _channels_first(self)
        self._tell = tell

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
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
