"""The world model and the policy on it: recurrence, resets, latents, sizes."""

from __future__ import annotations

import pytest
import torch

from composerl.envs.spaces import Spaces
from composerl.modules import SIZES, Latent, build, dreamer_actor, dreamer_critic, world_model
from composerl.modules.world_parts import UNIFORM, draw, mix_uniform

SPACES = Spaces(obs_shape=(1, 16, 16), obs_dtype="uint8", num_actions=3)
TINY = {"deter": 6, "latents": 3, "classes": 4, "units": 8, "layers": 1, "depth": 2}


@pytest.fixture
def actor():
    torch.manual_seed(0)
    return dreamer_actor(SPACES, TINY)


def sequences(batch=2, time=6):
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (batch, time, 1, 16, 16), generator=generator)
    action = torch.randint(0, 3, (batch, time), generator=generator)
    return pixels.to(torch.uint8), action, torch.zeros(batch, time, dtype=torch.bool)


def follow(world, pixels, action, first, latent=None):
    return world.observe(world.image(pixels), action, first, latent, sample=False)


def test_one_step_by_the_equations(actor):
    """x = silu(LN(W_z z + w_a)); r, c, u = LN(W [h, x]); h' = h + s(u) (tanh(s(r) c) - h)."""
    world = actor.world_network
    torch.manual_seed(1)
    latent, action = Latent(torch.randn(5, 6), torch.rand(5, 12)), torch.tensor([0, 1, 2, 2, 1])

    def norm(x, layer):
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
        return x * layer.weight + layer.bias

    x = latent.stoch @ world.stoch_in.weight.T + world.action_in.weight[action]
    x = norm(x, world.input_norm)
    x = x * x.sigmoid()
    gates = norm(torch.cat([latent.deter, x], 1) @ world.gates.weight.T, world.gates_norm)
    r, c, u = gates[:, :6], gates[:, 6:12], gates[:, 12:]
    h = latent.deter + u.sigmoid() * ((r.sigmoid() * c).tanh() - latent.deter)
    torch.testing.assert_close(world.imagine(latent, action).deter, h)


def test_what_is_not_shown_is_imagined(actor):
    """Where a record is not shown the state is what imagine() makes of the one before it."""
    world = actor.world_network
    pixels, action, first = sequences()
    shown = torch.tensor([[1, 1, 0, 0, 1, 0], [1, 0, 0, 0, 0, 0]]).bool()
    image = world.image(pixels)
    states = world.observe(image, action, first, sample=False, shown=shown).latent
    plain = follow(world, pixels, action, first).latent
    torch.testing.assert_close(states.stoch[0, :2], plain.stoch[0, :2], rtol=0, atol=0)
    for t in range(1, 6):
        before = Latent(states.deter[:, t - 1], states.stoch[:, t - 1])
        expected = world.imagine(before, action[:, t], sample=False)
        torch.testing.assert_close(states.deter[:, t], expected.deter)
        torch.testing.assert_close(states.stoch[~shown[:, t], t], expected.stoch[~shown[:, t]])
    # an image that is not shown changes nothing
    pixels[0, 2:4], pixels[0, 5:], pixels[1, 1:] = 0, 0, 0
    again = world.observe(world.image(pixels), action, first, sample=False, shown=shown).latent
    assert torch.equal(again.features, states.features)


def test_shapes_and_one_hot_latents(actor):
    world = actor.world_network
    seen = world.observe(world.image(sequences()[0]), *sequences()[1:])
    assert seen.latent.deter.shape == (2, 6, 6)
    assert seen.latent.stoch.shape == (2, 6, 12)
    assert seen.posterior.shape == seen.prior.shape == (2, 6, 3, 4)
    stoch = seen.latent.stoch.view(2, 6, 3, 4)
    assert torch.equal(stoch.amax(-1), torch.ones(2, 6, 3))
    assert torch.equal(stoch.sum(-1), torch.ones(2, 6, 3))
    for probs in (seen.posterior, seen.prior):
        torch.testing.assert_close(probs.sum(-1), torch.ones(2, 6, 3))
    images = world.decoder(seen.latent.features.flatten(0, 1))
    assert images.shape == (12, 1, 16, 16)


