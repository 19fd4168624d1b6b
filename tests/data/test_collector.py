"""The collector: TorchRL's transitions, without its cost, and where the fast way ends."""

from __future__ import annotations

from copy import deepcopy

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
from torchrl.envs.utils import ExplorationType

from composerl.bookkeeping.trees import load_tree, save_tree
from composerl.data import VectorCollector
from composerl.envs import make_env
from composerl.envs.spaces import Spaces
from composerl.modules import tanh_gaussian_actor


class Greedy(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, obs):
        out = self.net(obs)
        return out.argmax(-1) if out.shape[-1] > 1 else out.clamp(-2, 2)


def policy(env):
    torch.manual_seed(0)
    spaces = Spaces.of(env)
    net = nn.Linear(spaces.obs_dim, spaces.action_dim)
    return TensorDictModule(Greedy(net), ["observation"], ["action"])


class Counter(gym.Env):
    """Observation: (episode, step). Ends after `length` steps: odd episodes are truncated."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, length=7):
        self.length, self.episode = length, -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return np.array([self.episode, 0.0]), {}

    def step(self, action):
        assert type(action) is int
        self.t += 1
        over, odd = self.t == self.length, self.episode % 2 == 1
        return np.array([self.episode, self.t]), self.t, over and not odd, over and odd, {}


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0"])
def test_equals_torchrl_transition_for_transition(env, num_envs):
    batches = []
    for kind in (Collector, VectorCollector):
        made, acts = make_env(env, num_envs, seed=5), policy(env)
        torch.manual_seed(1)
        collector = kind(
            made, acts, frames_per_batch=num_envs * 250, total_frames=num_envs * 750,
            init_random_frames=num_envs * 250, auto_register_policy_transforms=False,
        )  # fmt: skip
        batches.append(list(collector))
    assert collector.fast
    assert len(batches[0]) == len(batches[1]) == 3
    for theirs, ours in zip(*batches, strict=True):
        assert theirs.batch_size == ours.batch_size
        assert set(theirs.keys(True, True)) == set(ours.keys(True, True))
        for key in theirs.keys(True, True):
            assert theirs[key].dtype == ours[key].dtype, key
            assert torch.equal(theirs[key], ours[key]), key


def test_no_row_crosses_a_reset_over_a_thousand_episodes():
    collector = VectorCollector(make_env(Counter, 4), None, frames_per_batch=4 * 7 * 250)
    batch = collector.next()
    here, there = batch["observation"], batch["next", "observation"]
    assert torch.equal(here[..., 0], there[..., 0])
    assert torch.equal(here[..., 1] + 1, there[..., 1])
    over = there[..., 1:] == 7
    odd = here[..., :1] % 2 == 1
    assert torch.equal(batch["next", "truncated"], over & odd)
    assert torch.equal(batch["next", "terminated"], over & ~odd)
    assert torch.equal(batch["next", "done"], over)
    assert torch.equal(batch["next", "reward"], there[..., 1:])
    ids = batch["collector", "traj_ids"]
    assert torch.equal(ids[:, 1:] != ids[:, :-1], over[:, :-1, 0])
    assert len(ids.unique()) == 1000
    assert collector.metrics() == {
        "collect/episodes": 1000.0, "collect/return": 28.0, "collect/length": 7.0
    }  # fmt: skip


def test_episodes_go_on_from_batch_to_batch():
    collector = VectorCollector(make_env(Counter, 2), None, frames_per_batch=2 * 5)
    first, second = collector.next(), collector.next()
    assert first["next", "observation"][0, -1].tolist() == second["observation"][0, 0].tolist()
    assert second["next", "done"][:, :, 0].tolist() == [[False, True, False, False, False]] * 2


def test_seeded_episodes_repeat_and_differ_from_each_other():
    def starts(seed):
        collector = VectorCollector(make_env("CartPole-v1", 3), None, frames_per_batch=3, seed=seed)
        return collector.next()["observation"][:, 0]

    assert torch.equal(starts(0), starts(0))
    assert not torch.equal(starts(0), starts(1))
    assert len(starts(0).unique(dim=0)) == 3


def collect(collector, batches):
    torch.manual_seed(0)
    return [collector.next() for _ in range(batches)]


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_a_loaded_collector_goes_on_in_the_middle_of_its_episodes(env, tmp_path):
    def make():
        return VectorCollector(make_env(env, 3), policy(env), frames_per_batch=3 * 17, seed=4)

    one = make()
    collect(one, 3)
    save_tree(tmp_path / "state", "checkpoint", deepcopy(one.state_dict()))
    expected = collect(one, 20)

    other = make()
    other.load_state_dict(load_tree(tmp_path / "state", "checkpoint"))
    for a, b in zip(expected, collect(other, 20), strict=True):
        for key in a.keys(True, True):
            assert torch.equal(a[key], b[key]), key
    assert one.metrics() == other.metrics()


def test_an_environment_that_does_not_repeat_itself_is_said_and_starts_anew(caplog):
    def make():
        return VectorCollector(make_env(Counter, 2), None, frames_per_batch=2 * 4, seed=0)

    one = make()
    one.next()
    state = one.state_dict()
    other = make()
    other._envs[0].unwrapped.episode = 10  # as if it remembered something of its own
    other.load_state_dict(state)
    batch = other.next()
    assert "environment 0 does not repeat itself" in caplog.text
    assert batch["observation"][0, 0, 1] == 0
    assert batch["observation"][1, 0, 1] in (0, 4)
    assert batch["collector", "traj_ids"][0, 0] > state["live"]["ids"].max()


def test_a_policy_of_ours_acts_within_bounds_and_only_its_action_is_stored():
    actor = tanh_gaussian_actor(Spaces.of("Pendulum-v1"), (8,))
    collector = VectorCollector(make_env("Pendulum-v1", 2), actor, frames_per_batch=400)
    batch = collector.next()
    assert batch["action"].shape == (2, 200, 1)
    assert batch["action"].abs().max() <= 2
    assert "loc" not in batch.keys()  # noqa: SIM118
    assert batch["next", "truncated"][:, -1].all()
    assert not batch["next", "terminated"].any()


@pytest.mark.parametrize(
    ("env", "options"),
    [
        (lambda: TransformedEnv(make_env("CartPole-v1", 2), StepCounter()), {}),
        (lambda: GymEnv("CartPole-v1"), {}),
        (lambda: make_env("CartPole-v1", 2), {"max_frames_per_traj": 5}),
        (lambda: make_env("CartPole-v1", 2), {"reset_at_each_iter": True}),
    ],
    ids=["transform", "one-hot", "max_frames", "reset_at_each_iter"],
)
def test_what_it_cannot_accelerate_takes_torchrl_s_way(env, options):
    collector = VectorCollector(env(), None, frames_per_batch=100, seed=0, **options)
    assert not collector.fast
    first = collector.next()
    assert first.numel() == 100
    assert collector.metrics()["collect/episodes"] == first["next", "done"].sum()
    state = deepcopy(collector.state_dict())
    torch.manual_seed(0)
    going_on = collector.next()
    resumed = VectorCollector(env(), None, frames_per_batch=100, seed=0, **options)
    resumed.load_state_dict(state)
    torch.manual_seed(0)
    other = resumed.next()
    for key in ("observation", "action", ("next", "reward")):
        assert torch.equal(going_on[key], other[key]), key


def test_reset_and_set_seed_start_new_episodes():
    collector = VectorCollector(make_env("CartPole-v1", 2), None, frames_per_batch=6)
    before = collector.next()
    collector.reset()
    after = collector.next()
    assert (after["collector", "traj_ids"] > before["collector", "traj_ids"].max()).all()
    assert not torch.equal(after["observation"][:, 0], before["next", "observation"][:, -1])
    starts = []
    for _ in range(2):
        collector.set_seed(3)
        starts.append(collector.next()["observation"][:, 0])
    assert torch.equal(*starts)


def test_reset_of_a_seeded_collector_goes_on_with_its_own_seeds_and_can_be_loaded():
    """No start comes twice; one environment can be reset alone, and the other plays on."""

    def make():
        return VectorCollector(make_env("CartPole-v1", 2), None, frames_per_batch=6, seed=0)

    collector = make()
    batches = [collector.next()]
    collector.reset()
    batches.append(collector.next())
    collector.reset(torch.tensor([1]))
    batches.append(collector.next())
    starts = torch.cat([b["observation"][:, 0] for b in batches])
    assert len(starts.unique(dim=0)) == len(starts)
    ids = [b["collector", "traj_ids"][:, 0].tolist() for b in batches]
    assert ids[0][0] < ids[1][0] == ids[2][0]
    assert torch.equal(batches[2]["observation"][0, 0], batches[1]["next", "observation"][0, -1])
    assert ids[2][1] not in (ids[0][1], ids[1][1])
    assert collector._live.lengths == [6, 3]

    other = make()
    other.load_state_dict(deepcopy(collector.state_dict()))
    torch.manual_seed(0)
    expected = collector.next()
    torch.manual_seed(0)
    assert torch.equal(other.next()["observation"], expected["observation"])


def test_a_seed_set_before_the_first_batch_counts():
    def start(**options):
        collector = VectorCollector(make_env("CartPole-v1"), None, frames_per_batch=1, **options)
        collector.set_seed(3)
        return collector.next()["observation"]

    assert torch.equal(start(seed=0), start(seed=1))


def test_an_empty_replay_buffer_is_filled():
    from torchrl.data import LazyTensorStorage, ReplayBuffer

    buffer = ReplayBuffer(storage=LazyTensorStorage(100))
    env = make_env("CartPole-v1")
    collector = VectorCollector(env, None, frames_per_batch=10, replay_buffer=buffer)
    assert collector.fast
    assert collector.next() is None
    assert len(buffer) == 10


def test_without_exploration_a_policy_of_ours_is_greedy():
    from composerl.modules import iqn_network

    torch.manual_seed(0)
    actor = iqn_network(Spaces.of("CartPole-v1"), (8, 8))
    actor.epsilon = 1.0
    for kind, greedy in ((ExplorationType.DETERMINISTIC, True), (ExplorationType.RANDOM, False)):
        collector = VectorCollector(
            make_env("CartPole-v1"), actor, frames_per_batch=100, exploration_type=kind
        )
        batch = collector.next()
        assert torch.equal(batch["action"], actor.greedy(batch["observation"])) is greedy


def test_an_unseeded_collector_starts_anew_when_a_state_is_loaded():
    collector = VectorCollector(make_env("CartPole-v1"), None, frames_per_batch=5)
    collector.next()
    collector.load_state_dict(deepcopy(collector.state_dict()))
    batch = collector.next()
    # One step of CartPole moves the cart by its speed times 0.02.
    moved = batch["next", "observation"][:, 0] - batch["observation"][:, 0]
    torch.testing.assert_close(moved, 0.02 * batch["observation"][:, 1], atol=1e-6, rtol=0)


def test_actions_that_do_not_start_at_zero_are_refused():
    class Shifted(Counter):
        action_space = gym.spaces.Discrete(3, start=5)

    with pytest.raises(ValueError, match="must start at 0"):
        Spaces.of(Shifted)


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.float16, bool])
def test_observations_of_other_types_are_float32(dtype):
    class Other(Counter):
        observation_space = gym.spaces.Box(0, 1, (2,), dtype)

        def reset(self, **options):
            return super().reset(**options)[0].astype(dtype), {}

        def step(self, action):
            obs, *rest = super().step(action)
            return obs.astype(dtype), *rest

    collector = VectorCollector(make_env(Other, 2), None, frames_per_batch=20)
    batch = collector.next()
    assert collector.fast
    assert batch["observation"].dtype == batch["next", "observation"].dtype == torch.float32
