"""Records of TorchRL's own collector: those of ours, from the same seeds."""

from __future__ import annotations

import pytest
import torch
from recurrent_toy import Diary, Toy
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import RewardScaling, StepCounter, TransformedEnv, check_env_specs
from torchrl.envs.utils import ExplorationType

from composerl.data import RecordCollector, RecordEnv, to_records
from composerl.envs import make_env
from composerl.envs.catch import CATCH
from composerl.envs.spaces import Spaces
from composerl.modules import dreamer_actor


class Lives(Diary):
    """A life is lost at the second step, without an end."""

    def step(self, action):
        seen, reward, ended, cut, _ = super().step(action)
        return seen, reward, ended, cut, {"life_loss": self.t == 2}


def both(make, actor, num_envs, per_env, number, transforms=()):
    """Records of ours and of TorchRL's collector."""
    options = {
        "frames_per_batch": num_envs * per_env,
        "exploration_type": ExplorationType.DETERMINISTIC,
    }
    ours, theirs = (make_env(make, num_envs, transforms=transforms) for _ in range(2))
    ours = RecordCollector(ours, actor, seed=4, **options)
    stock = Collector(
        RecordEnv(theirs, seed=4), actor, postproc=to_records,
        auto_register_policy_transforms=True, **options,
    )  # fmt: skip
    for collector in (ours, stock):
        yield torch.cat([collector.next() for _ in range(number)], 1)


@pytest.mark.parametrize("make", [Diary, Lives])
@pytest.mark.parametrize(("num_envs", "per_env"), [(1, 1), (3, 1), (3, 7)])
def test_the_records_are_the_same(make, num_envs, per_env):
    torch.manual_seed(0)
    ours, stock = both(make, Toy(), num_envs, per_env, 140 // per_env)
    assert ours.shape == stock.shape == (num_envs, 140)
    assert ours.keys() == stock.keys()
    for key in ours.keys():  # noqa: SIM118
        assert ours[key].dtype == stock[key].dtype
        assert torch.equal(ours[key], stock[key]), key
    assert ours["first"].sum() > 10
    assert ours["terminal"].any()


def test_the_records_of_dreamer_s_policy_are_the_same():
    torch.manual_seed(0)
    actor = dreamer_actor(Spaces.of(CATCH), "debug")
    with torch.no_grad():
        actor.actor_network.head.last.weight.normal_()
    ours, stock = both(CATCH, actor, 3, 1, 40)
    for key in ours.keys():  # noqa: SIM118
        assert torch.equal(ours[key], stock[key]), key
    assert len(ours["action"].unique()) > 1


def test_simple_transforms_are_in_the_records_and_not_in_an_episode_s_start():
    torch.manual_seed(0)
    actor = Toy()
    (plain, _), (ours, stock) = (
        both(Diary, actor, 3, 7, 10, layers) for layers in ((), [RewardScaling(1.0, 0.5)])
    )
    assert torch.equal(ours["observation"], plain["observation"])
    expected = (plain["reward"] * 0.5 + 1).masked_fill(plain["first"], 0)
    for records in (ours, stock):
        assert torch.equal(records["reward"], expected)


def test_it_is_an_environment_of_torchrl_and_fills_its_buffer():
    env = RecordEnv(make_env(Diary, 2), seed=0)
    check_env_specs(env)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100, ndim=2), batch_size=8)
    collector = Collector(
        env, Toy(), frames_per_batch=20, total_frames=40, init_random_frames=20,
        postproc=to_records, replay_buffer=buffer, auto_register_policy_transforms=True,
    )  # fmt: skip
    assert list(collector) == [None, None]
    assert len(buffer) == 40
    assert {"observation", "action", "reward", "first", "terminal"} <= {*buffer.sample().keys()}


def test_seeding_starts_the_same_episodes_again():
    env = RecordEnv(make_env(Diary, 2))
    seen = []
    for _ in range(2):
        env.set_seed(3)
        torch.manual_seed(0)
        seen.append(env.rollout(30)["next", "observation"])
    assert torch.equal(*seen)
    assert not torch.equal(env.rollout(30)["next", "observation"], seen[0])


def test_what_it_cannot_take_is_refused():
    with pytest.raises(ValueError, match="make_env"):
        RecordEnv(TransformedEnv(make_env(Diary), StepCounter()))
    collector = Collector(RecordEnv(make_env(Diary, 2)), None, frames_per_batch=2)
    with pytest.raises(ValueError, match="not in some"):
        collector.reset(0)
