"""Workers of Ray: the batches of one process, to the bit, whoever dies."""

from __future__ import annotations

import os
import re
import signal
import sys
from copy import deepcopy

import gymnasium as gym
import numpy as np
import pytest
import torch
from collecting import assert_same
from recipes.harness import load_recipe
from recurrent_toy import Diary, Toy
from torchrl.envs import RewardScaling, TransformedEnv

from composerl.bookkeeping.trees import load_tree, save_tree
from composerl.data import RecordCollector, VectorCollector
from composerl.envs import make_env
from composerl.modules import iqn_network

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    os.environ.setdefault("RAY_AUTH_TOKEN", "0" * 64)
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, object_store_memory=100 << 20,
        log_to_driver=False, logging_level="ERROR",
    )  # fmt: skip
    yield
    ray.shutdown()


def cartpole(workers, **options):
    """Five environments of scaled rewards, ten steps of each in a batch, the first at random."""
    torch.manual_seed(0)
    env = make_env("CartPole-v1", 5, transforms=[RewardScaling(0.0, 0.5)])
    actor = iqn_network(env, (16, 16))
    options = {"frames_per_batch": 5 * 10, "init_random_frames": 5 * 10, "seed": 3} | options
    return VectorCollector(env, actor, workers=workers, **options)


def records(workers):
    """One record of each of five environments in a batch, the first ones at random."""
    torch.manual_seed(0)
    return RecordCollector(
        make_env(Diary, 5), Toy(), init_random_frames=5 * 4, seed=4, workers=workers
    )


def train(collector, turns, seed=0):
    """Batches, between which the policy changes: its weights, and its share of random actions."""
    torch.manual_seed(seed)
    found = []
    for turn in range(turns):
        if hasattr(collector.policy, "epsilon"):
            collector.policy.epsilon = 1 / (2 + turn)
        found.append((collector.next(), collector.metrics()))
        torch.rand(turn)  # as an update would
        with torch.no_grad():
            for parameter in collector.policy.parameters():
                parameter.mul_(1.1)
    return found, torch.get_rng_state()


def assert_equal_runs(ours, theirs):
    for (batch, metrics), (other, expected) in zip(ours[0], theirs[0], strict=True):
        assert_same(batch, other)
        assert metrics == expected
    assert torch.equal(ours[1], theirs[1])  # the learner goes on with the same random numbers


def kill(collector, number):
    """Really kill a worker's process."""
    worker = collector._workers._shares[number]
    os.kill(ray.get(worker.__ray_call__.remote(lambda share: os.getpid())), signal.SIGKILL)


@pytest.mark.parametrize(("make", "turns"), [(cartpole, 5), (records, 40)])
def test_two_workers_are_one_process_also_when_one_dies(make, turns, caplog, tmp_path):
    """Batches, metrics, draws and state; then from a saved state, in fresh workers and in none."""
    one, two = make(workers=0), make(workers=2)
    assert two.fast
    assert_equal_runs(train(two, turns), train(one, turns))
    assert two.metrics()["collect/episodes"] > 5
    kill(two, 1)
    assert_equal_runs(train(two, 2, seed=1), train(one, 2, seed=1))
    told = [record.getMessage() for record in caplog.records]
    # (a busy machine may also say that workers take long to start)
    assert [line for line in told if "have not started" not in line] == [
        "worker 2 of 2 has died; another plays its episodes again"
    ]
    for collector in (one, two):
        save_tree(tmp_path / str(collector is two), "checkpoint", deepcopy(collector.state_dict()))
    assert (tmp_path / "True").read_bytes() == (tmp_path / "False").read_bytes()
    state = load_tree(tmp_path / "True", "checkpoint")
    expected = train(one, 3, seed=2)
    for again in (one, two):
        again.load_state_dict(deepcopy(state))
        assert_equal_runs(train(again, 3, seed=2), expected)
    # An episode that is started by hand is started there, too.
    for collector in (one, two):
        collector.reset()
    assert_equal_runs(train(two, 2, seed=2), train(one, 2, seed=2))
    two.shutdown()
    if make is cartpole:
        fresh = make(workers=1)
        fresh.load_state_dict(deepcopy(state))
        assert_equal_runs(train(fresh, 3, seed=2), expected)
        fresh.shutdown()


