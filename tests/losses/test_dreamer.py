"""Dreamer's losses: a second, plain rendition, and what each part must and must not do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from losses.examples import IMAGES, TINY, dreamer, record_batch
from tensordict import TensorDict
from torch import nn

from composerl import Update
from composerl.envs.spaces import Spaces
from composerl.losses import DreamerLoss, WorldModelLoss, symexp_bins, two_hot
from composerl.losses.dreamer_math import log_prob_and_entropy, symexp, symlog
from composerl.modules import Latent, dreamer_actor, dreamer_critic, world_model
from composerl.modules.world import Observed

BINS = symexp_bins()
MODEL = ("loss_observation", "loss_reward", "loss_continue", "loss_dynamics", "loss_representation")


def evaluate(loss, batch, seed=0):
    torch.manual_seed(seed)
    return loss(batch.clone())


def cross_entropy(logits, target):
    return -(two_hot(target, BINS) * logits.log_softmax(-1)).sum(-1)


def mean_of(logits):
    """In float64, where the sum over bins of 1e8 does not round."""
    return (logits.double().softmax(-1) * BINS.double()).sum(-1).float()


def plain_model(loss, batch):
    """The world model's losses with loops and sums spelled out; the states are the model's own."""
    net, c = loss.world_network, loss.context
    seen = net.observe(net.inputs(batch["observation"]), batch["action"], batch["first"])
    rows, time = batch.shape
    out = {key: torch.zeros(rows, time - c) for key in MODEL}
    for b in range(rows):
        for t in range(c, time):
            feature = torch.cat([seen.latent.deter[b, t], seen.latent.stoch[b, t]])
            pixels = batch["observation"][b, t].float() / 255
            predicted = net.decoder(feature.unsqueeze(0))[0]
            q, p = seen.posterior[b, t], seen.prior[b, t]
            kl = sum(
                float(a * (a / b_).log()) for a, b_ in zip(q.flatten(), p.flatten(), strict=True)
            )
            logit = net.continue_head(feature)
            target = float(loss.gamma) * (1 - float(batch["terminal"][b, t]))
            going_on = logit.sigmoid()
            out["loss_observation"][b, t - c] = ((predicted - pixels) ** 2).sum()
            out["loss_reward"][b, t - c] = cross_entropy(
                net.reward_head(feature), batch["reward"][b, t]
            )
            out["loss_continue"][b, t - c] = -(
                target * going_on.log() + (1 - target) * (1 - going_on).log()
            )
            out["loss_dynamics"][b, t - c] = max(float(loss.free_nats), kl)
            out["loss_representation"][b, t - c] = 0.1 * max(float(loss.free_nats), kl)
    return out, seen


def plain_behaviour(loss, batch, seen):
    """Actor and critic, one imagined trajectory after the other."""
    net, c, horizon, gamma = loss.world_network, loss.context, loss.horizon, float(loss.gamma)
    rows, time = batch.shape
    length = time - c
    latent = Latent(*(x[:, c:].flatten(0, 1) for x in seen.latent))
    states, actions = [latent], []
    for _ in range(horizon):
        probs = loss.actor_network(states[-1].features).exp()
        drawn = torch.rand(rows * length, 1)
        action = (probs.cumsum(-1) < drawn).sum(-1).clamp_max(2)
        actions.append(action)
        states.append(net.imagine(states[-1], action))
    value = [mean_of(loss.value_network(s.features)) for s in states]
    slow = [mean_of(loss.target_value_network(s.features)) for s in states]
    reward = [mean_of(net.reward_head(s.features)) for s in states]
    goes_on = [net.continue_head(s.features).sigmoid().squeeze(-1) for s in states]
    returns = [None] * horizon + [value[-1]]
    for t in reversed(range(horizon)):
        mixed = 0.05 * value[t + 1] + 0.95 * returns[t + 1]
        returns[t] = reward[t + 1] + goes_on[t + 1] * mixed
    out = {key: torch.zeros(rows * length) for key in ("loss_actor", "loss_value", "loss_replay")}
    weight = 1 - batch["terminal"][:, c:].flatten().float()
    regularizer = []
    for t in range(horizon):
        log_probs = loss.actor_network(states[t].features)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        chosen = log_probs[torch.arange(rows * length), actions[t]]
        scale = max(1.0, float(loss.return_range))
        advantage = (returns[t] - value[t]) / scale
        out["loss_actor"] -= weight * (chosen * advantage + 3e-4 * entropy) / horizon
        logits = loss.value_network(states[t].features)
        regularizer.append(cross_entropy(logits, slow[t]))
        out["loss_value"] += weight * (cross_entropy(logits, returns[t]) + regularizer[t]) / horizon
        weight = weight * goes_on[t + 1]

    boot = returns[0].view(rows, length)
    first, terminal = batch["first"][:, c:], batch["terminal"][:, c:]
    logits = loss.value_network(states[0].features).view(rows, length, -1)
    replay = out["loss_replay"].view(rows, length)
    for b in range(rows):
        for t in range(length - 1):
            if first[b, t + 1]:
                continue  # the last record of an episode: nothing follows
            total, share, k = 0.0, 1.0, t
            while True:  # R_k = r_{k+1} + g_{k+1} (0.05 v_{k+1} + 0.95 R_{k+1})
                k += 1
                discount = gamma * (1 - float(terminal[b, k]))
                total += share * float(batch["reward"][b, c + k])
                if k == length - 1 or first[b, k + 1]:
                    total += share * discount * float(boot[b, k])
                    break
                total += share * discount * 0.05 * float(boot[b, k])
                share *= discount * 0.95
            loss_ = cross_entropy(logits[b, t], torch.tensor(total))
            replay[b, t] = 0.3 * (loss_ + regularizer[0].view(rows, length)[b, t])
    return {key: rows_.view(rows, length) for key, rows_ in out.items()}


@pytest.mark.parametrize("context", [0, 1, 2])
@pytest.mark.parametrize("free_nats", [0.0, 0.3, 1.0])
def test_plain_rendition(context, free_nats):
    loss, batch = dreamer(context=context, free_nats=free_nats, reduction="none")
    out = evaluate(loss, batch)
    assert out.shape == (4, 5 - context)
    torch.manual_seed(0)
    with torch.no_grad():
        model, seen = plain_model(loss, batch)
        behaviour = plain_behaviour(loss, batch, seen)
    for key, expected in (model | behaviour).items():
        torch.testing.assert_close(out[key].detach(), expected, rtol=2e-4, atol=2e-4, msg=key)


def test_the_model_alone_has_the_same_losses():
    both, batch = dreamer()
    alone = WorldModelLoss(both.world_network, context=0, free_nats=0.0)
    one, other = evaluate(alone, batch), evaluate(both, batch)
    for key in MODEL:
        torch.testing.assert_close(one[key], other[key])


def test_context_records_warm_the_state_up_and_do_nothing_else():
    loss, batch = dreamer(context=1)
    expected = evaluate(loss, batch)
    for key in ("reward", "terminal"):
        changed = batch.clone()
        changed[key][:, 0] = 1 if key == "terminal" else 9.0
        out = evaluate(loss, changed)
        for name in loss.out_keys:
            torch.testing.assert_close(out[name], expected[name], msg=f"{name} sees {key}")
    seen = batch.clone()
    seen["observation"][:, 0] = 0
    assert not torch.allclose(
        evaluate(loss, seen)["loss_observation"], expected["loss_observation"]
    )


def test_sequences_go_on_from_the_states_that_the_replay_knows():
    """Rows 0 and 1 know the state before their first record, rows 2 and 3 do not."""
    loss, batch = dreamer(context=1, reduction="none")
    batch["first"][:, 1] = False  # else the state before would be forgotten
    plain = evaluate(loss, batch.clone())
    world = loss.world_network
    torch.manual_seed(5)
    states = Latent(torch.randn(4, 5, world.deter), torch.rand(4, 5, 12).round())
    known = torch.tensor([True, True, False, False]).unsqueeze(1).expand(4, 5)
    kept = batch.clone().update({**states._asdict(), "known": known})
    kept["stoch"] = kept["stoch"].to(torch.uint8)
    out = evaluate(loss, kept.clone())
    for key in MODEL:
        torch.testing.assert_close(out[key][2:], plain[key][2:], msg=key)
    assert not torch.allclose(out["loss_observation"][:2, 0], plain["loss_observation"][:2, 0])

    # What the context shows is not looked at where the state is known.
    blind = kept.clone()
    blind["observation"][:, 0] = 0
    seen = evaluate(loss, blind)["loss_observation"]
    torch.testing.assert_close(seen[:2], out["loss_observation"][:2])

    # Known states are where the recurrence starts, found ones are left in the batch: each with
    # the record that comes after it.
    torch.manual_seed(0)
    loss(kept)
    torch.manual_seed(0)
    told = world.observe(world.inputs(batch["observation"][:, :1]), batch["action"][:, :1],
                         batch["first"][:, :1]).latent  # fmt: skip
    rest = batch[:, 1:]
    start = Latent(*(torch.where(known[:, :1], a[:, 1], b[:, 0])
                     for a, b in zip(states, told, strict=True)))  # fmt: skip
    seen = world.observe(world.inputs(rest["observation"]), rest["action"], rest["first"], start)
    for field, first in start._asdict().items():
        torch.testing.assert_close(kept[field][:, 1], first.detach())
        found = getattr(seen.latent, field)[:, :-1]
        torch.testing.assert_close(kept[field][:, 2:], found.detach())
        assert not kept[field].requires_grad


@pytest.mark.parametrize("context", [0, 2])
def test_any_context_goes_on_from_known_states(context):
    """All known: as if the sequence began there with that state."""
    loss, batch = dreamer(context=context, reduction="none")
    torch.manual_seed(5)
    states = Latent(torch.randn(4, 5, loss.world_network.deter), torch.rand(4, 5, 12).round())
    kept = batch.clone().update({**states._asdict(), "known": torch.ones(4, 5).bool()})
    out = evaluate(loss, kept)
    short, batch = dreamer(context=0, reduction="none")
    torch.manual_seed(0)
    if context:  # what the context draws
        torch.rand(context, 4, 3, 1)
    alone = batch[:, context:].update(
        {key: x[:, context:] for key, x in states._asdict().items()}
        | {"known": torch.ones(4, 5 - context).bool()}
    )
    expected = short(alone)
    for key in MODEL:
        torch.testing.assert_close(out[key], expected[key], msg=key)


def test_each_loss_reaches_its_own_network_only():
    loss, batch = dreamer()
    out = evaluate(loss, batch)
    owners = {"loss_actor": "actor_network", "loss_value": "value_network",
              "loss_replay": "value_network"}  # fmt: skip
    for key in (*MODEL, *owners):
        loss.zero_grad()
        out[key].backward(retain_graph=True)
        touched = {n.split(".")[0] for n, p in loss.named_parameters() if p.grad is not None}
        assert touched == {owners.get(key, "world_network")}, key


def test_replayed_values_may_shape_the_model():
    """With replay_grad the same numbers, and gradients of that loss in the world model, too."""
    loss, batch = dreamer()
    other, _ = dreamer(replay_grad=True)
    out, expected = evaluate(other, batch), evaluate(loss, batch)
    for key in loss.out_keys:
        torch.testing.assert_close(out[key], expected[key], msg=key)
    for key, owners in (("loss_replay", {"value_network", "world_network"}),
                        ("loss_value", {"value_network"})):  # fmt: skip
        other.zero_grad()
        out[key].backward(retain_graph=True)
        touched = {n.split(".")[0] for n, p in other.named_parameters() if p.grad is not None}
        assert touched == owners, key


def continuous(**options):
    """The losses of a world of vectors and float actions, with such records."""
    torch.manual_seed(0)
    spaces = Spaces(obs_shape=(3,), low=(-2.0, 0.0), high=(2.0, 1.0))
    actor = dreamer_actor(spaces, TINY)
    loss = DreamerLoss(actor.world_network, actor.actor_network, dreamer_critic(spaces, TINY),
                       horizon=4, context=0, **options)  # fmt: skip
    with torch.no_grad():
        actor.actor_network.head.last.weight.normal_()
    batch = record_batch().exclude("observation", "action")
    batch["observation"] = 5 * torch.randn(4, 5, 3)
    batch["action"] = torch.rand(4, 5, 2) * torch.tensor([4.0, 1.0]) - torch.tensor([2.0, 0.0])
    return loss.eval(), batch


def test_vectors_and_float_actions():
    """By torch's own Normal: what is drawn, its likelihood and the entropy; symlog errors."""
    loss, batch = continuous(reduction="none")
    out = evaluate(loss, batch)
    torch.manual_seed(0)
    world = loss.world_network
    with torch.no_grad():
        seen = world.observe(world.inputs(batch["observation"]), batch["action"], batch["first"])
        error = world.decoder(seen.latent.features) - symlog(batch["observation"])
        torch.testing.assert_close(out["loss_observation"], error.square().sum(-1))
        latent = Latent(*(x.flatten(0, 1) for x in seen.latent))
        entropy = torch.zeros(20)
        for _ in range(4):
            mean, deviation = loss.actor_network(latent.features).unbind(-2)
            policy = torch.distributions.Normal(mean, deviation)
            entropy += policy.entropy().sum(-1) / 4
            action = mean + deviation * torch.randn(20, 2)
            found = log_prob_and_entropy(torch.stack([mean, deviation], -2), action)
            torch.testing.assert_close(found[0], policy.log_prob(action).sum(-1))
            latent = world.imagine(latent, action)
    torch.testing.assert_close(out["entropy"], entropy.view(4, 5))
    for key in (*MODEL, "loss_actor", "loss_value", "loss_replay"):
        assert out[key].isfinite().all(), key
    with pytest.raises(ValueError, match=r"'action' must be floats of shape \(4, 5, 'action'\)"):
        loss(batch.clone().set("action", torch.zeros(4, 5).long()))


