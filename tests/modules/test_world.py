"""The world model and the policy on it: recurrence, resets, latents, sizes."""

from __future__ import annotations

import math
import typing

import pytest
import torch
import torch.nn.functional as F

from composerl.config import SizeName
from composerl.envs.spaces import Spaces
from composerl.modules import (
    SIZES,
    Latent,
    PooledDecoder,
    PooledEncoder,
    WorldSize,
    build,
    dreamer_actor,
    dreamer_critic,
    world_model,
)
from composerl.modules.world import _one_hot
from composerl.modules.world_parts import UNIFORM, Dense, draw, mix_uniform, truncated_normal_

SPACES = Spaces(obs_shape=(1, 16, 16), obs_dtype="uint8", num_actions=3)
TINY = {"deter": 6, "hidden": 5, "latents": 3, "classes": 4, "units": 8, "layers": 1, "depth": 2,
        "blocks": 2, "pooled": False}  # fmt: skip


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
    return world.observe(world.inputs(pixels), action, first, latent, sample=False)


def rms(x, layer):
    return x / (x.square().mean(-1, keepdim=True) + 1e-4).sqrt() * layer.weight


def dense(x, layer):
    x = rms(x @ layer.linear.weight.T + layer.linear.bias, layer.norm)
    return x * x.sigmoid()


def block_diagonal(layer):
    """The whole matrix (inputs, outputs) of a layer of blocks, zeros included."""
    return torch.block_diag(*layer.weight)


def test_one_step_by_the_equations(actor):
    """x = silu(norm(M h + W [d(h), s(z), a(u)])); r, c, u = G x for each block;
    h' = h + s(u - 1) (tanh(s(r) c) - h)."""
    world = actor.world_network
    with torch.no_grad():  # norms, biases: not at the values that they start from
        for p in world.recurrence.parameters():
            p.add_(0.3 * torch.randn_like(p))
    net = world.recurrence
    latent, action = Latent(torch.randn(5, 6), torch.rand(5, 12)), torch.tensor([0, 1, 2, 2, 1])
    one_hot = torch.eye(3)[action]
    front = [dense(latent.deter, net.deter_in), dense(latent.stoch, net.stoch_in),
             dense(one_hot, net.action_in)]  # fmt: skip
    weights = torch.cat([net.mix_in.weight, net.mix_action.weight], 1)
    x = latent.deter @ block_diagonal(net.mix) + net.mix.bias.flatten()
    x = rms(x + torch.cat(front, 1) @ weights.T, net.norm)
    x = x * x.sigmoid()
    gates = x @ block_diagonal(net.gates) + net.gates.bias.flatten()
    r, c, u = (gates.view(5, 2, 3, 3)[:, :, k].flatten(1) for k in range(3))  # of 2 blocks each
    h = latent.deter + (u - 1).sigmoid() * ((r.sigmoid() * c).tanh() - latent.deter)
    torch.testing.assert_close(world.imagine(latent, action).deter, h)
    # the prior: two dense layers and a linear one
    hidden = h
    for layer in world.prior_head.hidden:
        hidden = dense(hidden, layer)
    logits = hidden @ world.prior_head.last.weight.T + world.prior_head.last.bias
    expected = 0.99 * logits.view(5, 3, 4).softmax(-1) + 0.01 / 4
    torch.testing.assert_close(world.prior(h), expected)
    assert len(world.prior_head.hidden) == 2


def test_blocks_meet_in_the_layers_in_front_alone(actor):
    """With those cut, a block of the next state depends on the same block of the last."""
    net = actor.world_network.recurrence
    with torch.no_grad():
        net.mix_in.weight.zero_()
        net.norm = torch.nn.Identity()  # which scales by all of them
    deter = torch.randn(1, 6, requires_grad=True)
    after = net(deter, torch.zeros(1, 12), torch.zeros(1, 6))
    (gradient,) = torch.autograd.grad(after[0, :3].sum(), deter)
    assert gradient[0, :3].all()
    assert not gradient[0, 3:].any()


