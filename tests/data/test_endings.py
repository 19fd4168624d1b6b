"""Known ends of episodes are those of gymnasium's environments."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from composerl.data import ENDINGS

ENVS = {
    "inverted_pendulum": "InvertedPendulum-v5",
    "hopper": "Hopper-v5",
    "walker": "Walker2d-v5",
    "ant": "Ant-v5",
}


@pytest.mark.parametrize("name", ENVS)
def test_known_terminations_are_the_environments_own(name):
    pytest.importorskip("mujoco")
    env = gym.make(ENVS[name])
    env.action_space.seed(0)
    seen, acted, following, ended = [], [], [], []
    for seed in range(8):
        obs, _ = env.reset(seed=seed)
        for _ in range(150):
            seen.append(obs)
            acted.append(env.action_space.sample())
            obs, _, terminated, truncated, _ = env.step(acted[-1])
            following.append(obs)
            ended.append(terminated)
            if terminated or truncated:
                break
    rows = [torch.tensor(np.array(column)) for column in (seen, acted, following)]
    assert torch.equal(ENDINGS[name](*rows), torch.tensor(ended))
    if name != "ant":  # which takes a while to fall
        assert any(ended)
    assert not all(ended)
    broken = torch.full((1, len(obs)), float("nan"))
    assert ENDINGS[name](rows[0][:1], rows[1][:1], broken).all()


def test_every_rule_has_its_environment_here():
    assert set(ENDINGS) == set(ENVS)
