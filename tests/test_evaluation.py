"""Evaluation in gymnasium's and TorchRL's environments, of our policies and of stock ones."""

from __future__ import annotations

import re
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from recurrent_toy import Diary, Toy
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.envs import (
    DoubleToFloat,
    GymEnv,
    ObservationNorm,
    RewardScaling,
    StepCounter,
    ToTensorImage,
    TransformedEnv,
)
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import (
    GRUModule,
    MaskedOneHotCategorical,
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
)
from torchrl.modules.utils import get_env_transforms_from_module

import composerl
from composerl.bookkeeping.evaluation import Evaluator, episode_seed
from composerl.bookkeeping.images import film_frames
from composerl.envs import make_env
from composerl.envs.catch import CATCH
from composerl.envs.spaces import Spaces
from composerl.modules import gaussian_actor, iqn_network
from composerl.policy import Policy

CARTPOLE = Spaces.of("CartPole-v1")


def by_hand(env, actor, seed, episodes):
    """Returns and lengths of TorchRL's own rollouts."""
    returns, lengths = [], []
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        for episode in range(episodes):
            env.set_seed(episode_seed(seed, episode))
            played = env.rollout(1000, actor)
            returns.append(played["next", "reward"].sum().item())
            lengths.append(len(played))
    return returns, lengths


def check(result, expected):
    assert result.returns == pytest.approx(expected[0], rel=1e-4)
    assert list(result.lengths) == expected[1]


# ---- TorchRL's environments --------------------------------------------------------------------


def pendulum():
    return GymEnv("Pendulum-v1")


def transformed():
    layers = ObservationNorm(loc=0.3, scale=0.5, in_keys=["observation"]), RewardScaling(0, 0.1)
    env = pendulum()
    for layer in layers:
        env = TransformedEnv(env, layer)
    return env


@pytest.mark.parametrize("make", [pendulum, transformed, lambda: make_env("Pendulum-v1")])
def test_our_policy_in_a_torchrl_environment(make):
    torch.manual_seed(0)
    policy = Policy(gaussian_actor(Spaces.of("Pendulum-v1"), (16,)), make)
    assert policy.spaces == Spaces.of("Pendulum-v1")
    result = policy.evaluate(3, seed=5)
    assert result == policy.evaluate(3, seed=5)
    check(result, by_hand(make(), policy.actor, 5, 3))


def test_evaluation_there_leaves_random_numbers_alone():
    policy = Policy(gaussian_actor(Spaces.of("Pendulum-v1"), (16,)), pendulum)
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    policy.evaluate(2)
    assert torch.rand(1) == expected


def test_more_episodes_than_environments(monkeypatch):
    monkeypatch.setattr("composerl.bookkeeping.evaluation.MAX_ENVS", 2)
    torch.manual_seed(0)
    policy = Policy(iqn_network(CARTPOLE, (16, 16)), lambda: GymEnv("CartPole-v1"))
    result = policy.evaluate(7, seed=1)
    assert len(set(result.lengths)) > 1
    integers = GymEnv("CartPole-v1", categorical_action_encoding=True)
    check(result, by_hand(integers, policy.actor, 1, 7))


def test_episodes_that_start_later_join_those_under_way(monkeypatch):
    """Where what the policy has written to a step before is not yet to be found."""
    monkeypatch.setattr("composerl.bookkeeping.evaluation.MAX_ENVS", 2)
    actor = stock("one_hot")
    result = Policy(actor, lambda: GymEnv("CartPole-v1")).evaluate(7, seed=1)
    check(result, by_hand(GymEnv("CartPole-v1"), actor, 1, 7))
    assert len(set(result.lengths)) > 1


def test_all_that_an_environment_shows_reaches_a_policy():
    """Left and right in turn, by the number of the step."""

    def make():
        return TransformedEnv(GymEnv("CartPole-v1"), StepCounter())

    class InTurn(nn.Module):
        def forward(self, step):
            return nn.functional.one_hot(step.squeeze(-1) % 2, 2)

    actor = TensorDictModule(InTurn(), ["step_count"], ["action"])
    result = Policy(actor, make).evaluate(4)
    check(result, by_hand(make(), actor, 0, 4))
    assert min(result.lengths) > 12  # balances better than one side alone