class Forgetful(gym.Env):
    """Shows in which process it is: seeds and actions do not lead back. It breaks at step 6."""

    observation_space = gym.spaces.Box(0, np.inf, (1,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.array([float(os.getpid())]), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 6:
            raise OSError("it is broken")
        return np.array([float(os.getpid())]), 1.0, False, False, {}


def test_what_cannot_be_played_again_is_said_and_starts_anew_and_errors_are_raised_here(caplog):
    collector = VectorCollector(make_env(Forgetful, 1), None, frames_per_batch=4, seed=0, workers=1)
    before = collector.next()  # the first episode was the learner's
    assert "environment 0 does not repeat itself" in caplog.text
    kill(collector, 0)
    after = collector.next()
    assert caplog.text.count("environment 0 does not repeat itself") == 2
    ids = [batch["collector", "traj_ids"].unique().item() for batch in (before, after)]
    assert ids[0] < ids[1]
    with pytest.raises(OSError, match="it is broken"):
        collector.next()
    collector.shutdown()


LEVEL = '''
import torch
from torch import nn

class Level(nn.Module):
    """Acts by its only weight, plus some noise."""

    def __init__(self):
        super().__init__()
        self.level = nn.Parameter(torch.zeros(()))

    def forward(self, observation):
        return self.level + 0.1 * torch.rand(len(observation), 1)

    explore = forward
'''


def test_async_asks_ahead_and_a_checkpoint_is_a_point_to_go_on_from(tmp_path):
    """A batch acts by the weights that were there when the one before it had come.

    The policy is of a file that workers cannot import, as a recipe is.
    """
    (tmp_path / "level_recipe.py").write_text(LEVEL)
    policy = load_recipe(tmp_path / "level_recipe.py").Level()
    collector = VectorCollector(
        make_env("Pendulum-v1", 3), policy, frames_per_batch=6, seed=0, workers=2, collect="async"
    )

    def play(*levels):
        found = []
        for level in levels:
            policy.level.data.fill_(level)
            found.append(collector.next())
        return found

    start = deepcopy(collector.state_dict())
    torch.manual_seed(0)
    first = play(0.0, 0.5, 1.0)
    assert [batch["action"].amin().item() // 0.5 for batch in first] == [0, 0, 1]
    here, there = first[1]["observation"][:, 0], first[0]["next", "observation"][:, -1]
    assert torch.equal(here, there)
    assert len(first[0]["action"].unique()) == 6  # each worker draws for itself
    state, draws = deepcopy(collector.state_dict()), torch.get_rng_state()
    second = play(1.5, 0.0)
    assert [batch["action"].amin().item() // 0.5 for batch in second] == [3, 3]
    for where, levels, batches in ((start, (0.0, 0.5, 1.0), first), (state, (1.5, 0.0), second)):
        collector.load_state_dict(deepcopy(where))
        if where is start:
            torch.manual_seed(0)
        else:
            torch.set_rng_state(draws)
        for again, batch in zip(play(*levels), batches, strict=True):
            assert_same(again, batch)
    collector.shutdown()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 6}, "workers must be at most the environments (5), got 6"),
        ({"workers": 3}, "workers must be at most the cores of Ray (2), got 3"),
        ({"workers": 2, "seed": None}, "workers need a seed"),
        ({"workers": 2, "max_frames_per_traj": 5}, "workers need a seed, environments of"),
    ],
)
def test_what_is_refused(options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        cartpole(**options)


def test_an_environment_wrapped_later_is_refused():
    env = TransformedEnv(make_env("CartPole-v1", 2), RewardScaling(0.0, 2.0))
    with pytest.raises(ValueError, match=r"make_env\(transforms=...\)"):
        VectorCollector(env, None, frames_per_batch=2, seed=0, workers=1)


def test_an_address_where_nothing_answers_is_refused(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    for address, words in (("127.0.0.1:1", "refused"), ("here", "expected auto or HOST:PORT")):
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(ValueError, match=f"RAY_ADDRESS={address}: no Ray .*{words}"):
            cartpole(workers=2)


def test_without_ray_there_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"Ray is not installed: pip install 'composerl\[ray\]'"):
        cartpole(workers=2)
    assert cartpole(workers=0).next().numel() == 50