def test_unexplained_is_the_error_in_units_of_the_mean_s():
    """Vectors whose symlog is 0, 0, 3 and a model that always says 1: mean 1, spread
    (1 + 1 + 4) / 3 = 2; errors 1, 1, 4, in its units 0.5, 0.5, 2, on average 1."""
    loss, batch = continuous(reduction="none")
    batch = batch[:1, :3].clone()
    batch["observation"] = symexp(torch.tensor([[[0.0], [0.0], [3.0]]])).expand(1, 3, 3)
    with torch.no_grad():
        loss.world_network.decoder.last.weight.zero_()
        loss.world_network.decoder.last.bias.fill_(1.0)
    found = evaluate(loss, batch)["unexplained"]
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.5, 2.0]]))
    batch["collector", "mask"] = torch.tensor([[[True], [True], [True]]])
    torch.testing.assert_close(evaluate(loss, batch)["unexplained"], found)


@pytest.mark.parametrize("reward", [1.0, -1.0])
def test_sign_of_the_advantage_of_float_actions(reward):
    """An action above 0 is rewarded with ±1 at once: the mean goes there, or away."""

    class Push(TwoSteps):
        num_actions = None

        def imagine(self, latent, action):
            start = latent.deter.argmax(-1) == 0
            following = torch.where(start, 1 + (action[:, 0] > 0).long(), 3)
            return Latent(torch.eye(4)[following], latent.stoch)

    torch.manual_seed(0)
    mean = nn.Linear(4, 1)

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = mean

        def forward(self, features):
            place = self.mean(features).tanh()
            return torch.stack([place, torch.full_like(place, 0.5)], -2)

    critic = nn.Linear(4, 255)
    nn.init.zeros_(critic.weight)
    nn.init.zeros_(critic.bias)
    loss = DreamerLoss(Push(reward), Policy(), critic, horizon=3, context=0)
    batch = TensorDict(
        {"observation": torch.zeros(4, 8, 1, 1, 1), "action": torch.zeros(4, 8, 1),
         "reward": torch.zeros(4, 8), "first": torch.ones(4, 8).bool(),
         "terminal": torch.zeros(4, 8).bool()}, [4, 8],
    )  # fmt: skip
    update = Update(loss, lr={"world_network": 0.0, "default": 0.05}, tau=0.2)
    for _ in range(150):
        update(batch)
    assert mean(torch.eye(4)[0]).tanh() * reward > 0.5