def test_states_of_recurrent_modules_are_carried_along():
    torch.manual_seed(0)
    gru = GRUModule(
        input_size=4, hidden_size=8, in_keys=["observation", "memory", "is_init"],
        out_keys=["features", ("next", "memory")],
    )  # fmt: skip
    head = QValueActor(nn.Linear(8, 2), in_keys=["features"], action_space="one_hot")
    actor = TensorDictSequential(gru, head)

    def make():
        return TransformedEnv(GymEnv("CartPole-v1"), get_env_transforms_from_module(actor))

    result = Policy(actor, make).evaluate(4, seed=2)
    check(result, by_hand(make(), actor, 2, 4))


def test_a_policy_with_memory_of_ours():
    torch.manual_seed(0)
    policy = Policy(Toy(), lambda: make_env(Diary))
    result = policy.evaluate(6, seed=3)
    env = make_env(Diary)
    for episode in range(6):
        env.set_seed(episode_seed(3, episode))
        alone, data, total, steps = Policy(policy.actor, Diary), env.reset(), 0.0, 0
        while not data["done"]:
            data["action"] = torch.tensor(alone.predict(data["observation"]))
            data = env.step(data)["next"]
            total, steps = total + data["reward"].item(), steps + 1
        assert (result.returns[episode], result.lengths[episode]) == (total, steps)
    assert len(set(result.lengths)) > 1


def test_wide_observations_are_taken_as_ours_are():
    class Wide(gym.Env):
        observation_space = gym.spaces.Box(-1, 1, (3,), np.float64)
        action_space = gym.spaces.Box(-2, 2, (1,), np.float32)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.left = 5
            return self.np_random.uniform(-1, 1, 3), {}

        def step(self, action):
            self.left -= 1
            return self.np_random.uniform(-1, 1, 3), float(action[0]), False, self.left == 0, {}

    from torchrl.envs import GymWrapper

    policy = Policy(gaussian_actor(Spaces.of(Wide), (8,)), lambda: GymWrapper(Wide()))
    narrow = TransformedEnv(GymWrapper(Wide()), DoubleToFloat())
    check(policy.evaluate(2), by_hand(narrow, policy.actor, 0, 2))


def test_a_batch_of_environments_is_refused():
    policy = Policy(iqn_network(CARTPOLE, (8, 8)), lambda: make_env("CartPole-v1", 2), CARTPOLE)
    with pytest.raises(ValueError, match=r"single one, of batch size \(\), got \(2,\)"):
        policy.evaluate(1)


@pytest.mark.parametrize("inner", ["rendered", "pixels", "floats", "images"])
def test_films(inner):
    torch.manual_seed(0)
    options = {"from_pixels": True, "pixels_only": False}
    make, actor = (
        {
            "rendered": lambda: GymEnv("CartPole-v1", render_mode="rgb_array"),
            "pixels": lambda: GymEnv("CartPole-v1", **options),
            "floats": lambda: TransformedEnv(GymEnv("CartPole-v1", **options), ToTensorImage()),
            "images": lambda: make_env(CATCH),
        }[inner],
        Toy(size=32) if inner == "images" else iqn_network(CARTPOLE, (8, 8)),
    )
    policy = Policy(actor, make)
    frames, fps = film_frames(policy, seed=1)
    (length,) = policy.evaluate(1, seed=1).lengths
    assert frames.shape == (length + 1, *((32, 32) if inner == "images" else (400, 600)), 3)
    assert frames.dtype == np.uint8
    assert fps >= 5
    assert not np.array_equal(frames[0], frames[-1])
    if inner == "floats":
        same = Policy(actor, lambda: GymEnv("CartPole-v1", **options))
        np.testing.assert_array_equal(frames, film_frames(same, seed=1)[0])


def test_what_gives_no_frames_says_so():
    policy = Policy(iqn_network(CARTPOLE, (8, 8)), lambda: GymEnv("CartPole-v1"))
    with pytest.raises(ValueError, match="gives no frames"):
        film_frames(policy)


# ---- stock policies ----------------------------------------------------------------------------


def stock(kind):
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    if kind.startswith("values"):
        return QValueActor(net, in_keys=["observation"], action_space=kind.split()[1])
    logits = TensorDictModule(net, ["observation"], ["logits"])
    made = OneHotCategorical if kind == "one_hot" else torch.distributions.Categorical
    return ProbabilisticActor(logits, in_keys=["logits"], distribution_class=made)


