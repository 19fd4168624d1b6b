"""Discriminator and categorical policy: inputs, running statistics, spectral norm, sampling."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from tensordict import TensorDict
from torch import nn

from composerl.envs import make_env
from composerl.envs.spaces import Spaces
from composerl.modules import (
    RunningNormalize,
    build,
    categorical_actor,
    discriminator,
    gaussian_actor,
    tanh_gaussian_actor,
)

BOX = Spaces(obs_shape=(3,), low=(-2.0, 0.0), high=(2.0, 10.0))
CHOICE = Spaces(obs_shape=(3,), num_actions=4)


def obs(rows=64, seed=0):
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed)) * 5 + 1


def test_statistics_are_those_of_all_rows_together():
    x = obs(1000).double()
    norm = RunningNormalize((3,)).double()
    for part in x.split([1, 7, 492, 500]):
        norm.update(part)
    torch.testing.assert_close(norm.mean, x.mean(0))
    torch.testing.assert_close(norm.variance, x.var(0, correction=0))
    assert norm.count == 1000
    torch.testing.assert_close(norm(x), (x - x.mean(0)) / x.std(0, correction=0))


def test_statistics_change_only_by_update_in_training():
    network = discriminator(BOX, (8,))
    batch = TensorDict({"observation": obs(), "action": torch.rand(64, 2)}, [64])
    untouched = deepcopy(network.state_dict())
    network(batch)
    network.eval()
    network.observe(obs())
    assert all(torch.equal(v, untouched[k]) for k, v in network.state_dict().items())
    network.train()
    network.observe(obs())
    assert not torch.equal(network.module.normalize.mean, untouched["module.normalize.mean"])
    fresh = discriminator(BOX, (8,))
    fresh.load_state_dict(network.state_dict())
    assert fresh.module.normalize.count == 64
    torch.testing.assert_close(fresh(batch.clone())["logits"], network(batch)["logits"])


def test_constant_inputs_stay_finite():
    norm = RunningNormalize((3,))
    norm.update(torch.ones(10, 3))
    assert norm(torch.ones(2, 3)).eq(0).all()
    assert norm(torch.zeros(2, 3)).isfinite().all()
    norm.update(torch.zeros(0, 3))
    assert norm.count == 10


def test_discrete_actions_in_every_form():
    torch.manual_seed(0)
    network = discriminator(CHOICE, (16,))
    index = torch.randint(4, (64,))
    logits = [
        network.module(obs(), action)
        for action in (index, index.unsqueeze(-1), F.one_hot(index, 4), F.one_hot(index, 4).float())
    ]
    assert logits[0].shape == (64, 1)
    for other in logits[1:]:
        torch.testing.assert_close(other, logits[0])
    assert not torch.allclose(network.module(obs(), (index + 1) % 4), logits[0])
    shaped = network.module(obs().reshape(8, 8, 3), index.reshape(8, 8))
    torch.testing.assert_close(shaped.reshape(64, 1), logits[0])


def test_float_actions_are_scaled_by_their_bounds():
    torch.manual_seed(0)
    network = discriminator(BOX, (), normalize=False)
    weight = network.module.trunk[0].weight[0]
    zero = torch.zeros(1, 3)
    change = network.module(zero, torch.tensor([[2.0, 10.0]])) - network.module(
        zero, torch.tensor([[-2.0, 0.0]])
    )
    torch.testing.assert_close(change.squeeze(), 2 * weight[3:].sum())
    free = Spaces(obs_shape=(3,), low=(-float("inf"),), high=(float("inf"),))
    assert discriminator(free).module(zero, torch.ones(1, 1)).isfinite().all()


def test_pixels_are_flattened():
    network = discriminator(Spaces(obs_shape=(2, 3), obs_dtype="uint8", num_actions=2), (8,))
    pixels = torch.randint(256, (5, 2, 3), dtype=torch.uint8)
    network.observe(pixels)
    assert network.module(pixels, torch.zeros(5, dtype=torch.long)).shape == (5, 1)


def test_spectral_norm_bounds_every_layer():
    torch.manual_seed(0)
    network = discriminator(BOX, (32, 32), spectral_norm=True)
    with torch.no_grad():
        for p in network.parameters():
            p.mul_(20)
    for _ in range(50):
        network.module(obs(), torch.rand(64, 2))
    network.eval()
    for layer in network.module.trunk:
        if isinstance(layer, nn.Linear):
            assert torch.linalg.matrix_norm(layer.weight, 2).item() == pytest.approx(1, abs=0.02)
    plain = discriminator(BOX, (32, 32))
    assert torch.linalg.matrix_norm(plain.module.trunk[2].weight, 2).item() != pytest.approx(
        1, abs=0.02
    )


# ---- the categorical policy --------------------------------------------------------------


def test_categorical_samples_as_often_as_it_says():
    torch.manual_seed(0)
    actor = categorical_actor(CHOICE, (8,), init="default")
    with torch.no_grad():
        actor.module[0].module.trunk[-1].bias.copy_(torch.tensor([0.0, 1.0, 2.0, -1.0]))
        one = obs(1).expand(40_000, 3)
        drawn = actor.explore(one)
        assert drawn.shape == (40_000,)
        assert drawn.dtype == torch.long
        expected = actor.get_dist(TensorDict({"observation": obs(1)}, [1])).probs[0]
    shares = torch.bincount(drawn, minlength=4) / 40_000
    torch.testing.assert_close(shares, expected, atol=0.01, rtol=0)
    assert (actor.greedy(one) == expected.argmax()).all()


def test_categorical_starts_even_and_describes_itself():
    actor = categorical_actor(CHOICE, (16,))
    dist = actor.get_dist(TensorDict({"observation": obs()}, [64]))
    torch.testing.assert_close(dist.probs, torch.full((64, 4), 0.25), atol=0.02, rtol=0)
    stats = torch.ones(3), torch.full((3,), 2.0)
    for options in ({}, {"normalize": stats}, {"hidden": (5,), "activation": "relu"}):
        made = categorical_actor(CHOICE, **options)
        again = build(json.loads(json.dumps(made.description)))
        again.load_state_dict(made.state_dict())
        assert torch.equal(again.greedy(obs()), made.greedy(obs()))
    with pytest.raises(ValueError, match="needs discrete actions"):
        categorical_actor(BOX)


def test_categorical_in_a_torchrl_module_call():
    env = make_env("CartPole-v1", seed=0)
    actor = categorical_actor(env, (16,))
    data = TensorDict({"observation": torch.randn(6, 4)}, [6])
    out = actor(data)
    assert out["action"].shape == (6,)
    assert actor.get_dist(data).log_prob(out["action"]).shape == (6,)


def test_categorical_actors_distribution_is_torchs():
    actor = categorical_actor(make_env("CartPole-v1", seed=0), (16,))
    data = TensorDict({"observation": torch.randn(6, 4)}, [6])
    dist = actor.get_dist(data)
    same = torch.distributions.Categorical(logits=actor.module[0](data)["logits"])
    action = torch.randint(2, (6,))
    torch.testing.assert_close(dist.log_prob(action), same.log_prob(action))
    torch.testing.assert_close(dist.entropy(), same.entropy())
    torch.testing.assert_close(dist.probs, same.probs)
    assert torch.equal(dist.deterministic_sample, same.mode)
    assert torch.equal(dist.expand((3, 6)).mode, same.mode.expand(3, 6))
    assert dist.sample(torch.Size([5])).shape == (5, 6)
    assert torch.distributions.kl_divergence(dist, same).abs().max() < 1e-6


@pytest.mark.parametrize("make", [gaussian_actor, tanh_gaussian_actor])
def test_explore_draws_from_the_distribution_within_the_bounds(make):
    torch.manual_seed(0)
    actor = make(BOX, (8,))
    same = obs(1).expand(20_000, 3)
    with torch.no_grad():
        drawn = actor.explore(same)
        torch.manual_seed(1)
        dist = actor.get_dist(TensorDict({"observation": same}, [20_000]))
        expected = dist.sample().clamp(torch.tensor(BOX.low), torch.tensor(BOX.high))
    assert drawn.shape == (20_000, 2)
    assert (drawn >= torch.tensor(BOX.low)).all()
    assert (drawn <= torch.tensor(BOX.high)).all()
    torch.testing.assert_close(drawn.mean(0), expected.mean(0), atol=0.1, rtol=0)
    torch.testing.assert_close(drawn.std(0), expected.std(0), atol=0.1, rtol=0)
