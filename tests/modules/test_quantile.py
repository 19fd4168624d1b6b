"""Quantile networks: shapes, cosines, fractions, acting, every knob."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.envs.utils import ExplorationType, set_exploration_type

from composerl.envs import make_env
from composerl.envs.spaces import Spaces
from composerl.modules import (
    FractionProposal,
    QuantileActor,
    QuantileNetwork,
    Trunk,
    build,
    fqf_network,
    iqn_network,
)
from composerl.policy import Policy, load

SPACES = Spaces(obs_shape=(3,), num_actions=4)
PIXELS = Spaces(obs_shape=(4, 84, 84), obs_dtype="uint8", num_actions=6)
GRID = Spaces(obs_shape=(5, 10, 10), num_actions=3)
FACTORIES = [iqn_network, fqf_network]


def observations(rows=7, seed=0):
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed))


def noisy(actor, scale=3.0):
    """Larger weights, and a last layer that prefers no action, so that states differ."""
    with torch.no_grad():
        for p in actor.parameters():
            p.mul_(scale)
        last = actor.value_network.head[-1]
        last.weight.sub_(last.weight.mean(-1, keepdim=True))
        last.bias.zero_()
    return actor


# ---- the quantile network ----------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"dueling": True}, {"layer_norm": True}])
def test_iqn1_output_is_batch_actions_samples(options):
    network = QuantileNetwork(SPACES, (8, 6), **options)
    assert network(observations(), torch.rand(7, 5)).shape == (7, 4, 5)
    assert network(observations(), torch.rand(5)).shape == (7, 4, 5)
    assert network(observations()[0], torch.rand(5)).shape == (4, 5)
    two = network(observations().expand(2, 7, 3), torch.rand(2, 7, 5))
    assert two.shape == (2, 7, 4, 5)


def test_iqn1_cosine_embedding_by_hand():
    """One feature, weights 1, no bias: F = psi * ReLU(sum_i cos(pi i tau)), i = 1, 2, 3.

    tau = 0: 1 + 1 + 1 = 3. tau = 1/3: 1/2 - 1/2 - 1 = -1, ReLU 0. tau = 1: -1 + 1 - 1 = -1, 0.
    tau = 1/6: sqrt(3)/2 + 1/2 + 0. With psi = ReLU(2 * 1.5) = 3: 9, 0, 0, 3 * 1.3660. Were i to
    start at 0, the first would be 9 too but the second 3 * (1 + 1/2 - 1/2) = 3.
    """
    spaces = Spaces(obs_shape=(1,), num_actions=1)
    network = QuantileNetwork(spaces, (1,), head_layers=0, embedding_dim=3)
    with torch.no_grad():
        for p in network.parameters():
            p.fill_(1.0) if p.ndim == 2 else p.zero_()
        network.trunk.layers[0].weight.fill_(2.0)
    out = network(torch.tensor([[1.5]]), torch.tensor([[0.0, 1 / 3, 1.0, 1 / 6]]))
    expected = [9.0, 0.0, 0.0, 3 * (math.sqrt(3) / 2 + 0.5)]
    torch.testing.assert_close(out[0, 0], torch.tensor(expected), atol=2e-6, rtol=0)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_second_rendition_in_numpy(dueling, layer_norm):
    torch.manual_seed(0)
    network = QuantileNetwork(
        SPACES, (8, 6), embedding_dim=5, dueling=dueling, layer_norm=layer_norm
    )
    x, taus = observations(), torch.rand(7, 9)

    def layers(modules, x):
        for layer in modules:
            if isinstance(layer, nn.Linear):
                x = x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
            elif isinstance(layer, nn.LayerNorm):
                x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + layer.eps)
            else:
                x = np.maximum(x, 0)
        return x

    psi = layers(network.trunk.layers, x.numpy())
    cosines = np.cos(np.pi * np.arange(1, 6) * taus.numpy()[..., None])
    joined = psi[:, None] * np.maximum(layers([network.embedding], cosines), 0)
    out = layers(network.head, joined)
    if dueling:
        out = layers(network.value, joined) + out - out.mean(-1, keepdims=True)
    got = network(x, taus).detach().numpy()
    np.testing.assert_allclose(got, out.transpose(0, 2, 1), atol=1e-5)
    assert sum(isinstance(m, nn.LayerNorm) for m in network.modules()) == layer_norm * (2 + dueling)


def test_without_gradient_memory_is_reused_but_the_numbers_are_the_same():
    torch.manual_seed(0)
    network = QuantileNetwork(SPACES, (8, 6), dueling=True)
    for taus in (torch.rand(7, 5), torch.rand(5)):
        features, before = network.features(observations()).detach(), taus.clone()
        kept = features.clone()
        expected = network.quantiles(features, taus).detach()
        with torch.no_grad():
            torch.testing.assert_close(network.quantiles(features, taus), expected)
        assert torch.equal(features, kept)
        assert torch.equal(taus, before)


def test_derivative_with_respect_to_the_fraction():
    """Users may want the density, 1 / F'(tau): against a finite difference."""
    torch.manual_seed(0)
    network = QuantileNetwork(SPACES, (8, 6)).double()
    x, taus = observations(1).double(), torch.tensor([[0.3]], dtype=torch.float64)
    taus.requires_grad_()
    (slope,) = torch.autograd.grad(network(x, taus)[0, 0, 0], taus)
    high, low = (network(x, taus.detach() + step)[0, 0, 0] for step in (1e-6, -1e-6))
    assert slope.item() == pytest.approx(((high - low) / 2e-6).item(), rel=1e-4)