@pytest.mark.parametrize("kind", ["values one_hot", "values categorical", "one_hot", "integers"])
@pytest.mark.parametrize("encoded", [True, False])
def test_stock_policies_of_discrete_actions(kind, encoded):
    """One-hot or integers, in gymnasium's environment and in one of TorchRL with either."""
    actor = stock(kind)
    observation = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    policy = Policy(actor, "CartPole-v1")
    chosen = policy.predict(observation)
    net = next(module for module in actor.modules() if isinstance(module, nn.Linear))
    expected = net(torch.from_numpy(observation)).argmax(-1).numpy()
    np.testing.assert_array_equal(chosen, expected)
    assert policy.predict(observation[0]) == expected[0]
    env, total = gym.make("CartPole-v1"), 0
    obs, over = env.reset(seed=episode_seed(4, 0))[0], False
    while not over:
        obs, reward, ended, cut, _ = env.step(int(net(torch.from_numpy(obs)).argmax()))
        total, over = total + reward, ended or cut
    assert policy.evaluate(1, seed=4).returns == (total,)
    there = Policy(actor, lambda: GymEnv("CartPole-v1", categorical_action_encoding=encoded))
    twin = TensorDictModule(
        lambda obs: nn.functional.one_hot(net(obs).argmax(-1), 2), ["observation"], ["action"]
    )
    check(there.evaluate(3, seed=4), by_hand(GymEnv("CartPole-v1"), twin, 4, 3))


def test_masks_are_read():
    class Second(nn.Module):
        def forward(self, observation):
            mask = torch.tensor([False, True]).expand(*observation.shape[:-1], 2)
            return torch.zeros(*observation.shape[:-1], 2), mask

    actor = ProbabilisticActor(
        TensorDictModule(Second(), ["observation"], ["logits", "mask"]),
        in_keys=["logits", "mask"], distribution_class=MaskedOneHotCategorical,
    )  # fmt: skip
    assert Policy(actor, "CartPole-v1").predict(np.zeros((3, 4))).tolist() == [1, 1, 1]


def test_a_stock_policy_of_float_actions():
    actor = TensorDictModule(nn.Linear(3, 1), ["observation"], ["action"])
    policy = Policy(actor, "Pendulum-v1")
    data = TensorDict({"observation": torch.ones(2, 3)}, [2])
    with torch.no_grad():
        expected = actor(data)["action"]
    np.testing.assert_array_equal(policy.predict(np.ones((2, 3))), expected)
    assert policy.evaluate(1).lengths == (200,)


def test_a_plain_module_is_an_actor(tmp_path):
    """Float actions as they are, discrete ones as integers or by the best of their values."""
    torch.manual_seed(0)
    line, values = nn.Linear(3, 1), nn.Linear(4, 2)
    policy = Policy(line, "Pendulum-v1")
    expected = policy.predict(np.ones((2, 3)))
    np.testing.assert_array_equal(expected, line(torch.ones(2, 3)).detach())
    assert policy.evaluate(1).lengths == (200,)
    saved = policy.save(tmp_path / "plain.safetensors")
    again = composerl.load(saved, actor=nn.Linear(3, 1))
    np.testing.assert_array_equal(again.predict(np.ones((2, 3))), expected)

    class Best(nn.Module):
        def forward(self, observation):
            return values(observation).argmax(-1)

    seen = np.random.default_rng(0).normal(size=(20, 4))
    best = values(torch.tensor(seen).float()).argmax(-1).tolist()
    stock = TensorDictModule(
        lambda obs: nn.functional.one_hot(values(obs).argmax(-1), 2), ["observation"], ["action"]
    )
    for actor in (values, Best()):
        assert Policy(actor, "CartPole-v1").predict(seen).tolist() == best
        there = Policy(actor, lambda: GymEnv("CartPole-v1")).evaluate(3, seed=4)
        check(there, by_hand(GymEnv("CartPole-v1"), stock, 4, 3))


@pytest.mark.parametrize("gives", ["a wrong number", "a pair"])
def test_a_plain_module_that_gives_no_actions_is_told_how_to_be_one(gives):
    actor = nn.Linear(3, 5) if gives == "a wrong number" else nn.LSTM(3, 5)
    kind, got = type(actor).__name__, {nn.Linear: "(batch, 5)", nn.LSTM: "a tuple"}[type(actor)]
    told = f"the actor, a plain {kind}, must turn observations into actions (batch, 1), got {got}"
    with pytest.raises(ValueError, match=re.escape(told)):
        Policy(actor, "Pendulum-v1").evaluate(1)


