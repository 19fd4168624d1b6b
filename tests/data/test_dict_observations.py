"""Observations of several arrays: one vector, the same from environments and from files."""

from __future__ import annotations

import json
from collections import OrderedDict

import gymnasium as gym
import h5py
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from torchrl.envs import CatTensors, GymWrapper, TransformedEnv

from composerl.bookkeeping.evaluation import Evaluator
from composerl.data import generate, read_dataset, validate
from composerl.envs import Spaces, make_env, open_gym
from composerl.modules import gaussian_actor
from composerl.policy import Policy

REAL = Box(-np.inf, np.inf, (2,), np.float64)


class Goal(gym.Env):
    """Walk to a point: observation, achieved and desired goal, as environments with goals have."""

    observation_space = Dict(
        {
            "observation": Box(-np.inf, np.inf, (3,), np.float64),
            "desired_goal": REAL,
            "achieved_goal": REAL,
        }
    )
    action_space = Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.place = 0, self.np_random.normal(size=2)
        self.goal = self.np_random.normal(size=2)
        return self.seen(), {}

    def step(self, action):
        self.t += 1
        self.place = self.place + 0.1 * np.asarray(action, np.float64)
        reward = -float(np.abs(self.place - self.goal).sum())
        return self.seen(), reward, False, self.t == 5, {}

    def seen(self):
        found = {
            "achieved_goal": self.place.copy(),
            "desired_goal": self.goal.copy(),
            "observation": np.array([self.t, *(self.place - self.goal)], np.float64),
        }
        return {key: found[key] for key in self.observation_space.spaces}


class Unsorted(Goal):
    """Its Dict keeps an order of its own, which gymnasium follows."""

    observation_space = Dict(
        OrderedDict((key, Goal.observation_space[key]) for key in ("observation", "desired_goal"))
        | {"achieved_goal": REAL}
    )


class Nested(Goal):
    """A Dict in a Tuple in a Dict, and more than ten parts of a Tuple."""

    observation_space = Dict(
        {
            "b": Tuple([Box(-np.inf, np.inf, (1,), np.float32)] * 11),
            "a": Dict({"z": REAL, "y": Tuple([REAL, Dict({"x": Box(-9, 9, (2, 2), np.int64)})])}),
        }
    )

    def seen(self):
        x = np.arange(4).reshape(2, 2) + self.t
        return {
            "a": {"y": (self.place.copy(), {"x": x}), "z": self.goal.copy()},
            "b": tuple(np.full(1, k + self.place[0], np.float32) for k in range(11)),
        }


KINDS = pytest.mark.parametrize("kind", [Goal, Unsorted, Nested])


def play(kind, episodes=3):
    """Raw observations, one more than actions, of a few episodes, and the actions."""
    env, rng, played = kind(), np.random.default_rng(0), []
    for seed in range(episodes):
        seen, actions, over = [env.reset(seed=seed)[0]], [], False
        while not over:
            actions.append(rng.uniform(-1, 1, 2).astype(np.float32))
            obs, _, _, over, _ = env.step(actions[-1])
            seen.append(obs)
        played.append((seen, np.stack(actions)))
    return played


def leaves(obs, name=""):
    """Arrays by the names that Minari gives them."""
    below = f"{name}/" if name else ""
    if isinstance(obs, dict):
        obs = obs.items()
    elif isinstance(obs, tuple):
        obs = [(f"_index_{k}", part) for k, part in enumerate(obs)]
    else:
        return {name: obs}
    return {key: leaf for k, part in obs for key, leaf in leaves(part, f"{below}{k}").items()}


def stacked(observations, prefix):
    columns = [leaves(obs) for obs in observations]
    return {f"{prefix}/{key}": np.stack([c[key] for c in columns]) for key in columns[0]}


def arrays_of(kind):
    """One file's arrays, and the rows that must be read from it."""
    played = play(kind)
    before = [obs for seen, _ in played for obs in seen[:-1]]
    after = [obs for seen, _ in played for obs in seen[1:]]
    ends = np.concatenate([np.arange(len(a)) == len(a) - 1 for _, a in played])
    arrays = {
        **stacked(before, "observations"),
        **stacked(after, "next_observations"),
        "actions": np.concatenate([actions for _, actions in played]),
        "rewards": np.zeros(len(before)),
        "terminals": np.zeros(len(before), bool),
        "timeouts": ends,
    }
    space = kind.observation_space
    return arrays, *(
        np.stack([gym.spaces.flatten(space, obs) for obs in rows]).astype(np.float32)
        for rows in (before, after)
    )


