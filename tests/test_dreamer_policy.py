"""Dreamer's policy outside of training: saved, loaded, acting in an environment."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from torchrl.collectors import Collector
from torchrl.data import TensorDictReplayBuffer
from torchrl.envs import Compose, InitTracker, TransformedEnv
from torchrl.envs.utils import ExplorationType

import composerl
from composerl import Policy
from composerl.bookkeeping.evaluation import episode_seed
from composerl.bookkeeping.images import film_frames
from composerl.data import (
    Latents,
    PackedStorage,
    RecordCollector,
    RecordEnv,
    SequenceSampler,
    VectorCollector,
    to_records,
)
from composerl.envs import make_env
from composerl.envs.catch import CATCH
from composerl.envs.spaces import Spaces, open_gym
from composerl.losses import DreamerLoss
from composerl.modules import dreamer_actor, dreamer_critic
from composerl.modules.world import Latent


@pytest.fixture
def actor():
    torch.manual_seed(3)
    network = dreamer_actor(Spaces.of(CATCH), "debug")
    with torch.no_grad():  # a fresh actor is nearly uniform: let actions depend on the state
        network.actor_network.head.last.weight.normal_()
    return network


def test_acting_and_training_see_the_same(actor):
    """From the environment through collector and replay back to the model: equal posteriors.

    Records hold the action before them, the observation and the first-flag as the model saw them
    while acting; one step off and the recurrent states differ.
    """
    states = []

    def explore(observation, state, first):
        action, state = actor.greedy(observation, state, first)
        states.append(state)
        return action, state

    actor.explore = explore
    collector = RecordCollector(make_env(CATCH, 3), actor, seed=0)
    replay = TensorDictReplayBuffer(
        storage=PackedStorage(300), sampler=SequenceSampler(39, num_envs=3), batch_size=20
    )
    for _ in range(40):
        replay.extend(collector.next().reshape(-1))
    acted = torch.stack([state["deter"] for state in states], 1)
    batch = replay.sample()  # there are as many records as a slice has: each is a whole lane
    world = actor.world_network
    seen = world.observe(
        world.inputs(batch["observation"]), batch["action"], batch["first"], sample=False
    ).latent
    assert batch["first"].sum(1).tolist() == [3] * 20  # episodes of 14 records
    assert len(set(batch["action"].flatten().tolist())) > 1
    lanes = set()
    for row in range(20):
        asked = ~batch["terminal"][row]  # no action follows the last record of an episode
        asked[-1] = False  # nor, so far, the newest one
        distance = (acted - seen.deter[row, asked].detach()).abs().amax((1, 2))
        assert distance.min() < 1e-5
        lanes.add(int(distance.argmin()))
    assert lanes == {0, 1, 2}


class Uneven(gym.Wrapper):
    """Catch whose episodes end by a time limit too, at lengths that their seeds decide."""

    def __init__(self):
        super().__init__(gym.make(CATCH))

    def reset(self, *, seed=None, options=None):
        out = self.env.reset(seed=seed)
        self.left = 3 + int(self.env.unwrapped.np_random.integers(20))
        return out

    def step(self, action):
        obs, reward, ended, cut, info = self.env.step(action)
        self.left -= 1
        return obs, reward, ended, cut or (self.left == 0 and not ended), info


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("by_itself", [False, True])
@pytest.mark.parametrize("kind", [ExplorationType.RANDOM, ExplorationType.DETERMINISTIC])
@pytest.mark.parametrize("made", [Collector, VectorCollector])
def test_collectors_play_what_the_plain_interface_would(actor, made, num_envs, by_itself, kind):
    """Step by step over ends of both kinds, from the same random numbers."""
    env = make_env(Uneven, num_envs, seed=0)
    if not by_itself:
        env = TransformedEnv(env, Compose(InitTracker(), actor.make_tensordict_primer()))
    collector = made(
        env, actor, frames_per_batch=60 * num_envs, exploration_type=kind,
        auto_register_policy_transforms=by_itself,
    )  # fmt: skip
    torch.manual_seed(1)
    batch = collector.next().reshape(num_envs, 60)
    torch.manual_seed(1)
    state = actor.initial(num_envs)
    act = actor.explore if kind == ExplorationType.RANDOM else actor.greedy
    for t in range(60):
        now = batch[:, t]
        action, state = act(now["observation"], state, now["is_init"].squeeze(-1))
        assert torch.equal(now["action"], action)
        for key, name in {"deter": "deter", "stoch": "stoch", "last_action": "action"}.items():
            assert torch.equal(now["next", key], state[name]), key
    ends = batch["next", "done"]
    assert ends.sum() > num_envs
    assert torch.equal(batch["is_init"][:, 1:], ends[:, :-1])
    assert batch["next", "truncated"].any()
    assert len(batch["action"].unique()) == 3


def test_keys_spec_and_state_dict(actor):
    assert actor.in_keys == ["observation", "is_init", "deter", "stoch", "last_action"]
    assert actor.out_keys == [
        "action",
        ("next", "deter"),
        ("next", "stoch"),
        ("next", "last_action"),
    ]
    assert {*actor.spec.keys(True, True)} == {*actor.out_keys}
    # what a file holds is the two networks, and nothing that being a TensorDictModule adds
    parts = {name.split(".")[0] for name in actor.state_dict()}
    assert parts == {"world_network", "actor_network"}


def test_without_its_primer_it_says_what_is_missing(actor):
    env = TransformedEnv(make_env(CATCH), InitTracker())
    with pytest.raises(KeyError, match=r"deter, stoch, last_action.*make_tensordict_primer"):
        actor(env.reset())


def test_policy_round_trip(actor, tmp_path):
    policy = Policy(actor, CATCH)
    loaded = composerl.load(policy.save(tmp_path / "policy.safetensors"))
    assert loaded.evaluate(5, 3).returns == policy.evaluate(5, 3).returns
    env = open_gym(CATCH)
    for seed in range(2):
        obs, _ = env.reset(seed=seed)
        policy.reset()
        loaded.reset()
        for _ in range(13):
            action = loaded.predict(obs)
            assert action == policy.predict(obs)
            obs = env.step(int(action))[0]
        assert loaded.state["deter"].shape == (1, 64)


def test_a_batch_of_episodes_is_each_of_them_alone(actor):
    policy = Policy(actor, CATCH)
    rng = np.random.default_rng(0)
    episodes = rng.integers(0, 256, (6, 4, 1, 32, 32), np.uint8)
    together = [policy.predict(frames) for frames in episodes]
    held = policy.state
    for row in range(4):
        policy.reset()
        alone = [policy.predict(frames[row]) for frames in episodes]
        assert alone == [actions[row] for actions in together]
    # the state is the caller's to keep: going on from it is going on
    policy.state = held
    following = policy.predict(episodes[0])
    policy.state = held
    np.testing.assert_array_equal(policy.predict(episodes[0]), following)


def test_latents_in_the_replay_are_those_of_the_episode(actor):
    """Slices of 6 records, trained on in any order, leave with each record the state before it
    that one pass from its episode's start finds, where latents are not drawn but the likeliest."""
    world, spaces = actor.world_network, Spaces.of(CATCH)
    observe = world.observe
    world.observe = lambda *inputs, sample=False: observe(*inputs, sample=False)
    loss = DreamerLoss(world, actor.actor_network, dreamer_critic(spaces, "debug"), horizon=1)
    collector = RecordCollector(make_env(CATCH, 3), actor, seed=0)
    types = {name: (shape, torch.float32) for name, (shape, _) in world.latent_types.items()}
    latents = Latents(types)
    replay = TensorDictReplayBuffer(
        storage=PackedStorage(300), sampler=SequenceSampler(6, num_envs=3), transform=latents,
        batch_size=16,
    )  # fmt: skip
    records = [collector.next() for _ in range(40)]
    for record in records:
        replay.extend(record.reshape(-1))
    with torch.no_grad():
        for _ in range(150):
            batch = replay.sample()
            loss(batch)
            latents.write(replay, batch)
        every = torch.cat(records, 1)
        truth = world.observe(
            world.inputs(every["observation"]), every["action"], every["first"]
        ).latent
    stored = replay.storage[:]
    known = stored["known"].view(40, 3).t()
    assert known.float().mean() > 0.9
    deter, stoch = (stored[key].view(40, 3, -1).transpose(0, 1) for key in ("deter", "stoch"))
    first = every["first"][:, 1:]  # where what was before is not looked at
    known = known[:, 1:] & ~first
    torch.testing.assert_close(deter[:, 1:][known], truth.deter[:, :-1][known])
    assert torch.equal(stoch[:, 1:][known], truth.stoch[:, :-1][known])


