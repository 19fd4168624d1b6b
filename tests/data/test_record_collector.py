"""Records: each field agrees with all others, over episode ends, truncation and resume."""

from __future__ import annotations

from copy import deepcopy

import gymnasium as gym
import numpy as np
import pytest
import torch
from recurrent_toy import Diary, Toy
from tensordict import TensorDict
from torch import nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import ObservationNorm
from torchrl.envs.utils import ExplorationType

from composerl.bookkeeping.trees import load_tree, save_tree
from composerl.data import PackedStorage, RecordCollector, SequenceSampler
from composerl.envs import make_env


def check_alignment(records):
    """Every field of every record of ``Diary`` is decoded from the pixels of it and its past.

    Returns the numbers of starts, terminal ends and truncated ends.
    """
    counts = np.zeros(3, int)
    pixels = records["observation"][:, :, 0, :, 0].long()
    for lane, rows in enumerate(pixels):
        for t, (step, told_action, told_reward, letter) in enumerate(rows.tolist()):
            record = records[lane, t]
            over = step == Diary.length(letter)
            assert record["first"].item() == (step == 0)
            assert record["action"].item() == (told_action - 1 if step else 0)
            assert record["reward"].item() == told_reward
            assert record["terminal"].item() == (over and letter % 2 == 0)
            counts += [step == 0, over and letter % 2 == 0, over and letter % 2 == 1]
            if step:
                assert told_reward == step * (record["action"].item() + 2) % 7
            if t:
                before, _, _, old_letter = rows[t - 1].tolist()
                ended = before == Diary.length(old_letter)
                # one record after another, the last observation of an episode included
                assert (step, letter) == ((0, letter) if ended else (before + 1, old_letter))
    return counts


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("per_env", [1, 7])
@pytest.mark.parametrize("recurrent", [False, True])
def test_each_field_of_a_record_is_decodable_from_the_others(num_envs, per_env, recurrent):
    torch.manual_seed(0)
    collector = RecordCollector(
        make_env(Diary, num_envs), Toy() if recurrent else None,
        seed=0, init_random_frames=num_envs * 14, frames_per_batch=num_envs * per_env,
    )  # fmt: skip
    parts = [collector.next() for _ in range(280 // per_env)]
    assert parts[0].shape == (num_envs, per_env)
    records = torch.cat(parts, 1)
    assert {k: v.dtype for k, v in records.items()} == {
        "observation": torch.uint8, "action": torch.int64, "reward": torch.float32,
        "first": torch.bool, "terminal": torch.bool,
    }  # fmt: skip
    starts, terminals, cuts = check_alignment(records)
    assert min(starts, terminals, cuts) > 5
    assert records["first"][:, 0].all()
    # L actions, L + 1 records
    assert collector.metrics()["collect/episodes"] == terminals + cuts
    assert len(records["action"].unique()) == 3
    # The replay keeps what it was given, and its slices are aligned as well.
    replay = TensorDictReplayBuffer(
        storage=PackedStorage(10_000), sampler=SequenceSampler(20, num_envs), batch_size=64
    )
    for part in parts:
        replay.extend(part.transpose(0, 1).reshape(-1))
    check_alignment(replay.sample())


class Spy(Toy):
    """Notes what it is asked."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def explore(self, observation, state, first):
        action, after = super().explore(observation, state, first)
        self.asked.append((observation.clone(), first.clone(), after["steps"], action))
        return action, after


def test_the_actor_sees_each_record_once_and_its_action_is_the_next_record_s():
    torch.manual_seed(0)
    spy = Spy()
    collector = RecordCollector(make_env(Diary, 3), spy, seed=0)
    records = torch.cat([collector.next() for _ in range(60)], 1)
    # The first records need no action; then each is asked for to get the next.
    assert len(spy.asked) == 59
    for t, (seen, first, steps, action) in enumerate(spy.asked):
        for lane in range(3):
            now, then = records[lane, t], records[lane, t + 1]
            if then["first"]:  # an episode's end: the answer is of no effect
                continue
            assert torch.equal(seen[lane], now["observation"])
            assert first[lane] == now["first"]
            assert steps[lane] == now["observation"][0, 0, 0] + 1
            assert action[lane] == then["action"]


def test_the_actor_takes_over_from_random_play_with_a_fresh_state():
    spy = Spy()
    collector = RecordCollector(make_env(Diary, 2), spy, seed=0, init_random_frames=2 * 10)
    for _ in range(10):
        collector.next()
    assert spy.asked == []
    collector.next()
    assert spy.asked[0][1].all()
    assert spy.asked[0][2].tolist() == [1, 1]


@pytest.mark.parametrize("actor", [True, False])
@pytest.mark.parametrize("before", range(0, 12))
def test_a_loaded_collector_goes_on_exactly(before, actor, tmp_path):
    """Saved at every point of an episode: at its start, within, and at its end."""

    def make():
        torch.manual_seed(0)
        return RecordCollector(make_env(Diary, 3), Toy() if actor else None, seed=4)

    one = make()
    torch.manual_seed(1)
    for _ in range(before):
        one.next()
    save_tree(tmp_path / "state", "checkpoint", deepcopy(one.state_dict()))
    torch.manual_seed(2)
    expected = torch.cat([one.next() for _ in range(40)], 1)
    check_alignment(expected)
    other = make()
    other.load_state_dict(load_tree(tmp_path / "state", "checkpoint"))
    torch.manual_seed(2)
    found = torch.cat([other.next() for _ in range(40)], 1)
    for key in expected.keys():  # noqa: SIM118
        assert torch.equal(expected[key], found[key]), key
    assert one.metrics() == other.metrics()
    for key, value in (one._state or {}).items():
        assert torch.equal(value, other._state[key]), key


class Forgetful(Diary):
    """Not led to the same state by its seed."""

    played = 0

    def reset(self, *, seed=None, options=None):
        Forgetful.played += 1
        return super().reset(seed=None if seed is None else seed + Forgetful.played)


def test_one_that_does_not_repeat_itself_starts_an_episode_that_records_tell(caplog):
    one = RecordCollector(make_env(Forgetful, 2), Toy(), seed=0)
    for _ in range(3):
        one.next()
    other = RecordCollector(make_env(Forgetful, 2), Toy(), seed=0)
    other.load_state_dict(one.state_dict())
    assert "does not repeat itself" in caplog.text
    records = torch.cat([other.next() for _ in range(20)], 1)
    assert records["first"][:, 0].all()
    check_alignment(records)


class Lives(Diary):
    """A life is lost at the second step, without an end."""

    def step(self, action):
        seen, reward, ended, cut, _ = super().step(action)
        return seen, reward, ended, cut, {"life_loss": self.t == 2}


def test_a_lost_life_is_terminal_and_the_episode_goes_on():
    collector = RecordCollector(make_env(Lives, 2), None, seed=0, frames_per_batch=2 * 50)
    records = collector.next()
    step, letter = (records["observation"][:, :, 0, row, 0] for row in (0, 3))
    over = (step == 3 + letter % 6) & (letter % 2 == 0)
    assert torch.equal(records["terminal"], over | (step == 2))
    assert torch.equal(records["first"], step == 0)
    assert (step == 3).sum() > 5


def test_reset_starts_episodes_and_says_so_in_the_records():
    collector = RecordCollector(make_env(Diary, 2), Toy(), seed=0)
    for _ in range(3):
        collector.next()
    collector.reset()
    assert collector.next()["first"].all()
    with pytest.raises(ValueError, match="not in some"):
        collector.reset(0)


class Push(gym.Env):
    """Continuous actions: the observation is the last one."""

    observation_space = gym.spaces.Box(-2, 2, (2,), np.float32)
    action_space = gym.spaces.Box(-2, 2, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return action, 0.0, False, False, {}


@pytest.mark.parametrize("num_envs", [1, 2])
def test_vectors_and_continuous_actions(num_envs):
    collector = RecordCollector(make_env(Push, num_envs), None, frames_per_batch=num_envs * 4)
    records = collector.next()
    assert torch.equal(records["action"], records["observation"])
    assert records["action"].dtype == torch.float32
    assert (records["action"][:, 1:] != 0).all()


def test_torchrl_knows_the_policy():
    torch.manual_seed(0)
    policy, other = Toy(), Toy()
    collector = RecordCollector(make_env(Diary, 2), policy, seed=0)
    assert collector.policy is policy
    saved = collector.state_dict()["policy_state_dict"]
    assert saved.keys() == policy.state_dict().keys()
    collector.update_policy_weights_(TensorDict.from_module(other))
    assert torch.equal(policy.net.weight, other.net.weight)
    collector.load_state_dict(collector.state_dict() | {"policy_state_dict": Toy().state_dict()})
    assert not torch.equal(policy.net.weight, other.net.weight)
    older = collector.state_dict()  # of a checkpoint from before it held the policy
    del older["policy_state_dict"]
    collector.load_state_dict(older)


def test_iteration_ends_and_is_post_processed():
    collector = RecordCollector(
        make_env(Diary, 2), Toy(), seed=0, frames_per_batch=8, total_frames=24,
        postproc=lambda records: records.set("mark", records["first"]),
    )  # fmt: skip
    batches = list(collector)
    assert [batch.shape for batch in batches] == [(2, 4)] * 3
    assert all(torch.equal(batch["mark"], batch["first"]) for batch in batches)


def test_it_fills_a_buffer_of_torchrl():
    def make(**kwargs):
        torch.manual_seed(0)
        options = {"frames_per_batch": 12, "total_frames": 36}
        return RecordCollector(make_env(Diary, 3), Toy(), seed=0, **options, **kwargs)

    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(36, ndim=2), batch_size=8)
    assert list(make(replay_buffer=buffer)) == [None] * 3
    expected = torch.cat(list(make()), 1)
    stored = buffer.storage[:].transpose(0, 1)
    for key in expected.keys():  # noqa: SIM118
        assert torch.equal(stored[key], expected[key]), key


class Flat(Diary):
    """The rows alone, as floats."""

    observation_space = gym.spaces.Box(0, 255, (4,), np.float32)

    def show(self):
        return super().show()[0, :, 0].astype(np.float32)


def test_transforms_of_observations_reach_policy_and_records():
    torch.manual_seed(0)

    class Rows(Spy):
        def explore(self, observation, state, first):
            self.asked.append(observation.clone())
            return torch.zeros(len(observation), dtype=torch.int64), state

    half = ObservationNorm(loc=1.0, scale=0.5, in_keys=["observation"])
    spy = Rows()
    collector = RecordCollector(make_env(Flat, 2, transforms=half), spy, seed=0)
    plain = RecordCollector(make_env(Flat, 2), Rows(), seed=0)
    records, raw = (torch.cat([c.next() for _ in range(30)], 1) for c in (collector, plain))
    assert torch.equal(records["observation"], raw["observation"] * 0.5 + 1)
    inside = ~records["first"][:, 1:]
    seen = torch.stack(spy.asked, 1)
    assert torch.equal(seen[inside], records["observation"][:, :-1][inside])
    again = RecordCollector(make_env(Flat, 2, transforms=half), Rows(), seed=0)
    again.load_state_dict(collector.state_dict())
    for _ in range(10):
        assert torch.equal(again.next()["observation"], collector.next()["observation"])


def test_without_exploration_the_policy_is_greedy():
    spy = Spy()
    collector = RecordCollector(
        make_env(Diary, 2), spy, seed=0, frames_per_batch=40,
        exploration_type=ExplorationType.DETERMINISTIC,
    )  # fmt: skip
    records = collector.next()
    assert spy.asked == []
    again = RecordCollector(
        make_env(Diary, 2), spy, seed=0, frames_per_batch=40,
        exploration_type=ExplorationType.DETERMINISTIC,
    ).next()  # fmt: skip
    assert torch.equal(records["action"], again["action"])
    assert len(records["action"].unique()) > 1


def test_what_it_cannot_take_is_refused():
    with pytest.raises(TypeError, match=r"with memory \(recurrent = True\), got a Linear"):
        RecordCollector(make_env(Diary), nn.Linear(2, 2), seed=0)
    from torchrl.envs import StepCounter, TransformedEnv

    with pytest.raises(ValueError, match="make_env"):
        RecordCollector(TransformedEnv(make_env(Diary), StepCounter()), Toy(), seed=0)