def test_iqn4_embedding_dim_and_head_layers_take_effect():
    sizes = {e: QuantileNetwork(SPACES, (8, 6), embedding_dim=e) for e in (1, 64)}
    assert {e: net.embedding.weight.shape for e, net in sizes.items()} == {1: (8, 1), 64: (8, 64)}
    assert QuantileNetwork(SPACES, (8, 6)).head[0].weight.shape == (6, 8)
    linear = QuantileNetwork(SPACES, (8, 6), head_layers=0)
    assert len(linear.head) == 1
    assert linear.head[0].weight.shape == (4, 6)
    deep = QuantileNetwork(SPACES, (9, 8, 6), head_layers=2)
    assert [layer.weight.shape for layer in deep.head if isinstance(layer, nn.Linear)] == [
        (8, 9), (6, 8), (4, 6)
    ]  # fmt: skip


def test_dueling_advantages_have_mean_zero():
    torch.manual_seed(0)
    network = QuantileNetwork(SPACES, (8, 6), dueling=True)
    x, taus = observations(), torch.rand(7, 5)
    out = network(x, taus)
    with torch.no_grad():
        network.head[-1].bias.add_(5.0)  # the same for every action: no advantage
    torch.testing.assert_close(network(x, taus), out)
    with torch.no_grad():
        network.value[-1].bias.add_(5.0)
    torch.testing.assert_close(network(x, taus), out + 5)


# ---- trunks ------------------------------------------------------------------------------


def test_nature_trunk_on_uint8_pixels():
    torch.manual_seed(0)
    trunk = Trunk(PIXELS)
    assert trunk.out_dim == 3136
    pixels = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8)
    features = trunk(pixels)
    assert features.shape == (2, 3136)
    torch.testing.assert_close(features, trunk(pixels.float() / 255))
    assert trunk(pixels[0]).shape == (3136,)
    assert trunk(pixels.expand(3, 2, 4, 84, 84)).shape == (3, 2, 3136)
    assert Trunk(PIXELS, (32,), layer_norm=True)(pixels).shape == (2, 32)


@pytest.mark.parametrize("make", FACTORIES)
def test_pixel_policies(make):
    torch.manual_seed(0)
    actor = make(PIXELS, (16,))
    pixels = torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)
    assert actor.greedy(pixels).shape == (3,)
    assert actor.explore(pixels).shape == (3,)
    assert actor.value_network.head[0].weight.shape == (16, 3136)
    again = build(json.loads(json.dumps(actor.description)))
    again.load_state_dict(actor.state_dict())
    torch.testing.assert_close(again.greedy(pixels), actor.greedy(pixels))
    action = Policy(actor, None, PIXELS).predict(pixels[0].numpy())
    assert action == actor.greedy(pixels[:1]).item()


