"""Policies with memory: explicit state, batched, saved; evaluated and filmed."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from recurrent_toy import Diary, Toy
from tensordict.nn import TensorDictModule
from torch import nn

import composerl
from composerl.bookkeeping.evaluation import MAX_ENVS, Evaluator
from composerl.bookkeeping.images import film_frames
from composerl.envs.catch import CATCH
from composerl.envs.spaces import Spaces
from composerl.modules import iqn_network
from composerl.policy import Policy

SPACES = Spaces.of(Diary)


def frames(steps, rows=None, seed=0):
    shape = (steps, 1, 4, 4) if rows is None else (steps, rows, 1, 4, 4)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def policy():
    torch.manual_seed(0)
    return Policy(Toy(), Diary)


def by_hand(actor, images, first=None):
    """The actor's own recurrence."""
    state = actor.initial(len(images[0]))
    actions = []
    with torch.no_grad():
        for t, image in enumerate(images):
            flags = torch.full((len(image),), t == 0) if first is None else first[t]
            action, state = actor.greedy(torch.from_numpy(image), state, flags)
            actions.append(action.numpy())
    return np.stack(actions), state


def test_predict_carries_the_state_and_reset_clears_it(policy):
    images = frames(12, rows=5)
    expected, state = by_hand(policy.actor, images)
    assert policy.state is None
    found = np.stack([policy.predict(image) for image in images])
    np.testing.assert_array_equal(found, expected)
    assert set(policy.state) == {"pixels", "action", "steps"}
    for key, value in state.items():
        assert torch.equal(policy.state[key], value), key
    assert len(np.unique(expected)) > 1
    policy.reset()
    assert policy.state is None
    np.testing.assert_array_equal([policy.predict(image) for image in images], expected)


def test_one_observation_has_a_state_of_one_row(policy):
    images = frames(8)
    one = [policy.predict(image) for image in images]
    assert np.shape(one) == (8,)
    assert policy.state["steps"].tolist() == [8]
    expected, _ = by_hand(policy.actor, images[:, None])
    np.testing.assert_array_equal(one, expected[:, 0])


def test_the_state_can_be_kept_and_set_again(policy):
    images = frames(10, rows=3)
    for image in images[:4]:
        policy.predict(image)
    kept = policy.state
    expected = [policy.predict(image) for image in images[4:]]
    policy.reset()
    policy.predict(frames(1, rows=3, seed=9)[0])
    policy.state = kept
    np.testing.assert_array_equal([policy.predict(image) for image in images[4:]], expected)


def test_first_starts_rows_anew(policy):
    images = frames(6, rows=2)
    first = torch.zeros(6, 2, dtype=torch.bool)
    first[0], first[3, 1], first[5] = True, True, True
    expected, _ = by_hand(policy.actor, images, first)
    flags = [None, None, None, [False, True], np.array([False, False]), True]
    steps = []
    for image, flag, action in zip(images, flags, expected, strict=True):
        np.testing.assert_array_equal(policy.predict(image, flag), action)
        steps.append(policy.state["steps"].tolist())
    assert steps == [[1, 1], [2, 2], [3, 3], [4, 1], [5, 2], [1, 1]]
    policy.predict(images[0], np.bool_(True))
    assert policy.state["steps"].tolist() == [1, 1]


def test_a_state_of_other_rows_and_odd_flags_are_refused(policy):
    policy.predict(frames(1, rows=3)[0])
    with pytest.raises(ValueError, match=r"2 rows, but the policy's state is that of 3: call res"):
        policy.predict(frames(1, rows=2)[0])
    policy.reset()
    policy.predict(frames(1)[0])
    with pytest.raises(ValueError, match="3 rows, but the policy's state is that of 1"):
        policy.predict(frames(1, rows=3)[0])
    policy.reset()
    for first in ([True], [0, 1], 1.0):
        with pytest.raises(ValueError, match="first must be a bool or 2 of them"):
            policy.predict(frames(1, rows=2)[0], first)
    assert policy.state is None


def test_policies_without_memory_take_reset_and_first_and_keep_nothing():
    torch.manual_seed(0)
    policy = Policy(iqn_network(SPACES, (16,)), Diary)
    images = frames(1, rows=3)[0]
    expected = policy.predict(images)
    np.testing.assert_array_equal(policy.predict(images, first=True), expected)
    policy.reset()
    assert policy.state is None
    assert policy.predict(images[:2]).shape == (2,)


