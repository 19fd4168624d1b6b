"""TorchRL's options, policies, workers and buffers around our collector: the same, and fast."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import pytest
import torch
from collecting import assert_same, both_ways, collected, epsilon_greedy, gaussian
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.data import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from torchrl.envs import Reward2GoTransform

from composerl.data import VectorCollector
from composerl.envs import make_env

pendulums = partial(make_env, "Pendulum-v1", 2, seed=5)
poles = partial(make_env, "CartPole-v1", 2, seed=5)

#: What torchrl.collectors._runner and .distributed.ray pass to the collector class.
OF_A_WORKER = {
    "create_env_kwargs": None, "max_frames_per_traj": None, "reset_at_each_iter": False,
    "postproc": None, "split_trajs": False, "device": None, "storing_device": None,
    "policy_device": None, "env_device": None, "reset_when_done": True, "return_same_td": True,
    "interruptor": None, "set_truncated": False, "use_buffers": None, "replay_buffer": None,
    "extend_buffer": True, "traj_pool": None, "trust_policy": False, "compile_policy": False,
    "cudagraph_policy": False, "no_cuda_sync": False, "worker_idx": 1, "trajs_per_batch": None,
    "trajs_per_write": None, "track_policy_version": False, "pre_collect_hook": None,
    "post_collect_hook": None, "compact_obs": False,
}  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"device": "cpu"},
        {"storing_device": "cpu"},
        {"env_device": "cpu", "policy_device": "cpu", "no_cuda_sync": True},
        {"init_random_frames": 60},
        {"set_truncated": True},
        {"split_trajs": True, "frames_per_batch": 500, "total_frames": 1000},
        {"postproc": Reward2GoTransform(), "set_truncated": True},
        {"postproc": lambda batch: batch.set("_private", batch["action"]).exclude("scale")},
        {"track_traj_ids": False},
        OF_A_WORKER,
        OF_A_WORKER | {"use_buffers": False},
    ],
    ids=["nothing", "device", "storing", "devices", "random", "set_truncated", "split_trajs",
         "by_name_of_time", "postproc", "no_ids", "worker", "worker_without_buffers"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:split_trajs")
def test_options_give_torchrl_s_batches_on_the_fast_way(options):
    collector, ours, theirs = both_ways(pendulums, gaussian, **options)
    assert collector.fast
    assert len(ours) == len(theirs) >= 2
    for mine, their in zip(ours, theirs, strict=True):
        assert_same(mine, their)


@pytest.mark.parametrize("policy", [gaussian, epsilon_greedy])
def test_torchrl_s_own_policies_are_fast_and_what_they_write_is_stored(policy):
    """While actions are random, zeros stand for the rest; no number is drawn for them."""
    make = pendulums if policy is gaussian else poles
    collector, ours, theirs = both_ways(make, policy, init_random_frames=60)
    assert collector.fast
    for mine, their in zip(ours, theirs, strict=True):
        assert_same(mine, their)
    key = "loc" if policy is gaussian else "chosen_action_value"
    assert not ours[0][key].any()
    assert ours[1][key].any()


def test_a_policy_that_looks_at_more_takes_torchrl_s_way():
    def by_the_end(env):
        return TensorDictModule(lambda done: done.long().squeeze(-1), ["done"], ["action"])

    def by_hand(env):
        return lambda td: td.set("action", td["done"].long().squeeze(-1))

    for make in (by_the_end, by_hand):
        collector, ours, theirs = both_ways(poles, make)
        assert not collector.fast
        for mine, their in zip(ours, theirs, strict=True):
            assert_same(mine, their)


def test_a_policy_factory_s_policy_explores_where_it_is():
    actor = epsilon_greedy(poles())
    for option in ({"policy_factory": lambda: actor}, {"policy": actor, "policy_device": "cpu"}):
        collector = VectorCollector(poles(), frames_per_batch=10, **option)
        assert collector.fast
        assert collector.policy is actor
        assert "action_value" in collector.next().keys()  # noqa: SIM118


def test_a_factory_s_policy_with_memory_takes_torchrl_s_way():
    def remembering():
        policy = epsilon_greedy(poles())
        policy.recurrent = True
        return policy

    collector = VectorCollector(poles(), policy_factory=remembering, frames_per_batch=10)
    assert not collector.fast
    assert collector.next().numel() == 10


def test_another_storing_device_gets_the_batch_at_once():
    """The meta device stands for a GPU; TorchRL's constructor refuses it."""
    collector = VectorCollector(poles(), epsilon_greedy(poles()), frames_per_batch=10)
    collector.storing_device = torch.device("meta")
    batch = next(iter(collector))
    assert collector.fast
    assert batch.device.type == "meta"
    assert {value.device.type for value in batch.values(True, True)} == {"meta"}