def test_small_grids_get_one_convolution():
    trunk = Trunk(GRID, (12,))
    assert [type(layer) for layer in trunk.convolutions] == [nn.Conv2d, nn.ReLU]
    assert trunk(torch.rand(2, 5, 10, 10)).shape == (2, 12)
    assert iqn_network(GRID, (12, 8)).greedy(torch.rand(2, 5, 10, 10)).shape == (2,)


def test_trunk_errors():
    with pytest.raises(ValueError, match=r"vectors \(n,\) or images .* got shape \(3, 3\)"):
        Trunk(Spaces(obs_shape=(3, 3), num_actions=2), (8,))
    with pytest.raises(ValueError, match="needs a hidden layer"):
        Trunk(SPACES)
    with pytest.raises(ValueError, match="at least 3 pixels"):
        Trunk(Spaces(obs_shape=(4, 2, 9), num_actions=2))
    with pytest.raises(ValueError, match=r"got \(2, 84, 84, 4\)"):
        Trunk(PIXELS)(torch.zeros(2, 84, 84, 4, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"hidden widths must be positive"):
        Trunk(SPACES, (8, 0))


# ---- the proposal ------------------------------------------------------------------------


def test_fqf1_fractions_by_hand():
    """Logits log(1), log(2), log(5): shares 1/8, 2/8, 5/8; taus 0, 1/8, 3/8, 1.

    Midpoints 1/16, 1/4, 11/16; entropy (log 8)/8 + (log 4)/4 + 5 (log 8/5)/8.
    """
    proposal = FractionProposal(2, 3)
    with torch.no_grad():
        proposal.weight.zero_()
        proposal.bias.copy_(torch.tensor([1.0, 2.0, 5.0]).log())
    taus, tau_hats, entropy = proposal(torch.randn(4, 2))
    torch.testing.assert_close(taus[0], torch.tensor([0, 1 / 8, 3 / 8, 1]))
    torch.testing.assert_close(tau_hats[0], torch.tensor([1 / 16, 1 / 4, 11 / 16]))
    expected = math.log(8) / 8 + math.log(4) / 4 + 5 * math.log(8 / 5) / 8
    assert entropy.tolist() == pytest.approx([expected] * 4)


def test_fqf1_shapes_and_order():
    torch.manual_seed(0)
    proposal = FractionProposal(6, 32)
    with torch.no_grad():
        proposal.weight.mul_(300)
    taus, tau_hats, entropy = proposal(torch.randn(5, 6))
    assert (taus.shape, tau_hats.shape, entropy.shape) == ((5, 33), (5, 32), (5,))
    assert (taus[:, 0] == 0).all()
    assert (taus[:, -1] == 1).all()
    assert (taus.diff() >= -1e-6).all()
    assert ((tau_hats >= taus[:, :-1]) & (tau_hats <= taus[:, 1:] + 1e-6)).all()
    assert (entropy < math.log(32)).all()

    actor = fqf_network(SPACES, (8, 6), num_quantiles=5)
    out = actor.distribution(observations())
    assert out["quantiles"].shape == (7, 4, 5)
    assert out["taus"].shape == (7, 6)
    assert out["tau_hats"].shape == (7, 5)


def test_fqf2_proposal_reads_the_state_alone_and_starts_nearly_uniform():
    """Xavier with gain 0.01: weights within 0.01 * sqrt(6 / (in + out)), so shares near 1/n."""
    torch.manual_seed(0)
    proposal = FractionProposal(128, 32)
    assert proposal.weight.abs().max() <= 0.01 * math.sqrt(6 / 160)
    assert not proposal.bias.any()
    features = torch.randn(9, 128, requires_grad=True)
    taus, _, entropy = proposal(features)
    torch.testing.assert_close(taus, torch.linspace(0, 1, 33).expand(9, 33), atol=5e-3, rtol=0)
    (taus.sum() + entropy.sum()).backward()
    assert features.grad is None  # detached
    assert proposal.weight.grad.any()


# ---- acting ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", FACTORIES)
def test_greedy_is_deterministic_and_leaves_the_generator_alone(make):
    torch.manual_seed(0)
    actor = noisy(make(SPACES, (16, 16)))
    before = torch.get_rng_state()
    action = actor.greedy(observations(64))
    torch.testing.assert_close(action, actor.greedy(observations(64)))
    assert torch.equal(before, torch.get_rng_state())
    assert action.shape == (64,)
    assert action.dtype == torch.int64
    assert len(action.unique()) > 1


def test_iqn2_acts_by_the_mean_over_sampled_quantiles():
    torch.manual_seed(0)
    actor = noisy(iqn_network(SPACES, (16, 16), num_acting_quantiles=5))
    x = observations(64)
    torch.manual_seed(1)
    taus = torch.rand(64, 5)
    expected = actor.value_network(x, taus).mean(-1).argmax(-1)
    torch.manual_seed(1)
    torch.testing.assert_close(actor.explore(x), expected)
    midpoints = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])
    values = actor.value_network(x, midpoints).mean(-1)
    torch.testing.assert_close(actor.greedy(x), values.argmax(-1))
    out = actor.distribution(x)
    torch.testing.assert_close(out["taus"], midpoints.expand(64, 5))
    torch.testing.assert_close(out["quantiles"].mean(-1), values.detach())