def test_the_authors_initialisation():
    """Variance 1 / fan-in, nothing beyond two deviations of the normal that was cut."""
    torch.manual_seed(0)
    weight = torch.empty(400, 500)
    truncated_normal_(weight, 500)
    assert weight.std().item() == pytest.approx(500**-0.5, rel=0.01)
    assert weight.abs().max() <= 2 * 1.1368 * 500**-0.5
    assert weight.abs().max() > 1.99 * 1.1368 * 500**-0.5
    layer = Dense(500, 400)
    assert layer.linear.weight.std().item() == pytest.approx(500**-0.5, rel=0.01)
    assert not layer.linear.bias.any()
    # of a layer in two parts, and of blocks, all inputs count
    world = world_model(SPACES, {**TINY, "deter": 64, "hidden": 64, "blocks": 4})
    net, whole = world.recurrence, 64 + 3 * 64 * 4
    for part in (net.mix.weight, net.mix_in.weight):
        assert part.std().item() == pytest.approx(whole**-0.5, rel=0.1)
    assert net.gates.weight.std().item() == pytest.approx(64**-0.5, rel=0.1)
    assert net.gates.weight.shape == (4, 16, 48)


def test_what_is_not_shown_is_imagined(actor):
    """Where a record is not shown the state is what imagine() makes of the one before it."""
    world = actor.world_network
    pixels, action, first = sequences()
    shown = torch.tensor([[1, 1, 0, 0, 1, 0], [1, 0, 0, 0, 0, 0]]).bool()
    image = world.inputs(pixels)
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
    again = world.observe(world.inputs(pixels), action, first, sample=False, shown=shown).latent
    assert torch.equal(again.features, states.features)


def test_shapes_and_one_hot_latents(actor):
    world = actor.world_network
    seen = world.observe(world.inputs(sequences()[0]), *sequences()[1:])
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
    image = world.inputs(pixels).requires_grad_()
    torch.manual_seed(0)
    seen = world.observe(image, action, first)
    (gradient,) = torch.autograd.grad(seen.latent.deter[:, 1].square().sum(), image)
    gradient = gradient.view(2, 6, -1).abs().sum(-1)
    assert bool((gradient[:, 0] > 0).all())  # from h_1 to x_0: through z_0 alone
    assert not gradient[:, 1:].any()  # h_1 has not seen x_1
    # the value of a latent is the draw, its gradient that of the probabilities
    probs = torch.tensor([[[0.3, 0.7]]], requires_grad=True)
    stoch = _one_hot(probs, torch.tensor([[[0.1]]]))
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
    image = world.inputs(pixels)
    assert image.shape == (2, *shape)
    assert image.max() <= 1
    seen = world.observe(image, torch.zeros(1, 2, dtype=torch.int64), torch.ones(1, 2).bool())
    assert world.decoder(seen.latent.features.flatten(0, 1)).shape == (2, *shape)


def test_wrong_arguments_are_refused_in_one_sentence():
    with pytest.raises(ValueError, match=r"sides can be halved .* got \(3, 84, 84\)"):
        world_model(Spaces(obs_shape=(3, 84, 84), num_actions=2), TINY)
    with pytest.raises(ValueError, match=r"size must be one of debug, small, .*, got 'huge'"):
        dreamer_actor(SPACES, "huge")
    with pytest.raises(ValueError, match="units must be a positive integer, got 0"):
        dreamer_actor(SPACES, {**TINY, "units": 0})
    with pytest.raises(ValueError, match="pooled must be true or false, got 1"):
        dreamer_actor(SPACES, {**TINY, "pooled": 1})
    with pytest.raises(ValueError, match="deter=6 cannot be divided into blocks=4"):
        dreamer_actor(SPACES, {**TINY, "blocks": 4})
    with pytest.raises(ValueError, match=r"numbers for blocks, classes, .* got {'deter': 6}"):
        dreamer_actor(SPACES, {"deter": 6})
    for high in (float("inf"), 0.0):
        with pytest.raises(ValueError, match="finite bounds, got"):
            dreamer_actor(Spaces(obs_shape=(1, 16, 16), low=(0.0,), high=(high,)), TINY)
    with pytest.raises(ValueError, match=r"shape \(\.\.\., 1, 16, 16\), got \(2, 3, 16, 16\)"):
        world_model(SPACES, TINY).inputs(torch.zeros(2, 3, 16, 16))


