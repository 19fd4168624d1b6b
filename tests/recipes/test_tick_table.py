"""README's table of algorithms: every tick is a run that works, every gap one that is refused."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv
from masked_env import Doors
from recipes.harness import RECIPES, load_recipe, small_config

ROOT = Path(__file__).parents[2]
TABLE = re.search(r"\n\| algorithm \|(.*?)\n\n", (ROOT / "README.md").read_text(), re.DOTALL)
HEAD, _, *ROWS = (
    [cell.strip() for cell in line.split("|")[1:-1]] for line in TABLE[0].strip().splitlines()
)
TICKS = {
    name: {name for name, cell in zip(HEAD, row, strict=True) if "✓" in cell}
    for row in ROWS
    for name in row[0].split("`")[1::2]
}
NAMES = sorted(TICKS)


class Pixels(gym.ObservationWrapper):
    """A vector as 64 x 64 pixels: a bar for each number."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gym.spaces.Box(0, 255, (1, 64, 64), np.uint8)

    def observation(self, observation):
        image = np.zeros((1, 64, 64), np.uint8)
        for i, value in enumerate(np.tanh(observation)):
            image[0, 8 * i : 8 * i + 8, : int(32 + 31 * value)] = 255
        return image


class Parts(gym.ObservationWrapper):
    """A vector as a Dict of two."""

    def __init__(self, env):
        super().__init__(env)
        low, high = env.observation_space.low, env.observation_space.high
        parts = {"a": slice(0, 2), "b": slice(2, None)}
        self.parts = parts
        self.observation_space = gym.spaces.Dict(
            {name: gym.spaces.Box(low[part], high[part]) for name, part in parts.items()}
        )

    def observation(self, observation):
        return {name: observation[part] for name, part in self.parts.items()}


for kind, body in (("Discrete", CartPoleEnv), ("Continuous", PendulumEnv)):
    for sight, wrap in (("vectors", lambda env: env), ("pixels", Pixels), ("Dict", Parts)):
        name = f"{kind}{sight.capitalize()}-v0"
        gym.register(
            name, entry_point=lambda body=body, wrap=wrap: wrap(body()), max_episode_steps=8
        )
gym.register("MaskedDoors-v0", entry_point=Doors, max_episode_steps=8)


def find(name):
    return load_recipe(next(path for path in RECIPES if path.stem == name))


def works(name, env, out) -> bool:
    """Whether a few steps of a recipe train in an environment."""
    recipe = find(name)
    known = typing.get_type_hints(recipe.Config)
    changes = {"env": env, "steps": 16, "eval_every": 16, "eval_episodes": 1, "save_every": 16}
    if "dataset" in known:
        changes |= {"dataset": "random", "dataset_size": 64}
    if "expert" in known:  # of a run: no controller knows these environments
        changes |= {"expert": "random"}
    try:
        recipe.main(small_config(recipe, out, **changes))
    except ValueError as refused:
        error = str(refused)
    else:
        return True
    assert re.search("needs|masks", error)  # in words, not by a shape that does not fit
    return False


def test_every_recipe_is_in_the_table():
    """But for those that are another one with other defaults."""
    own = [path.stem for path in RECIPES if "\ndef main(" in path.read_text()]
    assert sorted(own) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_what_the_settings_tell(name):
    recipe, ticks = find(name), TICKS[name]
    source = Path(recipe.__file__).read_text()
    known = typing.get_type_hints(recipe.Config)
    assert ("offline" in ticks) == ("dataset" in known)
    assert ("online" in ticks) == ("num_envs" in known or "online_steps" in known)
    assert ("workers" in ticks) == ("workers" in known)
    assert ("prioritized" in ticks) == ("PrioritizedSampler" in source)
    assert ("recurrent" in ticks) == ("RecordCollector" in source)
    assert ("compile" in ticks) == ("run.compiles(" in source)


@pytest.mark.parametrize("name", NAMES)
def test_what_runs_tell(name, tmp_path):
    ticks = TICKS[name]
    for kind in ("discrete", "continuous"):
        for sight in ("vectors", "pixels", "dict"):
            env = f"{kind.capitalize()}{sight.capitalize()}-v0"
            expected = {kind, sight} <= ticks
            assert works(name, env, tmp_path / env) == expected, env
    assert works(name, "MaskedDoors-v0", tmp_path / "masked") == ("masks" in ticks)
