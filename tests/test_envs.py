"""Environments and their spaces."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from torchrl.envs import (
    CatFrames,
    Compose,
    DoubleToFloat,
    EnvBase,
    GymEnv,
    GymWrapper,
    ObservationNorm,
    RewardClipping,
    RewardScaling,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)
from torchrl.envs.utils import check_env_specs

from composerl.bookkeeping.evaluation import MAX_ENVS, Evaluator
from composerl.data import generate
from composerl.data.offline.generation import play_episodes
from composerl.envs import make_env, open_gym
from composerl.envs.spaces import Spaces


class Counted(gym.Env):
    """Counts how often it is opened and closed; takes one argument of its own."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    opened = closed = 0

    def __init__(self, length=4):
        Counted.opened += 1
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 5.0, self.t == self.length, False, {}

    def close(self):
        Counted.closed += 1


@pytest.fixture
def counted():
    """A registered environment whose openings are counted from 0."""
    gym.register("Counted-v0", entry_point=lambda length=4: Counted(length))
    Counted.opened = Counted.closed = 0
    yield "Counted-v0"
    gym.registry.pop("Counted-v0")


class Wide(gym.Env):
    """Float64 observations, terminates after 3 steps with reward 1 a step."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Box(-3.0, 3.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.normal(size=2), {}

    def step(self, action):
        assert np.asarray(action).shape == (1,)
        self.t += 1
        return np.full(2, float(self.t)), 1.0, self.t == 3, False, {}


@pytest.mark.parametrize("num_envs", [None, 1, 3])
@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1", Wide])
def test_torchrl_environment(env, num_envs):
    made = make_env(env, num_envs, seed=0)
    assert isinstance(made, EnvBase)
    check_env_specs(made)
    assert made.observation_spec["observation"].dtype == torch.float32
    assert made.batch_size == torch.Size([] if num_envs is None else [num_envs])
    assert Spaces.of(made) == Spaces.of(env)


def test_bounds_are_the_environment_s_own():
    spec = make_env("Pendulum-v1").action_spec
    assert (spec.space.low.item(), spec.space.high.item()) == (-2.0, 2.0)


def test_time_limit_truncates_and_never_terminates():
    rollout = make_env("Pendulum-v1").rollout(300)
    assert len(rollout) == 200
    assert rollout["next", "truncated"][-1]
    assert not rollout["next", "terminated"].any()


def test_seed_repeats():
    first, second = (make_env("Pendulum-v1", seed=3).reset()["observation"] for _ in range(2))
    assert torch.equal(first, second)


def test_factory_of_a_torchrl_environment():
    made = make_env(lambda: GymEnv("Pendulum-v1"))
    assert isinstance(made, GymEnv)
    assert isinstance(make_env(lambda: GymEnv("Pendulum-v1"), 2), SerialEnv)


def test_unknown_id_gives_gymnasium_s_suggestion():
    with pytest.raises(ValueError, match=r"'Pendlum-v1' cannot be made.*Did you mean.*Pendulum"):
        make_env("Pendlum-v1")
    with pytest.raises(ValueError, match="num_envs"):
        make_env("Pendulum-v1", 0)


def test_spaces():
    assert Spaces.of("Pendulum-v1") == Spaces(obs_shape=(3,), low=(-2.0,), high=(2.0,))
    assert Spaces.of("CartPole-v1") == Spaces(obs_shape=(4,), num_actions=2)
    assert Spaces.of(Wide).obs_dtype == "float32"
    box = Spaces(obs_shape=[3], low=[-1.0], high=[1.0])
    assert Spaces(**box.to_json()) == box
    assert (box.action_dim, box.obs_dim, box.discrete) == (1, 3, False)
    with pytest.raises(ValueError, match="either low and high"):
        Spaces(obs_shape=(3,))
    with pytest.raises(ValueError, match="one length"):
        Spaces(obs_shape=(3,), low=(1.0,), high=(1.0, 2.0))

    class Odd(Wide):
        observation_space = gym.spaces.Dict({"x": gym.spaces.Discrete(2)})

    with pytest.raises(ValueError, match="only Box observations"):
        Spaces.of(Odd)

    class Many(Wide):
        action_space = gym.spaces.MultiDiscrete([2, 2])

    with pytest.raises(ValueError, match="only Discrete and one-dimensional Box"):
        Spaces.of(Many)


def test_evaluation_counts_episodes_right():
    evaluate = Evaluator(Wide)
    shapes = []

    def act(obs):
        shapes.append(tuple(obs.shape))
        assert obs.dtype == torch.float32
        return torch.zeros(len(obs), 1)

    result = evaluate(act, MAX_ENVS + 5, seed=0)
    assert result.returns == (3.0,) * (MAX_ENVS + 5)
    assert result.lengths == (3,) * (MAX_ENVS + 5)
    assert shapes == [(MAX_ENVS, 2)] * 3 + [(5, 2)] * 3
    assert str(result) == f"3.0 ± 0.0 over {MAX_ENVS + 5} episodes"
    with pytest.raises(ValueError, match="episodes"):
        evaluate(act, 0, seed=0)
    evaluate.close()


def test_evaluation_of_discrete_actions():
    result = Evaluator("CartPole-v1")(lambda obs: torch.zeros(len(obs), dtype=torch.long), 4, 0)
    assert all(8 <= length <= 11 for length in result.lengths)


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("factory", [False, True])
def test_only_what_is_stepped_is_opened(counted, num_envs, factory):
    made = make_env(Counted if factory else counted, num_envs)
    Spaces.of(made)
    made.rollout(3)
    assert Counted.opened == num_envs
    made.close()
    assert Counted.closed == num_envs


def test_shapes_open_one_environment_and_close_it(counted):
    spaces = Spaces.of(counted)
    assert Spaces.of(spaces) is spaces
    assert (Counted.opened, Counted.closed) == (1, 1)


def test_generated_data_open_no_environment_for_shapes(counted):
    generate(counted, "random", 20, 0)
    assert (Counted.opened, Counted.closed) == (8, 8)
    play_episodes(counted, None, 3, 0, "three")
    assert (Counted.opened, Counted.closed) == (11, 11)


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("factory", [False, True])
def test_keyword_arguments_reach_the_environment(counted, num_envs, factory):
    env = Counted if factory else counted
    assert make_env(env, num_envs, length=2).rollout(9).shape[-1] == 2
    assert open_gym(env, length=7).unwrapped.length == 7
    assert Spaces.of(env, length=3) == Spaces.of(env)


def test_keyword_arguments_of_gymnasium_itself():
    assert len(make_env("Pendulum-v1", max_episode_steps=7, g=5.0).rollout(20)) == 7


@pytest.mark.parametrize(
    ("env", "kwargs", "message"),
    [
        (
            "Pendulum-v1",
            {"h": 1, "g": 9.0, "j": 2},
            "Pendulum-v1' does not take h, j; .* g",
        ),
        (Counted, {"height": 1}, "'Counted' does not take height; it takes length"),
        (lambda **kwargs: Counted(**kwargs), {"size": 1}, "does not take size"),
        ("Pendulum-v1", {"max_episode_steps": "x"}, "cannot be made with {'max_episode_steps'"),
    ],
)
def test_keyword_arguments_that_are_not_taken_are_named(env, kwargs, message):
    for use in (make_env, open_gym, Spaces.of):
        with pytest.raises(ValueError, match=message):
            use(env, **kwargs)


def test_keyword_arguments_come_too_late_for_an_open_environment():
    for env in (make_env("Pendulum-v1"), gym.make("Pendulum-v1"), Spaces.of("Pendulum-v1")):
        with pytest.raises(ValueError, match="g are for an environment that is still to be opened"):
            Spaces.of(env, g=1.0)


def layers(env):
    return [type(layer) for layer in env.transform]


@pytest.mark.parametrize("num_envs", [None, 1, 3])
def test_transforms_follow_the_cast(num_envs):
    """A flat list over the wrapped gymnasium environments, which a collector can look at."""
    norm = ObservationNorm(loc=1.0, scale=2.0, in_keys=["observation"])
    made = make_env(Wide, num_envs, transforms=[norm, Compose(RewardScaling(0.0, 3.0))], seed=0)
    assert layers(made) == [DoubleToFloat, ObservationNorm, RewardScaling]
    assert type(made.base_env) is GymWrapper
    inner = made.base_env._env
    assert isinstance(inner, Wide if num_envs is None else SyncVectorEnv)
    rollout, plain = made.rollout(3), make_env(Wide, num_envs, seed=0).rollout(3)
    assert torch.equal(rollout["observation"], 1.0 + 2.0 * plain["observation"])
    assert torch.equal(rollout["next", "reward"], 3.0 * plain["next", "reward"])
    assert Spaces.of(made) == Spaces.of(Wide)


def test_transforms_are_copied_and_may_be_one_alone():
    clip, frames = RewardClipping(-1.0, 1.0), CatFrames(3, -1, in_keys=["observation"])
    one, other = (make_env(Counted, number, transforms=(clip, frames)) for number in (None, 2))
    assert one.rollout(5)["next", "reward"].unique().tolist() == [1.0]
    assert other.rollout(5)["observation"].shape == (2, 4, 6)
    assert Spaces.of(one) == Spaces.of(other) == Spaces(obs_shape=(6,), num_actions=2)
    assert clip.parent is None
    again = make_env(Counted, transforms=one.transform)  # those of another environment
    assert again.rollout(3)["observation"].shape == (3, 6)
    assert one.transform[0].parent is not None
    alone = make_env(Counted, transforms=clip)
    assert isinstance(alone.transform, RewardClipping)


@pytest.mark.parametrize("num_envs", [None, 1, 2])
def test_transforms_of_a_torchrl_environment(num_envs):
    def make(**kwargs):
        return GymEnv("Pendulum-v1", **kwargs)

    made = make_env(make, num_envs, transforms=[StepCounter()], g=5.0, seed=0)
    assert made.rollout(4)["step_count"].flatten().tolist()[:4] == [0, 1, 2, 3]
    base = made.base_env
    assert isinstance(base, GymEnv if num_envs is None else SerialEnv)
    assert (base if num_envs is None else base._envs[-1]).unwrapped.g == 5.0


def test_spaces_are_read_from_specs():
    """One-hot and integer actions, bounded and not, alone, in a batch and transformed."""
    pole = Spaces.of("CartPole-v1")
    single = GymEnv("CartPole-v1")
    assert single.action_spec.shape == (2,)  # one-hot
    for env in (
        single,
        SerialEnv(2, lambda: GymEnv("CartPole-v1")),
        GymEnv("CartPole-v1", categorical_action_encoding=True),
        TransformedEnv(GymEnv("CartPole-v1"), StepCounter()),
    ):
        assert Spaces.of(env) == pole

    class Free(Wide):
        action_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    assert Spaces.of(GymWrapper(Free())) == Spaces.of(Free)
    assert Spaces.of(Free).high == (np.inf, np.inf)
    many = GymWrapper(type("Many", (Wide,), {"action_space": gym.spaces.MultiDiscrete([2, 2])})())
    with pytest.raises(ValueError, match="only OneHot, Categorical and one-dimensional"):
        Spaces.of(many)