def test_model_losses_reach_what_they_should():
    """The prior learns from the dynamics loss only; all reach images, of this or past steps."""
    loss, batch = dreamer()
    out = evaluate(loss, batch)
    reached = {}
    for key in MODEL:
        loss.zero_grad()
        out[key].backward(retain_graph=True)
        reached[key] = {name.split(".")[1] for name, p in loss.named_parameters()
                        if p.grad is not None and p.grad.any()}  # fmt: skip
    for key in MODEL:
        assert ("prior_head" in reached[key]) is (key == "loss_dynamics")
        assert "encoder" in reached[key]
    assert "decoder" in reached["loss_observation"]
    assert "reward_head" not in reached["loss_observation"]


def test_masked_steps_do_not_count():
    """Padding at a sequence's end: as if the sequence were shorter, one by one."""
    loss, batch = dreamer(reduction="none")
    short = evaluate(loss, batch[:, :5])
    mask = torch.ones(4, 5, 1, dtype=torch.bool)
    mask[:, 3:] = False
    padded = batch.clone()
    padded["reward"][:, 3:] = torch.nan
    padded["collector", "mask"] = mask
    out = evaluate(loss, padded)
    for key in (*MODEL, "loss_actor", "loss_value", "loss_replay"):
        assert not out[key][:, 3:].any(), key
        if key in (*MODEL, "loss_actor", "loss_value"):
            torch.testing.assert_close(out[key][:, :3], short[key][:, :3], msg=key)
    assert not out["loss_replay"][:, 2].any()  # what follows is padding


