"""Crafter for gymnasium: seeds, ends, achievements; what a collector tells of them."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from composerl.data import RecordCollector, VectorCollector
from composerl.data.collect.finished import Finished
from composerl.envs import make_env
from composerl.envs.spaces import open_gym
from composerl.modules import dreamer_actor

pytest.importorskip("crafter")

NAME = "Crafter/Reward-v1"
PLAY = """
import zlib
import numpy as np
from composerl.envs.spaces import open_gym
env = open_gym("Crafter/Reward-v1", size=32)
rng, seen = np.random.default_rng(0), env.reset(seed=3)[0]
total = zlib.crc32(seen.tobytes())
for _ in range(300):
    seen, reward, ended, cut, info = env.step(int(rng.integers(17)))
    total = zlib.crc32(seen.tobytes() + np.float64(reward).tobytes(), total)
    if ended or cut:
        env.reset()
print(total)
"""


def test_it_is_a_gymnasium_environment():
    env = open_gym(NAME, size=32, limit=20)
    check_env(env.unwrapped, skip_render_check=True)
    assert env.observation_space.shape == (3, 32, 32)
    assert env.action_space.n == 17
    assert open_gym(NAME, render_mode="rgb_array").unwrapped.render_mode == "rgb_array"


def test_the_same_seed_is_the_same_game_in_another_process():
    """The game draws by the order of sets, which ours puts right."""
    told = {
        subprocess.run(
            [sys.executable, "-c", PLAY], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
        ).stdout
        for seed in (1, 2)
    }  # fmt: skip
    assert len(told) == 1


def test_ends_and_achievements():
    env = open_gym(NAME, size=32, limit=5)
    env.reset(seed=0)
    steps = [env.step(0) for _ in range(5)]
    assert [step[2:4] for step in steps] == [(False, False)] * 4 + [(False, True)]
    assert [bool(step[4]) for step in steps] == [False] * 4 + [True]
    assert len(steps[-1][4]["achievements"]) == 22
    env.reset(seed=0)
    env.unwrapped._game._player.health = 0
    assert env.step(0)[2:4] == (True, False)
    with pytest.raises(ValueError, match="does not take stack; it takes size and limit"):
        open_gym(NAME, stack=4)
    with pytest.raises(ValueError, match="unknown; there are Crafter/Reward-v1 and"):
        open_gym("Crafter/Other-v1")


def test_the_score_by_hand():
    """Two of two episodes have wood, one a sapling, none coal: 100, 50 and 0 percent."""
    finished = Finished()
    finished.judge({"achievements": {"wood": 3, "sapling": 0, "coal": 0}})
    finished.judge({})
    finished.judge({"achievements": {"wood": 1, "sapling": 2, "coal": 0}})
    found = finished.metrics()
    assert found["achieved/wood"] == 1
    assert found["achieved/sapling"] == 0.5
    expected = math.exp((math.log(101) + math.log(51) + math.log(1)) / 3) - 1
    assert found["achieved/score"] == pytest.approx(expected)
    other = Finished()
    other.load_state_dict(finished.state_dict())
    assert other.metrics() == found


@pytest.mark.parametrize("kind", [RecordCollector, VectorCollector])
def test_a_collector_tells_of_achievements(kind):
    env = make_env(NAME, 2, size=32, limit=6)
    torch.manual_seed(0)
    if kind is RecordCollector:
        collector = RecordCollector(env, dreamer_actor(env, "debug"), seed=0)
    else:
        collector = VectorCollector(env, None, frames_per_batch=2, seed=0)
    for _ in range(16):
        batch = collector.next()
    found = collector.metrics()
    assert found["collect/episodes"] == 4
    shares = {key: x for key, x in found.items() if key.startswith("achieved/")}
    assert len(shares) == 23
    assert all(0 <= x <= 1 for key, x in shares.items() if key != "achieved/score")
    assert batch["observation"].shape == (2, 1, 3, 32, 32)
    assert np.isfinite(shares["achieved/score"])