def test_a_first_flag_inside_a_slice_forgets_what_was_before(actor):
    pixels, action, first = sequences()
    first[0, 3] = True
    whole = follow(actor.world_network, pixels, action, first)
    rest = follow(actor.world_network, pixels[:, 3:], action[:, 3:] * 0, first[:, 3:])
    # row 0 starts anew: states before and the action that led there leave no trace
    action[0, 4:] = 0
    alone = follow(actor.world_network, pixels, action, first)
    torch.testing.assert_close(alone.latent.deter[0, 3:], rest.latent.deter[0])
    torch.testing.assert_close(whole.latent.deter[0, 3], rest.latent.deter[0, 0])
    # row 1 has no flag and remembers
    assert not torch.allclose(whole.latent.deter[1, 3], rest.latent.deter[1, 0])
    for start in (0, 1):  # nor does anything at the slice's start reset what a state is given
        state = Latent(torch.ones(2, 6), torch.ones(2, 12))
        first[:, 0] = bool(start)
        given = follow(actor.world_network, pixels, action, first, state).latent.deter[:, 0]
        fresh = follow(actor.world_network, pixels, action, first).latent.deter[:, 0]
        assert torch.allclose(given, fresh) is bool(start)


def test_acting_follows_the_training_recurrence(actor):
    """The posterior while acting equals that in training on the same records."""
    pixels, _, first = sequences(batch=3, time=7)
    first[:, 0] = True
    first[1, 4] = True
    state, states, actions = actor.initial(3), [], [torch.zeros(3, dtype=torch.int64)]
    for t in range(7):
        action, state = actor.greedy(pixels[:, t], state, first[:, t])
        states.append(state)
        actions.append(action)
    before = torch.stack(actions[:-1], 1).masked_fill(first, 0)  # as the records have it
    seen = follow(actor.world_network, pixels, before, first).latent
    for key in ("deter", "stoch"):
        acted = torch.stack([state[key] for state in states], 1)
        torch.testing.assert_close(acted, getattr(seen, key), rtol=1e-4, atol=1e-6)


def test_rows_of_a_batch_do_not_mix(actor):
    pixels, _, first = sequences(batch=4, time=1)
    state = {"deter": torch.randn(4, 6), "stoch": torch.rand(4, 12),
             "action": torch.tensor([0, 1, 2, 1])}  # fmt: skip
    first[2] = True
    action, following = actor.greedy(pixels[:, 0], state, first[:, 0])
    for row in range(4):
        one = slice(row, row + 1)
        alone, own = actor.greedy(pixels[one, 0], {k: v[one] for k, v in state.items()},
                                  first[one, 0])  # fmt: skip
        assert alone == action[one]
        torch.testing.assert_close(own["deter"], following["deter"][one])
    assert torch.equal(following["action"], action)


def test_greedy_is_deterministic_and_explore_is_not(actor):
    pixels, _, first = sequences(batch=64, time=1)
    call = (pixels[:, 0], actor.initial(64), first[:, 0])
    assert torch.equal(actor.greedy(*call)[0], actor.greedy(*call)[0])
    torch.manual_seed(0)
    one, again = actor.explore(*call)[0], actor.explore(*call)[0]
    assert not torch.equal(one, again)
    assert set(one.tolist()) == {0, 1, 2}
    torch.manual_seed(0)
    assert torch.equal(actor.explore(*call)[0], one)
    assert not any(x.requires_grad for x in actor.explore(*call)[1].values())


def test_uniform_mix_reaches_its_floor(actor):
    """However sure a distribution is, each class keeps 1 % / classes."""
    probs = mix_uniform(torch.tensor([[1000.0, 0.0, 0.0, -1000.0]]))
    torch.testing.assert_close(probs, torch.tensor([[0.9925, 0.0025, 0.0025, 0.0025]]))
    world = actor.world_network
    with torch.no_grad():
        for layer in (world.posterior_out, world.prior_head.last, actor.actor_network.head.last):
            layer.bias.zero_()[::2] = 1e4
    seen = follow(world, *sequences())
    for found, classes in (
        (seen.posterior, 4),
        (seen.prior, 4),
        (actor.actor_network(seen.latent.features).exp(), 3),
    ):
        torch.testing.assert_close(found.min(), torch.tensor(UNIFORM / classes))


def test_draws_have_the_stated_frequencies():
    torch.manual_seed(0)
    probs = torch.tensor([0.1, 0.2, 0.7]).expand(50_000, 3)
    drawn = draw(probs, torch.rand(50_000, 1))
    assert drawn.shape == (50_000, 1)
    share = torch.bincount(drawn.flatten(), minlength=3) / 50_000
    torch.testing.assert_close(share, probs[0], rtol=0, atol=0.01)
    assert torch.equal(draw(probs[:2], None), torch.full((2, 1), 2))
    # the largest number below 1, where the cumulated sum may have rounded to less
    top = torch.tensor([[1 - 2**-24]])
    assert draw(torch.full((1, 3), 1 / 3) * 0.999, top) == 2