def test_iqn4_more_acting_quantiles_make_less_noise():
    torch.manual_seed(0)
    spread = {}
    for number in (1, 4, 256):
        torch.manual_seed(0)
        actor = noisy(iqn_network(SPACES, (16, 16), num_acting_quantiles=number))
        x = observations(1).expand(500, 3)
        spread[number] = actor.module.action_values(x, sample=True).std(0).max().item()
    assert spread[1] > 1.5 * spread[4] > 3 * spread[256] > 0


def test_fqf_acts_by_lengths_times_quantiles():
    torch.manual_seed(0)
    actor = noisy(fqf_network(SPACES, (16, 16), num_quantiles=5), 5.0)
    x = observations(64)
    out = actor.distribution(x)
    lengths = out["taus"][:, 1:] - out["taus"][:, :-1]
    assert lengths.std() > 0.01  # far from uniform, where a plain mean would do
    values = (lengths[:, None] * out["quantiles"]).sum(-1)
    torch.testing.assert_close(actor.greedy(x), values.argmax(-1))
    torch.testing.assert_close(actor.explore(x), values.argmax(-1))  # epsilon 0
    at_hats = actor.value_network(x, out["tau_hats"])
    torch.testing.assert_close(out["quantiles"], at_hats.detach())
    assert fqf_network(SPACES, (8, 8), num_quantiles=9).distribution(x)["taus"].shape == (64, 10)


@pytest.mark.parametrize("make", FACTORIES)
def test_epsilon_is_the_share_of_uniform_actions(make):
    """One greedy action g of 4: P(a != g) = epsilon * 3/4; 4,000 draws have deviation 0.008."""
    torch.manual_seed(0)
    actor = make(SPACES, (8, 8), embedding_dim=2)
    with torch.no_grad():
        for p in actor.parameters():
            p.zero_()
        actor.value_network.head[-1].bias.copy_(torch.tensor([0.0, 0.0, 1.0, 0.0]))
    x = torch.zeros(4000, 3)
    for epsilon in (0.0, 0.3, 1.0):
        actor.epsilon = epsilon
        counts = actor.explore(x).bincount(minlength=4) / 4000
        expected = torch.full((4,), epsilon / 4)
        expected[2] += 1 - epsilon
        torch.testing.assert_close(counts, expected, atol=0.025, rtol=0)
        assert (actor.greedy(x) == 2).all()
    with pytest.raises(ValueError, match=r"epsilon must be in \[0, 1\], got 1.5"):
        actor.epsilon = 1.5


@pytest.mark.parametrize("make", FACTORIES)
def test_exploration_repeats_with_the_generator(make):
    actor = noisy(make(SPACES, (16, 16)))
    actor.epsilon = 0.5
    draws = []
    for _ in range(2):
        torch.manual_seed(3)
        draws.append(actor.explore(observations(100)))
    assert torch.equal(*draws)
    assert not torch.equal(draws[0], actor.explore(observations(100)))


