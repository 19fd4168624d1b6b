"""Environments that say which of their actions are allowed, and fail on others."""

from __future__ import annotations

import gymnasium as gym
import numpy as np


class Doors(gym.Env):
    """A ring of rooms, whose open doors change at each step: how far one goes is the reward.

    The best of the four actions is the largest that is allowed; room 0 ends the episode. The mask
    is in the observation, as PettingZoo has it, or in the info, as gymnasium's Taxi.
    """

    def __init__(self, where: str = "observation", rooms: int = 7) -> None:
        self.where, self.rooms = where, rooms
        self.action_space = gym.spaces.Discrete(4)
        box = gym.spaces.Box(0, 1, (rooms,), np.float32)
        flags = gym.spaces.Box(0, 1, (4,), np.int8)
        both = gym.spaces.Dict({"observation": box, "action_mask": flags})
        self.observation_space = box if where == "info" else both

    def _see(self):
        self.mask = self.np_random.integers(0, 2, 4).astype(np.int8)
        self.mask[self.np_random.integers(1, 4)] = 1
        observation = np.eye(self.rooms, dtype=np.float32)[self.room]
        told = {"action_mask": self.mask}
        return (
            (observation, told)
            if self.where == "info"
            else (dict(told, observation=observation), {})
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.room, self.steps = int(self.np_random.integers(1, self.rooms)), 0
        return self._see()

    def step(self, action):
        if not self.mask[action]:
            raise RuntimeError(f"action {action} is not allowed by {self.mask}")
        self.steps += 1
        self.room = (self.room + int(action)) % self.rooms
        observation, info = self._see()
        return observation, float(action), self.room == 0, self.steps >= 20, info


gym.register("Doors-v0", Doors)
gym.register("InfoDoors-v0", Doors, kwargs={"where": "info"})
