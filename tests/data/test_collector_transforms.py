"""Transforms around environments, on both ways; TorchRL's blocks with ours, ours with theirs."""

from __future__ import annotations

from copy import deepcopy

import gymnasium as gym
import numpy as np
import pytest
import torch
from collecting import assert_same, both_ways, collected, epsilon_greedy, gaussian
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import (
    CatFrames,
    CatTensors,
    Compose,
    DoubleToFloat,
    MultiStepTransform,
    ObservationNorm,
    RewardClipping,
    RewardScaling,
    RewardSum,
    StepCounter,
    TransformedEnv,
)
from torchrl.envs.utils import ExplorationType
from torchrl.objectives import DQNLoss

from composerl.data import VectorCollector
from composerl.envs import make_env
from composerl.envs.spaces import Spaces
from composerl.modules import (
    categorical_actor,
    fqf_network,
    gaussian_actor,
    iqn_network,
    tanh_gaussian_actor,
)

LOC, SCALE = torch.tensor([0.1, -0.2, 0.3]), torch.tensor([0.5, 2.0, 0.125])


def normalised(**options):
    return ObservationNorm(LOC, SCALE, in_keys=["observation"], **options)


def transformed(*transforms, env="Pendulum-v1", num_envs=2):
    return make_env(env, num_envs, seed=5, transforms=transforms)


#: What the fast way does itself.
SIMPLE = {
    "none": lambda: [],
    "clipped": lambda: [RewardClipping(-1.0, -0.5)],
    "scaled": lambda: [RewardScaling(0.25, 3.0)],
    "standardised": lambda: [RewardScaling(loc=torch.tensor([2.0]), scale=torch.tensor([0.1]),
                                           standard_normal=True)],
    "normalised": lambda: [normalised()],
    "divided": lambda: [normalised(standard_normal=True)],
    "by_numbers": lambda: [ObservationNorm(0.5, 2.0, in_keys=["observation"])],
    "one_entry": lambda: [CatTensors(["observation"], "observation")],
    "in_order": lambda: [RewardScaling(0.0, 0.1), normalised(),
                         Compose(normalised(standard_normal=True), RewardClipping(-0.3, 0.0))],
}  # fmt: skip


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("name", SIMPLE)
def test_simple_transforms_are_fast_and_give_torchrl_s_batches(name, num_envs):
    collector, ours, theirs = both_ways(
        lambda: transformed(*SIMPLE[name](), num_envs=num_envs), gaussian,
        frames_per_batch=110 * num_envs, total_frames=220 * num_envs,
        init_random_frames=110 * num_envs,
    )  # fmt: skip
    assert collector.fast
    assert collector.metrics()["collect/episodes"] == num_envs
    for mine, their in zip(ours, theirs, strict=True):
        assert_same(mine, their)


@pytest.mark.parametrize("order", [1, -1])
def test_wide_observations_are_cast_where_the_cast_stands(order):
    """Pendulum made wide: normalised in float64 or in float32, as it is asked for."""

    class Wide(gym.ObservationWrapper):
        def __init__(self):
            super().__init__(gym.make("Pendulum-v1"))
            self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)

        def observation(self, obs):
            return obs.astype(np.float64) + 1e-9

    def make():
        base = make_env(Wide, 2, seed=5)
        layers = [DoubleToFloat(in_keys=["observation"]), normalised()][::order]
        return TransformedEnv(base.base_env, Compose(*layers))

    collector, ours, theirs = both_ways(make, gaussian)
    assert collector.fast
    for mine, their in zip(ours, theirs, strict=True):
        assert_same(mine, their)
        assert mine["observation"].dtype == torch.float32


