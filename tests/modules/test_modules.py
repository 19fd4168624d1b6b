"""Networks: shapes, bounds, distributions, initialisation, normalisation, descriptions."""

from __future__ import annotations

import json
import math
from functools import partial

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.envs.utils import ExplorationType, check_env_specs, set_exploration_type

from composerl.envs import make_env
from composerl.envs.spaces import Spaces
from composerl.modules import (
    MLP,
    Normalize,
    build,
    deterministic_actor,
    gaussian_actor,
    tanh_gaussian_actor,
    twin_q,
    value,
)

BOX = Spaces(obs_shape=(3,), low=(-2.0, 0.0), high=(2.0, 10.0))
ACTORS = [deterministic_actor, gaussian_actor, tanh_gaussian_actor]


def data(rows=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return TensorDict({"observation": torch.randn(rows, 3, generator=generator) * 5}, [rows])


@pytest.mark.parametrize("make", ACTORS)
def test_greedy_actions_stay_in_the_environment_s_bounds(make):
    torch.manual_seed(0)
    actor = make(BOX, (32,))
    with torch.no_grad():
        for p in actor.parameters():
            p.mul_(10)
        action = actor.greedy(data()["observation"])
    assert action.shape == (64, 2)
    assert (action[:, 0].abs() <= 2).all()
    assert ((action[:, 1] >= 0) & (action[:, 1] <= 10)).all()
    assert action[:, 0].min() < -1  # the range is used, it is not one of +-1
    assert action[:, 1].max() > 9


@pytest.mark.parametrize("make", ACTORS)
def test_actor_in_a_torchrl_rollout(make):
    env = make_env("Pendulum-v1", seed=0)
    check_env_specs(env)
    actor = make(env, (16,))
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        rollout = env.rollout(5, actor)
        torch.testing.assert_close(rollout["action"], actor.greedy(rollout["observation"]))
    assert rollout["action"].abs().max() <= 2


def test_gaussian_log_prob_by_hand():
    """Mean and deviation in the action's own units.

    With all weights 0 the mean is the middle of the box, (0, 5); log_std 0 means a deviation of
    half the range, (2, 5). At a = (1, 10): z = (0.5, 1), so log pi = -0.125 - 0.5 - log 2 - log 5
    - log(2 pi) = -0.625 - log(10) - log(2 pi).
    """
    actor = gaussian_actor(BOX, (8,))
    with torch.no_grad():
        for p in actor.parameters():
            p.zero_()
    dist = actor.get_dist(data(1))
    expected = -0.625 - math.log(10) - math.log(2 * math.pi)
    assert dist.log_prob(torch.tensor([[1.0, 10.0]])).item() == pytest.approx(expected, rel=1e-5)


def test_gaussian_deviation_is_clipped_and_state_independent():
    actor = gaussian_actor(BOX, (8,))
    head = actor.module[0].module
    for raw, clipped in ((9.0, 2.0), (-9.0, -5.0), (1.0, 1.0)):
        with torch.no_grad():
            head.log_std.fill_(raw)
        scale = (
            actor.get_dist(data()).scale
            if hasattr(actor, "scale")
            else head(data()["observation"])[1]
        )
        expected = torch.tensor([2.0, 5.0]) * math.exp(clipped)
        torch.testing.assert_close(scale, expected.expand(64, 2))


def test_tanh_gaussian_density_integrates_to_one():
    """The density over the real box: the change of variables includes the box's size."""
    spaces = Spaces(obs_shape=(3,), low=(-3.0,), high=(5.0,))
    torch.manual_seed(1)
    dist = tanh_gaussian_actor(spaces, (8,)).get_dist(data(1))
    grid = torch.linspace(-3 + 1e-3, 5 - 1e-3, 20001).reshape(-1, 1, 1)
    density = dist.log_prob(grid).exp().flatten()
    assert torch.trapezoid(density, grid.flatten()).item() == pytest.approx(1.0, abs=5e-3)


@pytest.mark.parametrize("make", ACTORS)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"hidden": (7, 5, 3), "activation": "silu", "layer_norm": True, "init": "orthogonal"},
        {"normalize": (torch.ones(3), torch.full((3,), 2.0))},
    ],
)
def test_description_rebuilds_the_network(make, arguments):
    actor = make(BOX, **arguments)
    again = build(json.loads(json.dumps(actor.description)))
    again.load_state_dict(actor.state_dict())
    obs = data()["observation"]
    torch.testing.assert_close(again.greedy(obs), actor.greedy(obs), rtol=0, atol=0)


def test_build_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="unknown network 'eval'"):
        build({"factory": "eval"})
    with pytest.raises(ValueError, match="cannot be built"):
        build({**gaussian_actor(BOX).description, "arguments": {"colour": "red"}})


def test_twin_critics_are_independent_and_read_the_action():
    torch.manual_seed(0)
    critics = twin_q(BOX, (16,))
    batch = data().set("action", torch.rand(64, 2))
    values = [critic(batch.clone())["state_action_value"] for critic in critics]
    assert [v.shape for v in values] == [(64, 1)] * 2
    assert not torch.allclose(values[0], values[1])
    other = critics[0](batch.clone().set("action", torch.zeros(64, 2)))["state_action_value"]
    assert not torch.allclose(values[0], other)
    assert len(twin_q(BOX, number=5)) == 5
    assert value(BOX)(data())["state_value"].shape == (64, 1)


def test_normalisation_is_inside_every_network():
    stats = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 1.0, 2.0])
    raw = data()["observation"]
    scaled = (raw - stats[0]) / stats[1]
    for make in (
        lambda **k: deterministic_actor(BOX, (8,), **k).greedy,
        lambda **k: gaussian_actor(BOX, (8,), **k).module[0].module.greedy,
        lambda **k: tanh_gaussian_actor(BOX, (8,), **k).module[0].module.greedy,
        lambda **k: value(BOX, (8,), **k).module,
        lambda **k: partial(twin_q(BOX, (8,), **k)[1].module, action=torch.ones(64, 2)),
    ):
        torch.manual_seed(0)
        plain = make()
        torch.manual_seed(0)
        normalised = make(normalize=stats)
        torch.testing.assert_close(normalised(raw), plain(scaled))
    with pytest.raises(ValueError, match=r"shape \(3,\), got \(2,\)"):
        Normalize((3,), (torch.zeros(2), torch.ones(2)))


def test_initialisation():
    torch.manual_seed(0)
    net = MLP(8, 2, (8,), init="orthogonal", out_gain=0.01)
    weight = net[0].weight
    torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(8), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        net[2].weight @ net[2].weight.T, 1e-4 * torch.eye(2), atol=1e-8, rtol=0
    )
    assert all((layer.bias == 0).all() for layer in net if isinstance(layer, nn.Linear))
    assert not (MLP(8, 2, (8,))[0].bias == 0).any()
    assert sum(isinstance(layer, nn.LayerNorm) for layer in MLP(8, 2, (8, 8), layer_norm=True)) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "sigmoidal"}, "activation must be one of"),
        ({"init": "zeros"}, "init must be one of"),
        ({"hidden": (8, 0)}, "hidden widths must be positive"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        gaussian_actor(BOX, **options)


@pytest.mark.parametrize("make", [*ACTORS, twin_q])
def test_discrete_environments_are_refused(make):
    with pytest.raises(ValueError, match=r"needs continuous .* 2 discrete"):
        make(Spaces(obs_shape=(4,), num_actions=2))
