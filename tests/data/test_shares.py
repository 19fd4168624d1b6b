"""Shares of environments give the batches of all of them together; here, Ray is a stand-in.

Its workers are objects in this process, so that many policies, environments and options can be
tried in seconds. ``test_ray_collector.py`` has real ones, and kills them.
"""

from __future__ import annotations

import pickle
from functools import partial
from types import SimpleNamespace

import masked_env  # noqa: F401  registers Doors
import pytest
import torch
from collecting import assert_same, epsilon_greedy, gaussian
from mixed_env import Both
from recurrent_toy import Diary, Toy
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import ObservationNorm, RewardClipping

from composerl.data import RecordCollector, VectorCollector
from composerl.data.collect import workers as module
from composerl.envs import make_env
from composerl.modules import categorical_actor, dreamer_actor, iqn_network, tanh_gaussian_actor


class Here:
    """A worker in this process; ``dies`` makes a new one of it."""

    def __init__(self, kind):
        self.kind = kind
        self.dies()

    def dies(self):
        self.share = self.kind()

    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda *args: getattr(self.share, name)(*args))

    __ray_ready__ = SimpleNamespace(remote=lambda: None)


class StandIn:
    """As much of Ray as workers need."""

    cloudpickle = SimpleNamespace(dumps=pickle.dumps, register_pickle_by_value=lambda module: None)
    exceptions = SimpleNamespace(RayActorError=ConnectionError)

    def remote(self, kind):
        self.kind = kind
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=partial(Here, kind)))

    def put(self, value):
        return value

    get = put

    def wait(self, refs, **_):
        return refs, []

    def cluster_resources(self):
        return {"CPU": 8.0}


@pytest.fixture(autouse=True)
def ray(monkeypatch):
    monkeypatch.setattr(module, "connect", lambda purpose, address: StandIn())


def batches(make, workers, number=6):
    """Some batches, with other weights for each; a worker dies in between."""
    torch.manual_seed(0)
    collector = make(workers=workers)
    torch.manual_seed(1)
    found = []
    for turn in range(number):
        if workers and turn == number // 2:
            collector._workers._shares[-1].dies()
        found.append(collector.next())
        for parameter in getattr(collector.policy, "parameters", list)():
            parameter.data.mul_(1.1)
    return collector, found, torch.get_rng_state()


def vector(env, policy, number=5, steps=12, **options):
    def make(workers):
        made = env(number)
        frames = (number or 1) * steps
        acts = policy and policy(made)
        return VectorCollector(
            made, acts, frames_per_batch=frames, seed=2, workers=workers, **options
        )

    return make


pendulums = partial(make_env, "Pendulum-v1")
poles = partial(make_env, "CartPole-v1")
norm = ObservationNorm(loc=0.5, scale=2.0, in_keys=["observation"])
small_iqn = partial(iqn_network, hidden=(16, 16))


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "make",
    [
        vector(poles, small_iqn, init_random_frames=60),
        vector(pendulums, partial(tanh_gaussian_actor, hidden=(64, 64)), steps=120),
        vector(pendulums, gaussian, steps=50, init_random_frames=60, set_truncated=True),
        vector(poles, epsilon_greedy, init_random_frames=60),
        vector(poles, None, track_traj_ids=False),
        vector(partial(poles, transforms=[norm, RewardClipping(-0.5, 0.5)]), small_iqn),
        vector(partial(make_env, "Doors-v0"), small_iqn, init_random_frames=60),
        vector(partial(make_env, "InfoDoors-v0"), categorical_actor),
        vector(partial(make_env, "Doors-v0"), None),
    ],
    ids=["iqn", "tanh", "torchrl", "egreedy", "random", "norm", "masks", "info", "random_masks"],
)
def test_batches_metrics_draws_and_states_are_those_of_one_process(make, workers, caplog):
    one, theirs, drawn = batches(make, 0)
    some, ours, drawn_too = batches(make, workers)
    for mine, their in zip(ours, theirs, strict=True):
        assert_same(mine, their)
    assert torch.equal(drawn, drawn_too)
    assert some.metrics() == one.metrics()
    assert one.metrics()["collect/episodes"] > 0
    assert str(some.state_dict()) == str(one.state_dict())
    assert caplog.text.count("has died; another plays its episodes again") == 1


class Achieving(Diary):
    """Tells at each step what has been achieved in the episode, as Crafter does."""

    def step(self, action):
        *said, info = super().step(action)
        times = {"long": int(self.t > 5), "lettered": self.letter % 3}
        return *said, info | {"achievements": times}


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize(
    ("kind", "policy"),
    [(Achieving, lambda env: Toy()), (Both, partial(dreamer_actor, size="debug"))],
    ids=["achieving", "images_and_vectors"],
)
def test_records_and_the_memory_of_the_policy_are_those_of_one_process(kind, policy, workers):
    """Episodes of three to eight steps: those of two environments often end together."""

    def make(workers):
        env = make_env(kind, 5)
        return RecordCollector(env, policy(env), seed=4, init_random_frames=20, workers=workers)

    one, theirs, drawn = batches(make, 0, 80)
    some, ours, drawn_too = batches(make, workers, 80)
    for mine, their in zip(ours, theirs, strict=True):
        assert_same(mine, their)
    assert torch.equal(drawn, drawn_too)
    assert str(some.state_dict()) == str(one.state_dict())
    assert some.metrics() == one.metrics()
    assert one.metrics()["collect/episodes"] > 50
    assert ("achieved/long" in one.metrics()) == (kind is Achieving)


def test_a_worker_that_dies_again_and_again_is_an_error(monkeypatch):
    collector = vector(poles, small_iqn)(workers=2)
    collector.next()
    monkeypatch.setattr(Here, "lead_to", SimpleNamespace(remote=lambda *_: None), raising=False)
    collector._workers._shares[1].dies()
    with pytest.raises(RuntimeError, match="worker 2 of 2 died 4 times in the same batch"):
        collector.next()


def test_one_environment_without_a_batch_dimension():
    make = vector(pendulums, gaussian, None)
    theirs, ours = (batches(make, workers)[1] for workers in (0, 1))
    assert ours[0].shape == (12,)
    for mine, their in zip(ours, theirs, strict=True):
        assert_same(mine, their)


def test_a_buffer_is_filled_and_iteration_ends():
    buffers = []
    for workers in (0, 2):
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(400, ndim=2))
        options = {"replay_buffer": buffer, "total_frames": 180, "init_random_frames": 60}
        torch.manual_seed(0)
        collector = vector(poles, small_iqn, **options)(workers)
        assert list(collector) == [None] * 3
        buffers.append(buffer[:])
    assert_same(*buffers)