def test_masked_returns_do_not_move_the_scale():
    loss, batch = dreamer(return_rate=1.0)
    mask = torch.ones(4, 5, 1, dtype=torch.bool)
    mask[2:] = False
    batch["collector", "mask"] = mask
    seen = []
    loss._scale = lambda returns, m: seen.append((returns, m)) or torch.ones(())
    evaluate(loss, batch)
    del loss._scale
    evaluate(loss.train(), batch)
    (returns, _), counted = seen[0], mask.flatten()
    low, high = returns[:, counted].quantile(torch.tensor([0.05, 0.95]))
    assert loss.return_range == high - low
    assert loss.return_range != torch.subtract(*returns.quantile(torch.tensor([0.95, 0.05])))


def test_sequences_of_one_record_have_nothing_to_replay():
    loss, batch = dreamer(context=4)
    out = evaluate(loss, batch)
    assert out["loss_replay"] == 0
    assert all(value.isfinite() for value in out.values())


def test_initialised_anew_it_starts_as_it_did():
    """Heads at zero, a black picture; the target is a copy again."""
    loss, _ = dreamer()
    loss.reset_parameters_recursive()
    world = loss.world_network
    assert not world.reward_head.last.weight.any()
    assert not world.decoder.layers[-1].weight.any()
    assert not world.recurrence.gates.bias.any()
    assert not loss.value_network.last.weight.any()
    assert not loss.target_value_network.last.weight.any()
    assert 0 < loss.actor_network.head.last.weight.abs().max() < 0.01