@KINDS
@pytest.mark.parametrize("num_envs", [1, 2])
def test_environments_follow_gymnasium(kind, num_envs):
    width = gym.spaces.flatdim(kind.observation_space)
    env = open_gym(kind)
    raw, _ = kind().reset(seed=3)
    np.testing.assert_array_equal(
        env.reset(seed=3)[0], gym.spaces.flatten(env.unwrapped.observation_space, raw)
    )
    spaces = Spaces.of(kind)
    assert spaces == Spaces(obs_shape=(width,), low=(-1.0, -1.0), high=(1.0, 1.0))
    again = Spaces(**json.loads(json.dumps(spaces.to_json())))
    assert again.obs_parts == spaces.obs_parts
    assert again.obs_part_shapes == spaces.obs_part_shapes
    made = make_env(kind, num_envs, seed=0)
    assert Spaces.of(made) == Spaces.of(kind()) == spaces
    assert Spaces.of(made).obs_parts == Spaces.of(kind()).obs_parts == spaces.obs_parts
    rollout = made.rollout(9)
    assert rollout["observation"].shape[-2:] == (5, width)
    assert rollout["observation"].dtype == torch.float32


@KINDS
def test_policies_take_what_the_environment_shows(kind):
    """One observation as it is, or a batch: arrays stacked, by their names."""
    torch.manual_seed(0)
    policy = Policy(gaussian_actor(Spaces.of(kind), (8,)), kind)
    seen = play(kind, 1)[0][0]
    flat = np.stack([gym.spaces.flatten(kind.observation_space, obs) for obs in seen])
    expected = policy.predict(flat)
    for obs, row in zip(seen, flat, strict=True):
        np.testing.assert_array_equal(policy.predict(obs), policy.predict(row))
    rows_of = stacked(seen, "seen").items()
    batch = {name.removeprefix("seen/"): rows for name, rows in rows_of}
    np.testing.assert_array_equal(policy.predict(batch), expected)
    one = {name: rows[:1] for name, rows in batch.items()}
    assert policy.predict(one).shape == (1, 2)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"desired_goal": [1, 2, 3]}, r"desired_goal of observation has shape \(3,\), expected "
                                      r"\(2,\) or \(batch, 2\)"),
        ({"more": [1]}, "must have the parts achieved_goal, desired_goal, observation, got "
                        "achieved_goal, desired_goal, observation, more"),
        ({"desired_goal": [[1, 2]]}, "parts of observation are of batches that differ"),
        ({"desired_goal": [[1], [2, 3]]}, "desired_goal of observation is no rectangular array"),
        ({"desired_goal": ["a", "b"]}, "desired_goal of observation must be numbers"),
        ({"desired_goal": [1, np.nan]}, "must be finite"),
    ],
)  # fmt: skip
def test_parts_that_are_wrong_are_named(change, told):
    policy = Policy(gaussian_actor(Spaces.of(Goal), (8,)), Goal)
    seen, _ = Goal().reset(seed=0)
    with pytest.raises((ValueError, TypeError), match=told):
        policy.predict(seen | change)


def test_shapes_of_parts_must_fit_their_names():
    with pytest.raises(ValueError, match="obs_part_shapes of spaces"):
        Spaces(obs_shape=(3,), num_actions=2, obs_parts=("a", "b"), obs_part_shapes=((3,),))


def test_a_policy_of_one_array_takes_no_dictionary():
    policy = Policy(gaussian_actor(Spaces.of("Pendulum-v1"), (8,)), "Pendulum-v1")
    with pytest.raises(ValueError, match=r"must be one array, \(3,\), got a dictionary of a, b"):
        policy.predict({"a": [1], "b": [2]})


@KINDS
@pytest.mark.parametrize("ending", ["npz", "hdf5"])
def test_files_hold_what_the_environment_shows(kind, ending, tmp_path):
    arrays, before, after = arrays_of(kind)
    path = tmp_path / f"a.{ending}"
    if ending == "npz":
        np.savez(path, **dict(reversed(arrays.items())))
    else:
        with h5py.File(path, "w") as file:
            for key, value in arrays.items():
                file[key] = value
    for env in (Spaces.of(kind), make_env(kind, 2), kind):
        data = validate(read_dataset(path), env)
        np.testing.assert_array_equal(data.observations, before)
        np.testing.assert_array_equal(data.next_observations, after)
        assert [name for name, _ in data.obs_parts] == list(Spaces.of(env).obs_parts)