def test_a_description_builds_an_equal_network(actor):
    copy = build(actor.description)
    copy.load_state_dict(actor.state_dict())
    pixels, _, first = sequences(batch=8, time=1)
    call = (pixels[:, 0], actor.initial(8), first[:, 0])
    assert torch.equal(copy.greedy(*call)[1]["deter"], actor.greedy(*call)[1]["deter"])
    assert build(dreamer_actor(SPACES, "debug").description).description["arguments"] == {
        "size": SIZES["debug"].to_json()
    }


def test_sizes_grow():
    spaces = Spaces(obs_shape=(3, 64, 64), obs_dtype="uint8", num_actions=6)
    debug, small, medium = (
        sum(p.numel() for p in world_model(spaces, size).parameters())
        for size in ("debug", "small", "medium")
    )
    assert debug < 0.3e6 < 1.2e6 < small < 1.6e6 < 2.5e6 < medium < 3.1e6


def test_the_authors_sizes():
    """Their table: widths in proportion to the channels, 32 latents, eight blocks."""
    table = {"1m": (512, 64, 4, 4, 64), "12m": (2048, 256, 16, 16, 256),
             "25m": (3072, 384, 24, 24, 384), "50m": (4096, 512, 32, 32, 512),
             "100m": (6144, 768, 48, 48, 768), "200m": (8192, 1024, 64, 64, 1024)}  # fmt: skip
    for name, numbers in table.items():
        size = SIZES[name]
        found = (size.deter, size.hidden, size.classes, size.depth, size.units)
        assert found == numbers
        assert (size.latents, size.blocks, size.layers, size.pooled) == (32, 8, 3, True)
    assert set(typing.get_args(SizeName)) == set(SIZES)