def test_replayed_returns_by_hand():
    """gamma 0.5, lambda 0.5, values 10 20 30 40 50, rewards _ 1 2 _ 4; record 3 starts an episode.

    R_4 does not exist. R_3 = 4 + 0.5 * 50 = 29 (50 is all that is known of record 4). Record 2 is
    an episode's last: no return. R_1 = 2 + 0.5 * 30 = 17, or 2 if record 2 is terminal.
    R_0 = 1 + 0.5 * (0.5 * 20 + 0.5 * R_1) = 10.25, or 6.5.
    """
    loss, _ = dreamer(gamma=0.5, lmbda=0.5)
    value = torch.tensor([[10.0, 20.0, 30.0, 40.0, 50.0]])
    for terminal, expected in ((False, [10.25, 17.0, 29.0]), (True, [6.5, 2.0, 29.0])):
        fit = SimpleNamespace(
            first=torch.tensor([[True, False, False, True, False]]),
            terminal=torch.tensor([[False, False, terminal, False, False]]),
            reward=torch.tensor([[0.0, 1.0, 2.0, 0.0, 4.0]]), mask=None,
        )  # fmt: skip
        returns, counts = loss._replay_returns(fit, value)
        assert counts.tolist() == [[1, 1, 0, 1, 0]]
        torch.testing.assert_close(returns[0, [0, 1, 3]], torch.tensor(expected))


def test_returns_are_scaled_by_a_moving_range_of_at_least_one():
    """rate 0.25: after returns 0 ... 100 twice, S = 0.25 * 90 = 22.5, then 39.375."""
    loss, _ = dreamer(return_rate=0.25)
    loss.train().return_range.zero_()
    returns = torch.arange(101.0).unsqueeze(0)
    assert loss._scale(torch.zeros(1, 4), None) == 1
    assert loss._scale(returns, None) == 22.5
    assert loss._scale(returns, None) == 39.375
    loss.eval()
    assert loss._scale(returns * 7, None) == 39.375
    assert loss.state_dict()["return_range"] == 39.375