@pytest.mark.parametrize("make", FACTORIES)
def test_native_in_torchrl(make):
    torch.manual_seed(0)
    actor = noisy(make(SPACES, (16, 16)))
    assert isinstance(actor, TensorDictModule)
    assert isinstance(actor, QuantileActor)
    assert actor.in_keys == ["observation"]
    assert actor.out_keys == ["action", "action_value"]
    x = observations(200)
    out = actor(TensorDict({"observation": x}, [200]))
    assert out["action_value"].shape == (200, 4)
    assert out["action"].dtype == torch.int64
    torch.testing.assert_close(out["action"], actor.greedy(x))
    torch.testing.assert_close(out["action"], out["action_value"].argmax(-1))
    actor.epsilon = 1.0
    with set_exploration_type(ExplorationType.RANDOM):
        random = actor(TensorDict({"observation": x}, [200]))["action"]
    assert (random.bincount(minlength=4) > 25).all()
    torch.testing.assert_close(actor(observation=x)[0], actor.greedy(x))


@pytest.mark.parametrize("make", FACTORIES)
def test_observations_of_torchrl_environments(make):
    env = make_env("CartPole-v1", 2, seed=0)
    actor = make(env, (16, 16))
    x = env.reset()["observation"]
    assert actor.explore(x).shape == (2,)
    assert actor.greedy(x).shape == (2,)
    rollout = make_env("CartPole-v1", seed=0).rollout(5, actor)
    assert rollout["action_value"].shape[1:] == (2,)
    torch.testing.assert_close(rollout["action"], actor.greedy(rollout["observation"]))


# ---- as a policy -------------------------------------------------------------------------


@pytest.mark.parametrize("make", FACTORIES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hidden": (7, 5, 3), "head_layers": 2, "embedding_dim": 9, "layer_norm": True},
        {"dueling": True},
    ],
)
def test_description_rebuilds_the_network(make, options, tmp_path):
    torch.manual_seed(0)
    own = {"num_acting_quantiles": 3} if make is iqn_network else {"num_quantiles": 3}
    actor = noisy(make(SPACES, **options, **own))
    again = build(json.loads(json.dumps(actor.description)))
    assert again.description == actor.description
    again.load_state_dict(actor.state_dict())
    x = observations(50)
    torch.testing.assert_close(again.greedy(x), actor.greedy(x), rtol=0, atol=0)
    policy = load(Policy(actor, None, SPACES).save(tmp_path / "policy.safetensors"))
    np.testing.assert_array_equal(policy.predict(x.numpy()), actor.greedy(x).numpy())
    for key, value in actor.distribution(x).items():
        torch.testing.assert_close(policy.actor.distribution(x)[key], value, rtol=0, atol=0)


@pytest.mark.parametrize("make", FACTORIES)
def test_policy_plays_cartpole(make):
    spaces = Spaces.of("CartPole-v1")
    policy = Policy(make(spaces, (8, 8)), "CartPole-v1", spaces)
    result = policy.evaluate(episodes=2)
    assert all(1 <= value <= 500 for value in result.returns)
    assert policy.evaluate(episodes=2) == result


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (iqn_network, {"embedding_dim": 0}, "embedding_dim must be an integer of at least 1"),
        (iqn_network, {"num_acting_quantiles": 0}, "num_acting_quantiles"),
        (iqn_network, {"hidden": (8,)}, r"at least 2 .* shape \(3,\), got \(8,\)"),
        (iqn_network, {"head_layers": -1}, "head_layers must be an integer of at least 0"),
        (fqf_network, {"num_quantiles": 1}, "num_quantiles must be an integer of at least 2"),
        (fqf_network, {"num_quantiles": 8.0}, "num_quantiles .* got 8.0"),
    ],
)
def test_bad_arguments(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(SPACES, **options)


@pytest.mark.parametrize("make", FACTORIES)
def test_continuous_environments_are_refused(make):
    with pytest.raises(ValueError, match=r"needs discrete actions, .* Box of 2 continuous"):
        make(Spaces(obs_shape=(4,), low=(-1.0, -1.0), high=(1.0, 1.0)))