def test_round_trip(policy, tmp_path):
    policy.predict(frames(1, rows=2)[0])
    policy.save(tmp_path / "policy.safetensors")
    again = composerl.load(tmp_path, actor=Toy(), env=Diary)
    assert again.state is None
    policy.reset()
    for image in frames(10, rows=4):
        np.testing.assert_array_equal(again.predict(image), policy.predict(image))
    assert again.evaluate(5) == policy.evaluate(5)


@pytest.mark.parametrize("episodes", [1, 5, MAX_ENVS + 9])
def test_evaluation_carries_a_state_for_each_episode(policy, episodes):
    """Each episode's return is that of a plain loop with a state of its own."""
    kept = policy.predict(frames(1, rows=2)[0]), policy.state
    result = policy.evaluate(episodes, seed=3)
    assert policy.state is kept[1]
    for episode in range(episodes):
        env = Diary()
        state = np.random.SeedSequence([3, episode]).generate_state(1)
        obs, _ = env.reset(seed=int(state[0]))
        alone = Policy(policy.actor, Diary)
        total, steps, done = 0.0, 0, False
        while not done:
            obs, reward, ended, cut, _ = env.step(int(alone.predict(obs)))
            total, steps, done = total + reward, steps + 1, ended or cut
        assert (result.returns[episode], result.lengths[episode]) == (total, steps)
    assert len(set(result.lengths)) > 1 or episodes == 1


def test_the_evaluator_resets_rows_and_drops_those_that_are_over():
    calls = []

    def act(obs, state, first):
        steps = torch.where(first, 0, state["steps"]) if state else torch.zeros(len(obs)).long()
        # the observation tells the step: the state must be that of the same episode
        assert torch.equal(steps, obs[:, 0, 0, 0].long())
        calls.append((len(obs), first.tolist()))
        return torch.zeros(len(obs)).long(), {"steps": steps + 1}

    result = Evaluator(Diary)(act, 50, 0, recurrent=True)
    assert len(result.returns) == 50
    assert calls[0] == (MAX_ENVS, [True] * MAX_ENVS)
    assert sum(sum(first) for _, first in calls) == 50
    assert calls[-1][0] < MAX_ENVS


def test_frames_of_an_episode_rendered(policy):
    torch.manual_seed(0)
    catcher = Policy(Toy(size=32), CATCH)
    film, fps = film_frames(catcher, seed=2)
    assert fps == gym.make(CATCH).metadata["render_fps"]
    assert film.shape == (14, 256, 256, 3)
    assert film.dtype == np.uint8
    env = gym.make(CATCH)
    obs, _ = env.reset(seed=int(np.random.SeedSequence([2, 0]).generate_state(1)[0]))
    for frame in film[:-1]:
        np.testing.assert_array_equal(frame[::8, ::8, 0], obs[0])
        obs = env.step(int(catcher.predict(obs)))[0]
    np.testing.assert_array_equal(film[-1, ::8, ::8, 2], obs[0])


def test_frames_of_an_episode_from_observations(policy):
    film, _ = film_frames(policy, seed=0)
    (length,) = policy.evaluate(1, seed=0).lengths
    assert film.shape == (length + 1, 4, 4, 3)
    assert film[:, 0, 0, 0].tolist() == list(range(length + 1))

    class Coloured(Diary):
        observation_space = gym.spaces.Box(0, 255, (3, 4, 4), np.uint8)

        def show(self):
            return super().show() * np.array([1, 2, 3], np.uint8)[:, None, None]

    film, _ = film_frames(Policy(Toy(), Coloured), seed=0)
    assert film[1, 0, 0].tolist() == [1, 2, 3]


def test_what_gives_no_frames_says_so(policy):
    class Blind(gym.Env):
        observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        action_space = gym.spaces.Discrete(2)

    actor = TensorDictModule(nn.Linear(2, 2), ["observation"], ["action"])
    with pytest.raises(ValueError, match=r"gives no frames.*but \(2,\)"):
        film_frames(Policy(actor, Blind))
    with pytest.raises(ValueError, match="does not know its environment"):
        film_frames(Policy(policy.actor, None, SPACES))
