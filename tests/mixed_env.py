"""An environment that shows images and vectors together, each of which tells of what happened."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class Both(gym.Env):
    """The right action is known from the camera and the speed together, from neither alone.

    The camera's left or right half is bright, the speed's first number is positive or negative:
    1 is right if both or none are. ``map``, whose channels come first, shows the time and the last
    action; the speed's second number is the last reward. The fourth step after a bright left half
    ends an episode, the sixth cuts it.
    """

    observation_space = Dict(
        {
            "camera": Box(0, 255, (8, 8, 3), np.uint8),
            "map": Box(0, 255, (2, 8, 16), np.uint8),
            "speed": Box(-np.inf, np.inf, (2,), np.float64),
        }
    )

    def __init__(self, continuous: bool = False) -> None:
        self.action_space = Box(-1.0, 1.0, (1,), np.float32) if continuous else Discrete(2)

    def _see(self, action: int, reward: float):
        self.bright, self.positive = self.np_random.integers(0, 2, 2)
        camera = np.zeros((8, 8, 3), np.uint8)
        camera[:, :4] = 0 if self.bright else (200, 100, 50)
        camera[:, 4:] = (200, 100, 50) if self.bright else 0
        field = np.empty((2, 8, 16), np.uint8)
        field[0], field[1] = 10 * self.t, 100 * (1 + action)
        return {
            "camera": camera,
            "map": field,
            "speed": np.array([1.5 if self.positive else -1.5, reward]),
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._see(0, 0.0), {}

    def step(self, action):
        action = int(np.all(action > 0)) if isinstance(self.action_space, Box) else int(action)
        reward = float(action == (self.bright == self.positive))
        self.t += 1
        ended = bool(self.t == 4 and not self.bright)
        return self._see(action, reward), reward, ended, self.t == 6 and not ended, {}


gym.register("Both-v0", entry_point=Both)