def test_straight_through_gradients_flow(actor):
    """A later state depends on an earlier image through the drawn latents only by their probs."""
    world = actor.world_network
    pixels, action, first = sequences()
    image = world.image(pixels).requires_grad_()
    torch.manual_seed(0)
    seen = world.observe(image, action, first)
    (gradient,) = torch.autograd.grad(seen.latent.deter[:, 1].square().sum(), image)
    gradient = gradient.view(2, 6, -1).abs().sum(-1)
    assert bool((gradient[:, 0] > 0).all())  # from h_1 to x_0: through z_0 alone
    assert not gradient[:, 1:].any()  # h_1 has not seen x_1
    # the value of a latent is the draw, its gradient that of the probabilities
    probs = torch.tensor([[[0.3, 0.7]]], requires_grad=True)
    stoch = world._one_hot(probs, torch.tensor([[[0.1]]]))
    assert torch.equal(stoch, torch.tensor([[1.0, 0.0]]))
    (stoch * torch.tensor([2.0, 5.0])).sum().backward()
    assert torch.equal(probs.grad, torch.tensor([[[2.0, 5.0]]]))


def test_heads_start_at_zero(actor):
    world = actor.world_network
    features = torch.randn(5, world.feature_dim)
    assert not world.reward_head(features).any()
    assert not dreamer_critic(SPACES, TINY)(features).any()
    assert dreamer_critic(SPACES, TINY)(features).shape == (5, 255)


@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 32, 32), (1, 16, 16), (4, 24, 40), (1, 80, 96)])
def test_image_shapes(shape):
    world = world_model(Spaces(obs_shape=shape, obs_dtype="uint8", num_actions=2), TINY)
    pixels = torch.randint(0, 256, (1, 2, *shape), dtype=torch.uint8)
    image = world.image(pixels)
    assert image.shape == (2, *shape)
    assert image.max() <= 1
    seen = world.observe(image, torch.zeros(1, 2, dtype=torch.int64), torch.ones(1, 2).bool())
    assert world.decoder(seen.latent.features.flatten(0, 1)).shape == (2, *shape)


def test_wrong_arguments_are_refused_in_one_sentence():
    with pytest.raises(ValueError, match=r"sides can be halved .* got \(3, 84, 84\)"):
        world_model(Spaces(obs_shape=(3, 84, 84), num_actions=2), TINY)
    with pytest.raises(ValueError, match=r"needs images .* got \(4,\)"):
        world_model(Spaces(obs_shape=(4,), num_actions=2), TINY)
    with pytest.raises(ValueError, match="size must be one of debug, small, medium, got 'huge'"):
        dreamer_actor(SPACES, "huge")
    with pytest.raises(ValueError, match="positive integers"):
        dreamer_actor(SPACES, {**TINY, "units": 0})
    with pytest.raises(ValueError, match="discrete"):
        dreamer_actor(Spaces(obs_shape=(1, 16, 16), low=(0.0,), high=(1.0,)), TINY)
    with pytest.raises(ValueError, match=r"shape \(\.\.\., 1, 16, 16\), got \(2, 3, 16, 16\)"):
        world_model(SPACES, TINY).image(torch.zeros(2, 3, 16, 16))


def test_a_description_builds_an_equal_network(actor):
    copy = build(actor.description)
    copy.load_state_dict(actor.state_dict())
    pixels, _, first = sequences(batch=8, time=1)
    call = (pixels[:, 0], actor.initial(8), first[:, 0])
    assert torch.equal(copy.greedy(*call)[1]["deter"], actor.greedy(*call)[1]["deter"])
    assert build(dreamer_actor(SPACES, "debug").description).description["arguments"] == {
        "size": SIZES["debug"]
    }


def test_sizes_grow():
    spaces = Spaces(obs_shape=(3, 64, 64), obs_dtype="uint8", num_actions=6)
    debug, small, medium = (
        sum(p.numel() for p in world_model(spaces, size).parameters()) for size in SIZES
    )
    assert debug < 0.3e6 < 1.2e6 < small < 1.6e6 < 2.5e6 < medium < 3.1e6
