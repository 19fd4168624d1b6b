"""An actor with memory, and an environment that tells its past, for tests of both."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from tensordict.nn import TensorDictModuleBase
from torch import nn
from torchrl.data import Unbounded
from torchrl.envs import TensorDictPrimer
from torchrl.envs.utils import ExplorationType, exploration_type


class Diary(gym.Env):
    """Every pixel row of the observation tells how it came about: what a record must agree with.

    Observation (1, 4, 4), uint8: rows of step, last action + 1 (0 at the start), reward, and a
    letter that the seed of the episode decides. The reward is (step * (action + 2)) % 7. Lengths
    go from 3 to 8 by the seed; an odd letter means that the end is a truncation.
    """

    observation_space = gym.spaces.Box(0, 255, (1, 4, 4), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.last, self.reward = 0, -1, 0
        self.letter = int(self.np_random.integers(200))
        return self.show(), {}

    def show(self):
        rows = np.array([self.t, self.last + 1, self.reward, self.letter], np.uint8)
        return np.broadcast_to(rows[:, None], (1, 4, 4)).copy()

    @staticmethod
    def length(letter):
        return 3 + letter % 6

    def step(self, action):
        assert type(action) is int
        self.t, self.last = self.t + 1, action
        self.reward = self.t * (action + 2) % 7
        over = self.t == self.length(self.letter)
        odd = self.letter % 2 == 1
        return self.show(), float(self.reward), over and not odd, over and odd, {}


class Toy(TensorDictModuleBase):
    """Remembers the mean pixels seen in the episode, its last action, and how many steps.

    ``state["steps"]`` counts the observations of the episode, so that a test sees every reset.
    """

    recurrent = True

    def __init__(self, num_actions=3, size=4):
        super().__init__()
        self.names = {"pixels": "pixels", "last_action": "action", "steps": "steps"}
        self.in_keys = ["observation", "is_init", *self.names]
        self.out_keys = ["action", *(("next", key) for key in self.names)]
        self.size = size
        self.net = nn.Linear(2 * size + 1, num_actions)

    def initial(self, batch):
        return {
            "pixels": torch.zeros(batch, self.size),
            "action": torch.zeros(batch, dtype=torch.int64),
            "steps": torch.zeros(batch, dtype=torch.int64),
        }

    def make_tensordict_primer(self):
        state = self.initial(1)
        specs = {
            key: Unbounded(state[name].shape[1:], dtype=state[name].dtype)
            for key, name in self.names.items()
        }
        return TensorDictPrimer(specs, expand_specs=True)

    def forward(self, data):
        state = {name: data[key] for key, name in self.names.items()}
        act = self.explore if exploration_type() == ExplorationType.RANDOM else self.greedy
        action, state = act(data["observation"], state, data["is_init"].squeeze(-1))
        data["action"] = action
        for key, name in self.names.items():
            data["next", key] = state[name]
        return data

    def _logits(self, observation, state, first):
        assert observation.dtype == torch.uint8
        assert first.dtype == torch.bool
        assert len(observation) == len(first) == len(state["steps"])
        kept = {
            key: torch.where(
                first.view(-1, *[1] * (value.ndim - 1)), torch.zeros_like(value), value
            )
            for key, value in state.items()
        }
        rows = observation.float().mean((1, 3))[:, : self.size] / 10
        pixels = 0.7 * kept["pixels"] + rows
        steps = kept["steps"] + 1
        features = torch.cat([pixels, rows, kept["action"].unsqueeze(1).float()], 1)
        # the sine makes the choice depend on all of the past, whatever the weights are
        return (9 * self.net(features)).sin(), {"pixels": pixels, "steps": steps}

    def greedy(self, observation, state, first):
        logits, state = self._logits(observation, state, first)
        action = logits.argmax(-1)
        return action, state | {"action": action}

    def explore(self, observation, state, first):
        logits, state = self._logits(observation, state, first)
        action = torch.distributions.Categorical(logits=logits).sample()
        return action, state | {"action": action}