@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 32, 32), (3, 96, 96)])
def test_pooled_convolutions_by_the_equations(shape):
    """5 x 5, the largest of 2 x 2, RMS of the channels; back by doubling pixels, then a sigmoid.

    The grid is M h (blocks of channels) plus two layers of the latents.
    """
    torch.manual_seed(0)
    size = WorldSize(**{**TINY, "deter": 16, "depth": 4, "blocks": 4, "pooled": True})
    encoder, decoder = PooledEncoder(shape, 4), PooledDecoder(size, shape)
    stages = {32: 3, 64: 4, 96: 4}[shape[1]]
    channels = [8, 12, 16, 16][:stages]

    def pixel(x, layer):
        x = x / (x.square().mean(1, keepdim=True) + 1e-4).sqrt()
        x = x * layer.norm.weight[:, None, None]
        return x * x.sigmoid()

    image = torch.rand(2, *shape)
    x = image - 0.5
    for (convolution, _, norm), width in zip(encoder.layers, channels, strict=True):
        x = F.conv2d(x, convolution.weight, convolution.bias, padding=2)
        x = torch.stack([x[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)]).amax(0)
        x = pixel(x, norm)
        assert x.shape[1] == width
    torch.testing.assert_close(encoder(image), x.permute(0, 2, 3, 1).flatten(1))
    assert encoder.out_dim == x[0].numel()

    features = torch.randn(2, 16 + 12)
    side, width = shape[1] // 2**stages, channels[-1]
    block = features[:, :16] @ block_diagonal(decoder.of_deter)
    block = block.view(2, 4, side, side, width // 4).permute(0, 2, 3, 1, 4).flatten(3)
    first, last = decoder.of_stoch
    rest = dense(features[:, 16:], first) @ last.weight.T + last.bias
    x = pixel((block + rest.view(2, side, side, width)).permute(0, 3, 1, 2), decoder.norm)
    for k, convolution in enumerate(decoder.convolutions):
        x = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
        x = F.conv2d(x, convolution.weight, convolution.bias, padding=2)
        x = pixel(x, decoder.norms[k]) if k < stages - 1 else x.sigmoid()
    torch.testing.assert_close(decoder(features), x)
    assert x.shape[1:] == shape


BOX = Spaces(obs_shape=(3,), low=(-2.0, 0.0), high=(2.0, 1.0))


def test_vectors_are_read_and_predicted_as_their_symlog():
    torch.manual_seed(0)
    world = world_model(BOX, TINY)
    seen = torch.tensor([[0.0, 9.0, -99.0]])
    log10 = math.log(10)
    torch.testing.assert_close(world.inputs(seen), torch.tensor([[0.0, log10, -2 * log10]]))
    features = torch.randn(4, world.feature_dim)
    assert world.decoder(features).shape == (4, 3)
    torch.testing.assert_close(
        world.encoder(world.inputs(seen)), dense(world.inputs(seen), world.encoder.layers[0])
    )


def test_float_actions_in_the_model_and_in_the_policy():
    """Means within the bounds, deviations of 0.1 to 1 half widths; the model reads -1 to 1."""
    torch.manual_seed(0)
    actor = dreamer_actor(BOX, TINY)
    world, head = actor.world_network, actor.actor_network
    acted = world.acted(torch.tensor([[-2.0, 0.0], [1.0, 0.75], [9.0, -9.0]]))
    torch.testing.assert_close(acted, torch.tensor([[-1.0, -1.0], [0.5, 0.5], [1.0, -1.0]]))
    with torch.no_grad():
        head.head.last.weight.normal_(std=3.0)
    features = torch.randn(500, world.feature_dim)
    mean, deviation = head(features).unbind(-2)
    raw = head.head(features)
    torch.testing.assert_close(mean, torch.tensor([0.0, 0.5]) + torch.tensor([2.0, 0.5])
                               * raw[:, :2].tanh())  # fmt: skip
    torch.testing.assert_close(deviation / torch.tensor([2.0, 0.5]),
                               0.1 + 0.9 * (raw[:, 2:] + 2).sigmoid())  # fmt: skip
    torch.testing.assert_close(head.act(features, sample=False), mean)
    drawn = head.act(features, sample=True)
    assert drawn.amin(0).tolist() == [-2.0, 0.0]  # cut off at the bounds
    assert drawn.amax(0).tolist() == [2.0, 1.0]
    state, first = actor.initial(4), torch.ones(4).bool()
    action, state = actor.greedy(torch.randn(4, 3), state, first)
    assert action.shape == state["action"].shape == (4, 2)
    again, _ = actor.greedy(torch.randn(4, 3), state, ~first)
    assert not torch.equal(again, action)
    copy = build(actor.description)
    copy.load_state_dict(actor.state_dict())
    call = (torch.randn(4, 3), state, ~first)
    assert torch.equal(copy.greedy(*call)[0], actor.greedy(*call)[0])


def test_a_sampled_policy_draws_wherever_it_acts(actor):
    """That is said in its description, and a copy does so, too."""
    drawing = build(dreamer_actor(SPACES, TINY, sampled=True).description)
    drawing.load_state_dict(actor.state_dict())
    pixels, _, first = sequences(batch=64, time=1)
    call = (pixels[:, 0], actor.initial(64), first[:, 0])
    assert not torch.equal(drawing.greedy(*call)[0], drawing.greedy(*call)[0])
    torch.manual_seed(3)
    one = drawing.greedy(*call)[0]
    torch.manual_seed(3)
    assert torch.equal(one, actor.explore(*call)[0])
    assert "sampled" not in actor.description["arguments"]