@pytest.mark.parametrize("frames", [3, 12])
@pytest.mark.parametrize("stock", [False, True])
def test_latents_are_written_while_acting(actor, frames, stock):
    """Records have the state that the policy had before them: what one pass over them finds,
    drawn by the same numbers. Random actions have none."""
    if stock:
        collector = Collector(
            RecordEnv(make_env(CATCH, 3), 0), actor, frames_per_batch=frames,
            total_frames=-1, postproc=to_records, auto_register_policy_transforms=True,
            exploration_type=ExplorationType.DETERMINISTIC,
        )  # fmt: skip
    else:
        collector = RecordCollector(
            make_env(CATCH, 3), actor, seed=0, frames_per_batch=frames, init_random_frames=12,
            latents=actor.world_network.latent_types,
            exploration_type=ExplorationType.DETERMINISTIC,
        )  # fmt: skip
    records = torch.cat([collector.next() for _ in range(120 // frames)], 1)
    first = records["first"]
    if not stock:
        asked = (torch.arange(40) >= 4).expand(3, 40)
        assert torch.equal(records["known"][~first], asked[~first])
    world = actor.world_network
    start = 0 if stock else 3  # the policy takes over in the middle of an episode, from zeros
    rest = records[:, start:].clone()
    rest["first"][:, 0] = True
    with torch.no_grad():
        truth = world.observe(
            world.inputs(rest["observation"]), rest["action"], rest["first"], sample=False
        ).latent
    follows = ~rest["first"][:, 1:]
    assert follows.sum() > 60
    for name in ("deter", "stoch"):
        told, found = rest[name][:, 1:][follows], getattr(truth, name)[:, :-1][follows]
        torch.testing.assert_close(told, found)
    # and so the replay has them
    types = {name: (shape, torch.float32) for name, (shape, _) in world.latent_types.items()}
    replay = TensorDictReplayBuffer(
        storage=PackedStorage(300), sampler=SequenceSampler(6, num_envs=3),
        transform=Latents(types), batch_size=4,
    )  # fmt: skip
    replay.extend(records.transpose(0, 1).reshape(-1))
    stored = replay.storage[:]["deter"].view(40, 3, -1).transpose(0, 1)
    assert torch.equal(stored, records["deter"])


def test_a_sampled_policy_is_evaluated_with_the_same_draws(tmp_path):
    """By the evaluation's seed; what training draws afterwards is what it would have drawn."""
    torch.manual_seed(0)
    policy = Policy(dreamer_actor(Spaces.of(CATCH), "debug", sampled=True), CATCH)
    torch.manual_seed(5)
    one = policy.evaluate(40, 3)
    following = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), following)
    assert policy.evaluate(40, 3) == one
    assert policy.evaluate(40, 4) != one
    assert composerl.load(policy.save(tmp_path / "policy.safetensors")).evaluate(40, 3) == one


def followed(actor, length=13):
    """Frames of an episode of Catch, and the policy's states in it."""
    env, states, frames = open_gym(CATCH), [], []
    seen, _ = env.reset(seed=episode_seed(5, 0))
    state = actor.initial(1)
    for t in range(length):
        frames.append(seen)
        look = torch.from_numpy(seen[None])
        action, state = actor.greedy(look, state, torch.tensor([t == 0]))
        states.append(state)
        seen = env.step(int(action))[0]
    return [*frames, seen], states


@torch.no_grad()
def test_what_is_imagined_starts_at_each_look(actor):
    """From the posterior of every fifth frame, then by the actions taken, the last frame too."""
    actor.world_network.decoder.layers[-1].weight.normal_()
    _, states = followed(actor)
    imagined = actor.imagined(states, 5)
    assert imagined.shape == (14, 1, 32, 32)
    world = actor.world_network
    for start in (0, 5, 10):
        latent = Latent(states[start]["deter"], states[start]["stoch"])
        for t in range(start, min(start + 5, 14)):
            torch.testing.assert_close(imagined[t], world.decoder(latent.features)[0])
            if t < 13:
                latent = world.imagine(latent, states[t]["action"], sample=False)
    # what the policy sees between two looks is of no effect but by its actions
    blind = [dict(state) for state in states]
    for t in (1, 6, 13 - 1):
        blind[t] = {**states[t], "deter": torch.ones(1, 64)}
    assert torch.equal(actor.imagined(blind, 5), imagined)
    vectors = dreamer_actor(Spaces(obs_shape=(3,), num_actions=2), "debug")
    assert vectors.imagined([vectors.initial(1)], 5) is None


def test_a_film_shows_what_was_imagined_on_the_right(actor):
    with torch.no_grad():
        actor.world_network.decoder.layers[-1].weight.normal_()
    frames, states = followed(actor)
    policy = Policy(actor, CATCH)
    film, _ = film_frames(policy, seed=5)
    assert film.shape == (14, 256, 256 + 8 + 256, 3)
    assert film.dtype == np.uint8
    left, line, right = film[:, :, :256], film[:, :, 256:264], film[:, :, 264:]
    np.testing.assert_array_equal(left[:, ::8, ::8, 0], np.stack(frames)[:, 0])
    assert [int(part.min()) for part in line] == [255] + [64] * 13
    assert line[1:].max() == 64
    expected = actor.imagined(states, 16)[:, 0].clamp(0, 1).mul(255).round().numpy()
    np.testing.assert_array_equal(right[:, ::8, ::8, 1], expected)
    assert policy.state is None
