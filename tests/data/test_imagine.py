"""Imagined rollouts: a perfect model equals the environment, branches stop at terminals."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.envs import StepCounter, TransformedEnv
from torchrl.envs.utils import check_env_specs

from composerl.data import ModelEnv, branched_rollouts, length_schedule
from composerl.data import imagine as module
from composerl.envs.spaces import Spaces
from composerl.modules import ensemble, tanh_gaussian_actor

PENDULUM = Spaces.of("Pendulum-v1")


class Pendulum(nn.Module):
    """Pendulum-v1 written in torch: the perfect model."""

    def forward(self, observation, action):
        cos, sin, speed = observation.unbind(-1)
        angle, torque = torch.atan2(sin, cos), action[..., 0].clamp(-2, 2)
        reward = -(angle**2 + 0.1 * speed**2 + 0.001 * torque**2)
        speed = (speed + (15 * sin + 3 * torque) * 0.05).clamp(-8, 8)
        angle = angle + speed * 0.05
        following = torch.stack([angle.cos(), angle.sin(), speed], -1)
        return following, reward.unsqueeze(-1)


KEYS = [("next", "observation"), ("next", "reward")]


def perfect():
    return TensorDictModule(Pendulum(), ["observation", "action"], KEYS)


def torque(observation):
    """A deterministic policy that uses all of the observation."""
    return (observation[:, 1:2] - 0.3 * observation[:, 2:]).clamp(-2, 2)


class Scripted(nn.Module):
    def explore(self, observation):
        return torque(observation)


def test_perfect_model_equals_the_environment():
    """Five episodes of 20 steps, all branches at once against one environment after the other."""
    env, expected, starts = gym.make("Pendulum-v1"), [], []
    for seed in range(5):
        obs, _ = env.reset(seed=seed)
        starts.append(torch.tensor(obs))
        for _ in range(20):
            action = torque(torch.tensor(obs)[None])[0]
            following, reward, *_ = env.step(action.numpy())
            expected.append((obs, action.numpy(), following, reward))
            obs = following
    out = branched_rollouts(perfect(), Scripted(), torch.stack(starts), 20)
    assert out.shape == (100,)
    by_branch = out.reshape(20, 5).transpose(0, 1).reshape(100)
    got = (by_branch["observation"], by_branch["action"], by_branch["next", "observation"])
    for name, values in zip(("obs", "action", "next"), got, strict=True):
        truth = np.stack([row[("obs", "action", "next").index(name)] for row in expected])
        np.testing.assert_allclose(values, truth, atol=2e-3, err_msg=name)
    rewards = np.array([[row[3]] for row in expected])
    np.testing.assert_allclose(by_branch["next", "reward"], rewards, atol=5e-3)
    # the rollout as a TorchRL environment is the same one
    model_env = ModelEnv(perfect(), PENDULUM, lambda number: torch.stack(starts), batch_size=[5])
    policy = TensorDictModule(torque, ["observation"], ["action"])
    torch.testing.assert_close(
        model_env.rollout(20, policy)["next", "observation"].flatten(0, 1),
        by_branch["next", "observation"],
    )


class Counter(nn.Module):
    """Adds one to the observation; its reward is the observation."""

    def forward(self, observation, action):
        return observation + 1 + 0 * action.sum(-1, keepdim=True), observation[:, :1] * 1.0


def counter():
    return TensorDictModule(Counter(), ["observation", "action"], KEYS)


class Still(nn.Module):
    def explore(self, observation):
        return torch.zeros(len(observation), 1)


def from_ten(observation, action, following):
    assert observation.shape == following.shape
    assert action.shape == (len(observation), 1)
    return following[:, 0] >= 10


def test_branches_stop_at_terminals():
    """From 5, 8 and 9 to 10: branches of 4, 2 and 1 steps; the first is cut by the length 4."""
    starts = torch.tensor([[5.0], [8.0], [9.0]])
    out = branched_rollouts(counter(), Still(), starts, 4, termination=from_ten)
    assert out["observation"].squeeze(-1).tolist() == [5, 8, 9, 6, 9, 7, 8]
    assert out["next", "observation"].squeeze(-1).tolist() == [6, 9, 10, 7, 10, 8, 9]
    assert out["next", "reward"].squeeze(-1).tolist() == [5, 8, 9, 6, 9, 7, 8]
    ends = [out["next", key].squeeze(-1).tolist() for key in ("terminated", "truncated", "done")]
    assert ends[0] == [False, False, True, False, True, False, False]
    assert ends[1] == [False] * 6 + [True]
    assert ends[2] == [False, False, True, False, True, False, True]
    over = branched_rollouts(counter(), Still(), starts + 9, 4, termination=from_ten)
    assert len(over) == 3


def test_the_last_step_of_a_branch_may_terminate():
    out = branched_rollouts(counter(), Still(), torch.tensor([[9.0]]), 1, termination=from_ten)
    assert out["next", "terminated"].item()
    assert not out["next", "truncated"].item()


def test_many_branches_are_rolled_out_in_parts(monkeypatch):
    """The transitions are the same ones, in another order."""
    starts = torch.arange(10.0).unsqueeze(-1)
    whole = branched_rollouts(counter(), Still(), starts, 5, termination=from_ten)
    monkeypatch.setattr(module, "CHUNK", 3)
    parts = branched_rollouts(counter(), Still(), starts, 5, termination=from_ten)
    assert len(parts) == len(whole)
    for key in ("observation", ("next", "observation"), ("next", "truncated")):
        assert sorted(parts[key].flatten().tolist()) == sorted(whole[key].flatten().tolist())


def test_without_a_termination_nothing_ends():
    out = branched_rollouts(counter(), Still(), torch.tensor([[9.0]]), 5)
    assert out["next", "observation"].squeeze(-1).tolist() == [10, 11, 12, 13, 14]
    assert not out["next", "terminated"].any()
    moved = module._predict(
        counter().to("meta"), torch.zeros(2, 1, device="meta"), torch.zeros(2, 1, device="meta"),
        None,
    )  # fmt: skip
    assert {x.device.type for x in moved.values()} == {"meta"}


def test_the_model_s_head_ends_branches_unless_a_function_is_given():
    model = ensemble(PENDULUM, (8,), terminates=True)
    with torch.no_grad():
        model.module.layers[-1].weight[..., -1] = 0
        model.module.layers[-1].bias[..., -1] = 1.0
    actor, starts = tanh_gaussian_actor(PENDULUM, (8,)), torch.randn(6, 3)
    assert branched_rollouts(model, actor, starts, 3)["next", "terminated"].all()
    out = branched_rollouts(
        model, actor, starts, 3, termination=lambda s, a, t: torch.zeros(len(s), dtype=torch.bool)
    )
    assert len(out) == 18
    assert not out["next", "terminated"].any()


def test_policies_explore_and_nothing_carries_a_gradient():
    model, actor = ensemble(PENDULUM, (8,)), tanh_gaussian_actor(PENDULUM, (8,))
    start = torch.zeros(200, 3)
    out = branched_rollouts(model, actor, start, 2)
    assert all(not value.requires_grad for value in out.values(True, True))
    assert out["action"][:200].std() > 0.3
    # a policy that has no explore() is called as a TensorDictModule, and explores too
    plain = TensorDictModule(lambda x: torch.randn(len(x), 1), ["observation"], ["action"])
    assert branched_rollouts(model, plain, start, 1)["action"].std() > 0.3


def test_repeats_with_the_global_generator():
    model, actor = ensemble(PENDULUM, (8,)), tanh_gaussian_actor(PENDULUM, (8,))
    outs = []
    for _ in range(2):
        torch.manual_seed(3)
        outs.append(branched_rollouts(model, actor, torch.ones(20, 3), 3))
    assert all(
        torch.equal(a, b)
        for a, b in zip(outs[0].values(True, True), outs[1].values(True, True), strict=True)
    )


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_model_as_an_environment(shape):
    starts = torch.randn(50, 3)
    env = ModelEnv(ensemble(PENDULUM, (8,)), PENDULUM, starts, batch_size=shape)
    check_env_specs(env)
    actor = tanh_gaussian_actor(PENDULUM, (8,))
    out = env.rollout(7, actor)
    assert out.shape == (*shape, 7)
    firsts = out["observation"][..., 0, :].reshape(-1, 3)
    assert all(any(torch.equal(first, start) for start in starts) for first in firsts)
    assert not out["next", "observation"].requires_grad
    torch.testing.assert_close(
        out["next", "observation"][..., :-1, :], out["observation"][..., 1:, :]
    )
    assert Spaces.of(env) == PENDULUM


def test_environment_terminates_resets_and_takes_a_step_counter():
    spaces = Spaces(obs_shape=(1,), low=(-1.0,), high=(1.0,))
    env = ModelEnv(
        counter(), spaces, torch.tensor([[7.0], [0.0]]), termination=from_ten, batch_size=[2]
    )
    torch.manual_seed(0)
    out = TransformedEnv(env, StepCounter(max_steps=5)).rollout(12, break_when_any_done=False)
    following, ended = out["next", "observation"], out["next", "terminated"]
    assert torch.equal(ended, following >= 10)
    assert ended.any()
    done = out["next", "done"][:, :-1]
    restarted, carried = out["observation"][:, 1:][done], out["observation"][:, 1:][~done]
    assert set(restarted.tolist()) <= {0.0, 7.0}
    assert torch.equal(carried, following[:, :-1][~done])
    assert out["next", "step_count"].max() == 5


@pytest.mark.parametrize(
    ("step", "length"),
    [(0, 1), (20, 1), (29, 1), (30, 2), (60, 5), (99, 8), (100, 9), (10**6, 9)],
)
def test_length_schedule(step, length):
    """From 1 at step 20 to 9 at step 100: one more every ten steps."""
    assert length_schedule(1, 9, 20, 100)(step) == length


def test_length_schedule_may_be_constant_or_a_step():
    assert [length_schedule(3, 3)(step) for step in (0, 1, 100)] == [3, 3, 3]
    assert [length_schedule(1, 4, 10, 10)(step) for step in (9, 10)] == [1, 4]


def test_bad_arguments():
    model, actor, start = counter(), Still(), torch.zeros(2, 1)
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        branched_rollouts(model, actor, start, 0)
    with pytest.raises(ValueError, match=r"\(branches, obs\), got \(1,\)"):
        branched_rollouts(model, actor, start[0], 1)
    with pytest.raises(ValueError, match="termination must return bool"):
        branched_rollouts(model, actor, start, 1, termination=lambda s, a, t: t[:, 0])
    with pytest.raises(ValueError, match="discrete"):
        ModelEnv(model, Spaces(obs_shape=(1,), num_actions=2), start)
    with pytest.raises(ValueError, match="at least one step"):
        length_schedule(0, 1)
    with pytest.raises(ValueError, match="stop must be at least start=5"):
        length_schedule(1, 2, 5, 4)