class TwoSteps(nn.Module):
    """A known world: 0 -> action -> 1 or 2 -> anything -> over. Reward on reaching state 2."""

    num_actions = 2

    def __init__(self, reward):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.decoder = lambda features: features.sum(-1).view(-1, 1, 1, 1) * self.weight
        reward = torch.tensor([0.0, 0.0, reward, 0.0])
        self.register_buffer("reward_logits", two_hot(reward, BINS).clamp_min(1e-30).log())
        self.register_buffer("continue_logits", torch.tensor([20.0, 20.0, 20.0, -20.0]))

    def reward_head(self, features):
        return features[..., :4] @ self.reward_logits + self.weight

    def continue_head(self, features):
        return features[..., :4] @ self.continue_logits.unsqueeze(-1) + self.weight

    def inputs(self, observation):
        return observation.float().reshape(-1, 1, 1, 1)

    def observe(self, image, action, first, latent=None):
        start = torch.eye(4)[0].expand(*first.shape, 4)
        probs = torch.full((*first.shape, 1, 2), 0.5) + 0 * self.weight
        return Observed(Latent(start, start[..., :0]), probs, probs)

    def imagine(self, latent, action):
        state = latent.deter.argmax(-1)
        following = torch.where(state == 0, 1 + action, 3)
        return Latent(torch.eye(4)[following], latent.stoch)


@pytest.mark.parametrize("reward", [1.0, -1.0])
def test_sign_of_the_advantage(reward):
    """Action 1 is rewarded with ±1: the actor comes to take it always, or never."""
    torch.manual_seed(0)
    actor = nn.Sequential(nn.Linear(4, 2), nn.LogSoftmax(-1))
    critic = nn.Linear(4, 255)
    nn.init.zeros_(critic.weight)
    nn.init.zeros_(critic.bias)
    loss = DreamerLoss(TwoSteps(reward), actor, critic, horizon=3, context=0)
    batch = TensorDict(
        {"observation": torch.zeros(4, 8, 1, 1, 1), "action": torch.zeros(4, 8).long(),
         "reward": torch.zeros(4, 8), "first": torch.ones(4, 8).bool(),
         "terminal": torch.zeros(4, 8).bool()}, [4, 8],
    )  # fmt: skip
    update = Update(loss, lr={"world_network": 0.0, "default": 0.05}, tau=0.2)
    for _ in range(200):
        metrics = update(batch)
    share = actor(torch.eye(4)[0]).exp()[1]
    assert (share > 0.95) if reward > 0 else (share < 0.05)
    # the value of the start is what the actor gets: 1 when it can be had, 0 when avoided
    value = mean_of(critic(torch.eye(4)[0]).detach())
    assert abs(float(value) - max(reward, 0.0)) < 0.2
    assert metrics["return_range"] > 0


def test_terminal_starts_weigh_nothing():
    """Nothing is imagined from an episode's end, as far as actor and critic are concerned."""
    loss, batch = dreamer(reduction="none")
    batch["terminal"][0] = True
    out = evaluate(loss, batch)
    assert not out["loss_actor"][0].any()
    assert not out["loss_value"][0].any()
    assert out["loss_actor"][2].all()


def test_it_fits_a_batch():
    """Every part of the model's loss falls when one batch is learned by heart."""
    torch.manual_seed(0)
    loss = WorldModelLoss(world_model(IMAGES, {**TINY, "deter": 32, "units": 32}), context=0)
    update, batch = Update(loss, lr=3e-3), record_batch()
    before = update(batch)
    for _ in range(200):
        after = update(batch)
    assert after["loss_observation"] < 0.9 * before["loss_observation"]
    assert after["loss_reward"] < 0.5 * before["loss_reward"]
    assert after["loss_continue"] < 0.5 * before["loss_continue"]


def test_wrong_arguments_and_batches_are_refused():
    loss, batch = dreamer()
    networks = loss.world_network, loss.actor_network, loss.value_network
    for name, value in (("horizon", 0), ("lmbda", 1.5), ("entropy_coeff", -1.0), ("context", -1),
                        ("return_rate", 0.0), ("gamma", 0.0), ("free_nats", float("nan")),
                        ("replay_scale", -0.1), ("dynamics_scale", -1.0)):  # fmt: skip
        with pytest.raises(ValueError, match=name):
            DreamerLoss(*networks, **{name: value})
    with pytest.raises(ValueError, match=r"more than context=1 records .* got \(4, 1\)"):
        DreamerLoss(*networks)(batch[:, :1])
    with pytest.raises(ValueError, match="'reward' must have shape"):
        loss(batch.clone().set("reward", torch.zeros(4, 5, 2)))
    with pytest.raises(KeyError, match="no entry 'first'"):
        loss(batch.exclude("first"))