class Long(gym.Env):
    """Ends after so many steps, of which nothing tells before."""

    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Discrete(2)
    length = 150

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(1, np.float32), 1.0, self.t == self.length, False, {}


def test_an_episode_that_does_not_end_is_told_of(monkeypatch, capsys):
    """Every now and then, with the way out; not where a time limit is known."""
    clock = SimpleNamespace(monotonic=iter(range(1000)).__next__)  # a second for each step
    for name, value in (("time", clock), ("PATIENCE", 100), ("MANY_STEPS", 100)):
        monkeypatch.setattr(f"composerl.bookkeeping.evaluation.{name}", value)
    actor = nn.Linear(1, 2)
    assert Policy(actor, Long).evaluate(1).lengths == (150,)
    (told,) = capsys.readouterr().err.splitlines()
    assert "episode of environment 'Long' has not ended in 100 steps" in told
    assert """--env-kwargs '{"max_episode_steps": 1000}'""" in told
    limited = Policy(actor, lambda: gym.wrappers.TimeLimit(Long(), 140)).evaluate(1)
    assert limited.lengths == (140,)
    assert not capsys.readouterr().err


# ---- environments that are opened --------------------------------------------------------------


def test_shapes_open_one_environment_which_is_then_played_in():
    opened = []

    def make():
        opened.append(1)
        return gym.make("CartPole-v1")

    evaluator = Evaluator(make)
    assert evaluator.spaces == CARTPOLE
    policy = Policy(iqn_network(CARTPOLE, (8, 8)), make, evaluator=evaluator)
    assert policy.spaces == CARTPOLE
    policy.evaluate(1)
    assert len(opened) == 1
    policy.evaluate(3)
    assert len(opened) == 3
    evaluator.close()
    assert evaluator.spaces == CARTPOLE
    assert len(opened) == 3


def test_keyword_arguments_of_the_environment(tmp_path):
    torch.manual_seed(0)
    actor = gaussian_actor(Spaces.of("Pendulum-v1"), (16,))
    plain = Policy(actor, "Pendulum-v1")
    heavy = Policy(actor, "Pendulum-v1", env_kwargs={"g": 30.0, "max_episode_steps": 50})
    assert heavy.evaluate(2).lengths == (50, 50)
    assert heavy.evaluate(2) == Evaluator("Pendulum-v1", heavy.env_kwargs)(heavy.act, 2, 0)
    light = Policy(actor, "Pendulum-v1", env_kwargs={"max_episode_steps": 50})
    assert heavy.evaluate(2).returns != light.evaluate(2).returns
    frames, _ = film_frames(heavy)
    assert len(frames) == 51

    heavy.save(tmp_path / "policy.safetensors")
    loaded = composerl.load(tmp_path)
    assert loaded.env_kwargs == heavy.env_kwargs
    assert loaded.evaluate(2) == heavy.evaluate(2)
    assert composerl.load(tmp_path, env="Pendulum-v1").env_kwargs == heavy.env_kwargs
    # other arguments, or another environment
    bare = composerl.load(tmp_path, env="Pendulum-v1", env_kwargs={})
    assert bare.evaluate(1) == plain.evaluate(1)
    assert composerl.load(tmp_path, env=lambda: gym.make("Pendulum-v1")).env_kwargs == {}
    other = composerl.load(tmp_path, env_kwargs={"max_episode_steps": 20})
    assert other.evaluate(1).lengths == (20,)

    from composerl.bookkeeping.trees import save_tree

    tree = plain.to_tree()  # of a file that was written before there were any
    del tree["env_kwargs"]
    save_tree(tmp_path / "policy.safetensors", "policy", tree)
    assert composerl.load(tmp_path).evaluate(1) == plain.evaluate(1)


def test_keyword_arguments_reach_a_factory():
    def make(steps=7):
        return gym.make("Pendulum-v1", max_episode_steps=steps)

    policy = Policy(gaussian_actor(make, (8,)), make, env_kwargs={"steps": 9})
    assert policy.evaluate(1).lengths == (9,)
    assert policy.to_tree()["env_kwargs"] == {}  # they belong to what a file does not name
