"""Games whose frames need preparation: Atari as in the DQN papers, MinAtar as an image."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TransformObservation

__all__ = ["PREFIXES", "open_game"]

#: Ids that start so are opened here.
PREFIXES = ("ALE/", "MinAtar/")


def open_game(name: str, **options: Any) -> gym.Env:
    """An Atari or MinAtar game with observations ``(channels, height, width)``, uint8.

    ``ALE/...`` (extra ``atari``): the usual preparation of DQN and its successors, which the
    ``-v5`` ids leave out: up to 30 idle steps at the start, each action for 4 frames, of which
    the last two are joined, 84 x 84 grey, the last 4 stacked. Sticky actions as the id says.

    ``MinAtar/...`` (extra ``minatar``): the planes come first, as 0 and 255.

    ``options``, such as ``render_mode``, go to the game's constructor.
    """
    if name.startswith("ALE/"):
        import ale_py

        gym.register_envs(ale_py)
        game = gym.make(name, frameskip=1, **options)
        return FrameStackObservation(AtariPreprocessing(game, frame_skip=4), 4)
    from minatar.gym import register_envs

    if "MinAtar/Breakout-v1" not in gym.registry:
        register_envs()
    game = gym.make(name, **options)
    height, width, planes = game.observation_space.shape
    space = gym.spaces.Box(0, 255, (planes, height, width), np.uint8)
    return TransformObservation(game, _image, space)


def _image(planes: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(planes.transpose(2, 0, 1)).astype(np.uint8) * 255
