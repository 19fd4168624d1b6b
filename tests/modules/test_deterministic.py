"""Policies without a distribution: TD3's actor, and the greedy policy of action values."""

from __future__ import annotations

import json

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import Actor, AdditiveGaussianModule, EGreedyModule, QValueActor

from composerl.envs import make_env
from composerl.envs.spaces import Spaces
from composerl.losses import DiscreteCQLLoss
from composerl.modules import build, deterministic_actor, q_network

BOX = Spaces(obs_shape=(3,), low=(-2.0, 0.0), high=(2.0, 10.0))
DISCRETE = Spaces(obs_shape=(3,), num_actions=4)
MASKED = Spaces(obs_shape=(3,), num_actions=4, masked=True)


def observations(rows=1000):
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))


def test_the_actor_is_torchrl_s_and_explores_on_request_only():
    torch.manual_seed(0)
    actor = deterministic_actor(BOX, (8,))
    assert isinstance(actor, Actor)
    obs = observations()
    action = actor.greedy(obs)
    for kind in (ExplorationType.RANDOM, ExplorationType.DETERMINISTIC):
        with set_exploration_type(kind):
            torch.testing.assert_close(actor(TensorDict({"observation": obs}))["action"], action)
    with torch.no_grad():
        noise = (actor.explore(obs) - action) / torch.tensor([2.0, 5.0])
        assert noise.std(0).tolist() == pytest.approx([0.1, 0.1], rel=0.1)
        actor.noise = 5.0
        wild = actor.explore(obs)
        assert (wild.amin(0).tolist(), wild.amax(0).tolist()) == ([-2.0, 0.0], [2.0, 10.0])
        actor.noise = 0.0
        assert torch.equal(actor.explore(obs), action)


@pytest.mark.parametrize("spaces", [DISCRETE, MASKED])
def test_the_values_policy_is_torchrl_s(spaces):
    torch.manual_seed(0)
    actor = q_network(spaces, (8,))
    assert isinstance(actor, QValueActor)
    obs = observations()
    mask = torch.arange(4).ne(obs.argmax(-1, keepdim=True))
    seen = TensorDict({"observation": obs, "action_mask": mask}, [1000])
    inputs = [seen[key] for key in actor.in_keys]
    assert len(inputs) == (2 if spaces.masked else 1)
    out = actor(seen.clone())
    values = actor.value_network(seen.clone())["action_value"]
    assert torch.equal(out["action_value"][mask], values[mask])
    assert torch.equal(out["action"], actor.greedy(*inputs))
    best = values.masked_fill(~mask, -torch.inf) if spaces.masked else values
    assert torch.equal(out["action"], best.argmax(-1))
    assert torch.equal(actor.explore(*inputs), out["action"])  # epsilon is 0 at first
    actor.epsilon = 0.5
    other = actor.explore(*inputs)
    choices = 3 if spaces.masked else 4
    share = (other != out["action"]).float().mean().item()
    assert share == pytest.approx(0.5 * (1 - 1 / choices), abs=0.05)
    if spaces.masked:
        assert mask.gather(-1, other.unsqueeze(-1)).all()


def test_description_rebuilds_the_values_policy():
    stats = torch.ones(3), torch.full((3,), 2.0)
    for spaces in (DISCRETE, MASKED):
        actor = q_network(spaces, (7, 5), activation="silu", layer_norm=True, normalize=stats)
        again = build(json.loads(json.dumps(actor.description)))
        again.load_state_dict(actor.state_dict())
        assert again.in_keys == actor.in_keys
        values = [policy.value_network.module(observations()) for policy in (actor, again)]
        assert torch.equal(*values)
        assert torch.equal(again.greedy(observations()), values[0].argmax(-1))


def test_the_loss_takes_the_policy_or_its_network_alone():
    torch.manual_seed(0)
    actor, batch = q_network(DISCRETE, (8,)), TensorDict({"observation": observations(6)}, [6])
    batch["action"] = torch.arange(6) % 4
    batch["next"] = {
        "observation": observations(6) + 1,
        "reward": torch.ones(6, 1),
        "done": torch.zeros(6, 1, dtype=torch.bool),
        "terminated": torch.zeros(6, 1, dtype=torch.bool),
    }
    whole, alone = (DiscreteCQLLoss(network) for network in (actor, actor.value_network))
    torch.testing.assert_close(whole(batch.clone()).to_dict(), alone(batch.clone()).to_dict())


@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_stock_collectors_with_stock_exploration(env):
    env = make_env(env, seed=0)
    spec = env.action_spec_unbatched
    if Spaces.of(env).discrete:
        policy = q_network(env, (8,))
        noise = EGreedyModule(spec, eps_init=1.0, eps_end=1.0)
    else:
        policy = deterministic_actor(env, (8,))
        noise = AdditiveGaussianModule(spec, sigma_init=0.5)
    collector = Collector(
        env, TensorDictSequential(policy, noise), frames_per_batch=50, total_frames=50,
        auto_register_policy_transforms=False,
    )  # fmt: skip
    (batch,) = collector
    with torch.no_grad():
        greedy = policy.greedy(batch["observation"])
    assert spec.is_in(batch["action"][0])
    assert (batch["action"] != greedy).reshape(50, -1).any(-1).sum() > 5
    collector.shutdown()


def test_wrong_kinds_of_actions_are_refused():
    with pytest.raises(ValueError, match="q_network needs discrete actions"):
        q_network(BOX)
    with pytest.raises(ValueError, match="deterministic_actor needs continuous"):
        deterministic_actor(DISCRETE)