#: What TorchRL does for us.
OTHER = {
    "step_count": lambda: [StepCounter(50)],
    "reward_sum": lambda: [RewardSum()],
    "frames": lambda: [CatFrames(2, -1, in_keys=["observation"])],
    "all": lambda: [normalised(), CatFrames(2, -1, in_keys=["observation"]), StepCounter(),
                    RewardSum()],
    "another_entry": lambda: [RewardClipping(-1, 0, in_keys=["reward"], out_keys=["clipped"])],
    "of_actions": lambda: [ObservationNorm(0.0, 0.5, in_keys=["observation"],
                                           in_keys_inv=["action"])],
    "of_each_environment": lambda: [ObservationNorm(torch.zeros(2, 3), torch.full((2, 3), 0.5),
                                                    in_keys=["observation"])],
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_other_transforms_take_torchrl_s_way_and_count_episodes(name):
    def policy(env):
        return gaussian(env, env.observation_spec["observation"].shape[-1])

    collector, ours, theirs = both_ways(
        lambda: transformed(*OTHER[name]()), policy, frames_per_batch=210, total_frames=420
    )
    assert not collector.fast
    for mine, their in zip(ours, theirs, strict=True):
        assert_same(mine, their)
    assert collector.metrics()["collect/episodes"] == sum(b["next", "done"].sum() for b in ours)


def test_returns_are_of_the_environment_s_own_rewards_on_the_fast_way():
    collector = VectorCollector(
        transformed(RewardScaling(0.0, 0.5), env="CartPole-v1"), None, frames_per_batch=400
    )
    batch = collector.next()
    assert (batch["next", "reward"] == 0.5).all()
    found = collector.metrics()
    assert collector.fast
    assert found["collect/return"] == found["collect/length"]


@pytest.mark.parametrize("fast", [True, False])
def test_a_collector_with_transforms_goes_on_where_it_was(fast):
    """The statistics come from the state, not from the new environment."""

    def make(factor):
        norm = ObservationNorm(LOC, SCALE * factor, in_keys=["observation"])
        layers = [norm, RewardClipping(-1.0, 0.0)] + ([] if fast else [StepCounter()])
        env = transformed(*layers)
        return collected(VectorCollector, env, gaussian(env), seed=3, total_frames=-1)

    one = make(1.0)
    one.next()
    state = deepcopy(one.state_dict())
    torch.manual_seed(0)
    expected = [one.next() for _ in range(8)]
    other = make(2.0)
    other.load_state_dict(state)
    torch.manual_seed(0)
    for batch in expected:
        mine = other.next()
        for key in ("observation", "action", ("next", "observation"), ("next", "reward")):
            assert torch.equal(mine[key], batch[key]), key
    assert one.fast is other.fast is fast
    assert one.metrics() == other.metrics()


def test_a_reset_and_a_seed_show_the_policy_normalised_observations():
    collector = VectorCollector(transformed(normalised()), None, frames_per_batch=20, seed=0)
    plain = VectorCollector(make_env("Pendulum-v1", 2), None, frames_per_batch=20, seed=0)
    for _ in range(2):
        got, raw = collector.next()["observation"], plain.next()["observation"]
        assert torch.equal(got[:, 0], raw[:, 0] * SCALE + LOC)
        collector.reset(), plain.reset()


def test_a_policy_of_torchrl_s_trains_on_what_is_collected():
    """Values of a transformed environment's steps, counted and stacked, learned by its own loss."""
    env = transformed(
        CatFrames(2, -1, in_keys=["observation"]), StepCounter(), RewardSum(), env="CartPole-v1"
    )
    policy = epsilon_greedy(env, 8)
    collector = VectorCollector(env, policy, frames_per_batch=400, seed=0)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(1000), batch_size=64)
    loss = DQNLoss(policy[0], action_space="categorical", delay_value=True)
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-3)
    losses = []
    for _ in range(2):
        buffer.extend(collector.next().reshape(-1))
        for _ in range(60):
            value = loss(buffer.sample())["loss"]
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            losses.append(value.item())
    assert np.mean(losses[-20:]) < 0.5 * np.mean(losses[:10])


@pytest.mark.parametrize("n", [1, 3])
def test_stock_buffers_take_our_batches_with_steps_put_together(n):
    """Each stored reward is the discounted sum of those up to the episode's end, by hand."""
    env = make_env("CartPole-v1", 2)
    collector = VectorCollector(env, epsilon_greedy(env), frames_per_batch=200, seed=0)
    assert collector.fast
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(1000, ndim=2), transform=MultiStepTransform(n, 0.9)
    )
    batches = [collector.next() for _ in range(2)]
    for batch in batches:
        buffer.extend(batch)
    whole, stored = torch.cat(batches, 1), buffer[:]
    kept = stored.shape[1]
    assert kept >= 200 - n
    for i in range(2):
        for t in range(kept):
            gained, k = 0.0, 0
            while True:
                gained += 0.9**k * whole["next", "reward"][i, t + k].item()
                k += 1
                if k == n or whole["next", "done"][i, t + k - 1]:
                    break
            assert stored["next", "reward"][i, t].item() == pytest.approx(gained)
            there = whole["next", "observation"][i, t + k - 1]
            assert torch.equal(stored["next", "observation"][i, t], there)


@pytest.mark.parametrize("explore", [True, False])
@pytest.mark.parametrize(
    ("env", "factory"),
    [
        ("Pendulum-v1", gaussian_actor),
        ("Pendulum-v1", tanh_gaussian_actor),
        ("CartPole-v1", categorical_actor),
        ("CartPole-v1", iqn_network),
        ("CartPole-v1", fqf_network),
    ],
)
@pytest.mark.parametrize("num_envs", [1, 2])
def test_torchrl_s_collector_runs_our_policies(env, factory, num_envs, explore):
    torch.manual_seed(0)
    made = make_env(env, num_envs, seed=5)
    actor = factory(Spaces.of(env), (8, 8))
    if hasattr(actor, "epsilon"):
        actor.epsilon = 0.5
    kind = ExplorationType.RANDOM if explore else ExplorationType.DETERMINISTIC
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(1000), batch_size=16)
    collector = collected(
        Collector, made, actor, exploration_type=kind, init_random_frames=60, total_frames=240
    )
    for batch in collector:
        buffer.extend(batch.reshape(-1))
    assert len(buffer) == 240
    seen = batch["observation"].reshape(-1, batch["observation"].shape[-1])
    greedy = actor.greedy(seen).reshape(batch["action"].shape)
    assert torch.allclose(greedy, batch["action"], atol=1e-6) is not explore
    other = collected(Collector, made, factory(Spaces.of(env), (8, 8)))
    other.load_state_dict(deepcopy(collector.state_dict()))
    assert torch.equal(other.policy.greedy(seen), actor.greedy(seen))