def test_one_batch_is_written_to_again_and_again_only_where_that_is_asked_for():
    for same in (True, False):
        collector = VectorCollector(poles(), None, frames_per_batch=10, return_same_td=same)
        batches = iter(collector)
        first, before = (batch := next(batches)), batch.clone()
        second = next(batches)
        assert (first is second) is same
        assert torch.equal(second["observation"][:, 0], before["next", "observation"][:, -1])


def test_hooks_are_called_before_and_after_each_batch():
    calls = []
    collector = VectorCollector(
        poles(), None, frames_per_batch=10, total_frames=20,
        pre_collect_hook=lambda: calls.append("before"),
        post_collect_hook=lambda batch: calls.append(batch.numel()),
    )  # fmt: skip
    assert len(list(collector)) == 2
    assert collector.fast
    assert calls == ["before", 10, "before", 10]


@pytest.mark.parametrize("ndim", [1, 2])
@pytest.mark.parametrize("postproc", [None, lambda batch: batch.exclude("loc")])
def test_a_replay_buffer_gets_what_torchrl_s_collector_writes_to_it(ndim, postproc):
    buffers = []
    for kind in (Collector, VectorCollector):
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(400, ndim=ndim))
        env = pendulums()
        options = {"replay_buffer": buffer, "postproc": postproc}
        collector = collected(kind, env, gaussian(env), **options)
        assert list(collector) == [None] * 3
        buffers.append(buffer)
    assert collector.fast
    theirs, ours = (buffer[:] for buffer in buffers)
    ours.names = theirs.names  # ours knows which dimension is time
    assert_same(ours, theirs)
    assert buffers[0].write_count == buffers[1].write_count


def test_what_a_buffer_holds_of_random_steps_has_the_entries_of_later_ones():
    """TorchRL's own collector fails here: its random steps lack what the policy writes."""
    buffer = ReplayBuffer(storage=LazyTensorStorage(400, ndim=2))
    env = pendulums()
    collector = collected(
        VectorCollector, env, gaussian(env), replay_buffer=buffer, init_random_frames=30
    )
    assert list(collector) == [None] * 3
    scale = buffer[:]["scale"]
    assert not scale[:, :30].any()
    assert scale[:, 30:].all()


def test_steps_written_one_by_one_take_torchrl_s_way():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(400))
    env = make_env("Pendulum-v1", seed=5)
    collector = collected(
        VectorCollector, env, gaussian(env), replay_buffer=buffer, extend_buffer=False
    )
    assert not collector.fast
    assert set(collector) == {None}
    assert len(buffer) == 180


@pytest.mark.parametrize("option", [{"compile_policy": {}}, {"trajs_per_batch": 2}])
def test_options_that_are_for_torchrl_alone_take_its_way(option):
    assert not VectorCollector(poles(), None, frames_per_batch=10, **option).fast


def test_a_reset_between_batches_takes_no_options():
    collector = VectorCollector(poles(), None, frames_per_batch=10)
    collector.reset(options={"low": -0.01})
    assert collector.next()["observation"][:, 0].abs().max() <= 0.05
    with pytest.raises(TypeError, match="takes no options"):
        collector.reset(options={"low": -0.01})


class Checked(VectorCollector):
    """In a worker: refuses to go TorchRL's way."""

    def rollout(self):
        assert self.fast
        return super().rollout()


@pytest.mark.slow
def test_in_torchrl_s_worker_processes_it_is_fast_follows_the_weights_and_can_be_loaded():
    actor = epsilon_greedy(poles())
    collector = MultiSyncCollector(
        [partial(make_env, "CartPole-v1", 2)] * 2, actor, frames_per_batch=80, total_frames=-1,
        collector_class=Checked, cat_results="stack",
    )  # fmt: skip
    try:
        batches = iter(collector)
        first, second = next(batches).clone(), next(batches).clone()
        assert second.shape == (2, 2, 20)
        ends = first["next", "done"][..., -1, 0]
        here, there = second["observation"][..., 0, :], first["next", "observation"][..., -1, :]
        assert torch.equal(here[~ends], there[~ends])
        with torch.no_grad():
            for parameter in actor.parameters():
                parameter.zero_()
        collector.update_policy_weights_()
        next(batches)
        assert not next(batches)["action_value"].any()
        state = deepcopy(collector.state_dict())
        collector.load_state_dict(state)
        assert next(batches).shape == (2, 2, 20)
    finally:
        collector.shutdown()