@KINDS
def test_minari_s_own_files_hold_what_the_environment_shows(kind, tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    played = play(kind, 2)
    buffers = [
        minari.data_collector.EpisodeBuffer(
            id=number,
            observations=together(seen),
            actions=actions,
            rewards=[0.0] * len(actions),
            terminations=[False] * len(actions),
            truncations=[False] * (len(actions) - 1) + [True],
            infos={},
        )
        for number, (seen, actions) in enumerate(played)
    ]
    minari.create_dataset_from_buffers(
        "goal/test-v0", buffers, observation_space=kind.observation_space,
        action_space=kind.action_space,
    )  # fmt: skip
    data = validate(read_dataset(tmp_path / "goal" / "test-v0"), kind)
    rows = [gym.spaces.flatten(kind.observation_space, o) for seen, _ in played for o in seen[:-1]]
    np.testing.assert_array_equal(data.observations, np.array(rows, np.float32))
    assert data.episodes().tolist() == [[0, 5], [5, 10]]


def together(observations):
    """Many nested observations as one, with rows for leaves."""
    first = observations[0]
    if isinstance(first, dict):
        return {key: together([obs[key] for obs in observations]) for key in first}
    if isinstance(first, tuple):
        return tuple(together(part) for part in zip(*observations, strict=True))
    return np.stack(observations)


def test_generated_data_and_evaluation_see_the_same_vector():
    data = generate(Unsorted, "random", 20, 0)
    # observation (t, difference), desired and achieved goal, in this order
    np.testing.assert_allclose(
        data.observations[:, 1:3], data.observations[:, 5:] - data.observations[:, 3:5], atol=1e-6
    )
    assert data.observations[:, 0].tolist() == [0, 1, 2, 3, 4] * 4
    assert validate(data, Unsorted).fingerprint == data.fingerprint
    seen = []

    def act(obs):
        seen.append(obs.clone())
        return torch.zeros(len(obs), 2)

    Evaluator(Unsorted)(act, 1, seed=0)
    assert [obs[0, 0].item() for obs in seen] == [0, 1, 2, 3, 4]
    assert gaussian_actor(make_env(Unsorted), (4,))(make_env(Unsorted, 2).reset())[
        "action"
    ].shape == (2, 2)


def test_torchrl_s_own_join_is_that_of_a_sorted_dict():
    """``CatTensors`` sorts its keys: gymnasium's order, unless a Dict keeps another one."""
    theirs = TransformedEnv(GymWrapper(Goal()), CatTensors(out_key="observation_vector"))
    ours = make_env(Goal, seed=4)
    theirs.set_seed(4)
    raw = theirs.reset()["observation_vector"]
    assert torch.equal(raw.float(), ours.reset()["observation"])
    with pytest.raises(ValueError, match=r"no 'observation', but observation_vector.*CatTensors"):
        Spaces.of(theirs)


def test_what_is_no_box_is_refused():
    class Counting(Goal):
        observation_space = Dict({"x": REAL, "n": Discrete(3)})

    with pytest.raises(ValueError, match="only Box observations and Dicts or Tuples of Boxes"):
        open_gym(Counting)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observations/observation": np.zeros((3, 3))}, "not one row per step.*observation 3"),
        ({"observations/observation": np.zeros((15, 3, 8, 8))}, r"images \(observation\) cannot"),
        ({"observations/more": np.zeros((15, 1))}, "has not the same parts"),
        ({"observations/observation": np.array(3.0)}, "not one row per step"),
        (
            {f"{key}/extra": np.zeros((15, 1)) for key in ("observations", "next_observations")},
            "parts achieved_goal, desired_goal, extra, observation, but the environment's have",
        ),
    ],
)
def test_files_that_do_not_fit_are_refused(change, message, tmp_path):
    arrays, *_ = arrays_of(Goal)
    np.savez(tmp_path / "a.npz", **{**arrays, **change})
    with pytest.raises(ValueError, match=message):
        validate(read_dataset(tmp_path / "a.npz"), Goal)
