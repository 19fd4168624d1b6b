"""A full Dreamer update: world model, actor and critic; by hand, TorchRL's and ours.

Images of 3 x 64 x 64, 8 sequences of 32 records, horizon 15. By hand: the same networks and losses,
step by step as the paper tells it, with torch.distributions. TorchRL's ``DreamerV3Loss`` has our
encoder, decoder and widths in its own recurrent blocks, and does less: scalars for rewards and
values in place of 255 bins, and no continue head.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from tensordict import TensorDict
from torch import Tensor, nn
from torch.distributions import Categorical, OneHotCategoricalStraightThrough

from composerl import Update
from composerl.envs.spaces import Spaces
from composerl.losses import DreamerLoss, symexp_bins
from composerl.losses.dreamer_math import lambda_return, return_range, two_hot, two_hot_mean
from composerl.modules import dreamer_actor, dreamer_critic
from composerl.modules.world_parts import join

from .hand import Hand, following
from .stock_dreamer import dreamer
from .timing import Case

SPACES = Spaces(obs_shape=(3, 64, 64), obs_dtype="uint8", num_actions=6)
BATCH, TIME, HORIZON = 8, 32, 15


def records(time: int) -> TensorDict:
    """Sequences of random records."""
    data = {
        "observation": torch.randint(0, 256, (BATCH, time, 3, 64, 64), dtype=torch.uint8),
        "action": torch.randint(0, 6, (BATCH, time)),
        "reward": torch.randn(BATCH, time),
        "first": torch.rand(BATCH, time) < 0.05,
        "terminal": torch.rand(BATCH, time) < 0.05,
    }
    return TensorDict(data, [BATCH, time])


def networks(size: str) -> tuple[Any, nn.Module, nn.Module]:
    """World model, actor and critic, with the same weights whenever they are made."""
    torch.manual_seed(0)
    actor = dreamer_actor(SPACES, size)
    return actor.world_network, actor.actor_network, dreamer_critic(SPACES, size)


def by_hand(size: str, batch: TensorDict) -> Hand:
    """The update as one would write it."""
    world, actor, critic = networks(size)
    slow, bins, gamma, scale = following(critic), symexp_bins(), 1 - 1 / 333, torch.zeros(())
    observation, action, reward, first, terminal = (
        batch[key] for key in ("observation", "action", "reward", "first", "terminal")
    )

    net = world.recurrence

    def advance(deter: Tensor, stoch: Tensor, action: Tensor) -> Tensor:
        acted = net.action_in(F.one_hot(action, 6).float())
        front = torch.cat([net.deter_in(deter), net.stoch_in(stoch)], -1)
        x = net.mix_in(front) + net.mix_action(acted) + join(net.mix(net.mix.split(deter)))
        gates = net.gates(net.gates.split(F.silu(net.norm(x))))
        reset, candidate, update = map(join, gates.chunk(3, -1))
        update = (update - 1).sigmoid()
        return update * (reset.sigmoid() * candidate).tanh() + (1 - update) * deter

    def latent(logits: Tensor) -> OneHotCategoricalStraightThrough:
        probs = logits.unflatten(-1, (world.latents, world.classes)).softmax(-1)
        return OneHotCategoricalStraightThrough(
            probs=0.99 * probs + 0.01 / world.classes, validate_args=False
        )

    def observe(image: Tensor, deter: Tensor, stoch: Tensor, time: slice) -> list[Tensor]:
        """Deter, stoch, posterior and prior probabilities ``(batch, time, ...)``."""
        seen, steps = world.seen_in(world.encoder(image)).unflatten(0, (BATCH, -1)), []
        for t in range(seen.shape[1]):
            keep = (~first[:, time][:, t]).float().unsqueeze(-1)
            deter = advance(deter * keep, stoch * keep, action[:, time][:, t])
            hidden = world.posterior_in(deter) + seen[:, t]
            posterior = latent(world.posterior_out(F.silu(world.posterior_norm(hidden))))
            prior = latent(world.prior_head(deter))
            stoch = posterior.rsample().flatten(1)
            steps.append((deter, stoch, posterior.probs, prior.probs))
        return [torch.stack(x, 1) for x in zip(*steps, strict=True)]

    def mean(logits: Tensor) -> Tensor:
        return two_hot_mean(logits, bins)

    def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
        return -(two_hot(target, bins) * logits.log_softmax(-1)).sum(-1)

    def kl(p: Tensor, q: Tensor) -> Tensor:
        return (p * (p.log() - q.log())).sum((-2, -1))

    def imagine(deter: Tensor, stoch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, log_probs, entropies = [torch.cat([deter, stoch], -1)], [], []
        for _ in range(HORIZON):
            policy = Categorical(logits=actor(features[-1]), validate_args=False)
            chosen = policy.sample()
            log_probs.append(policy.log_prob(chosen))
            entropies.append(policy.entropy())
            with torch.no_grad():
                deter = advance(deter, stoch, chosen)
                stoch = latent(world.prior_head(deter)).sample().flatten(1)
            features.append(torch.cat([deter, stoch], -1))
        return torch.stack(features), torch.stack(log_probs), torch.stack(entropies)

    def losses() -> dict[str, Tensor]:
        image = world.inputs(observation).unflatten(0, (BATCH, -1))
        with torch.no_grad():  # the context record
            warm = observe(image[:, 0], *world.initial(BATCH), slice(0, 1))
        image = image[:, 1:].flatten(0, 1)
        deter, stoch, posterior, prior = observe(
            image, warm[0][:, 0], warm[1][:, 0], slice(1, None)
        )
        features = torch.cat([deter, stoch], -1).flatten(0, 1)
        ended = terminal[:, 1:].flatten()
        going_on = gamma * (~ended).float()
        out = {
            "loss_observation": (world.decoder(features) - image).square().sum((1, 2, 3)).mean(),
            "loss_reward": cross_entropy(
                world.reward_head(features), reward[:, 1:].flatten()
            ).mean(),
            "loss_continue": F.binary_cross_entropy_with_logits(
                world.continue_head(features).squeeze(-1), going_on
            ),
            "loss_dynamics": kl(posterior.detach(), prior).clamp_min(1.0).mean(),
            "loss_representation": 0.1 * kl(posterior, prior.detach()).clamp_min(1.0).mean(),
        }
        start = deter.flatten(0, 1).detach(), stoch.flatten(0, 1).detach()
        seen, log_probs, entropy = imagine(*start)
        logits = critic(seen)
        with torch.no_grad():
            rewards = mean(world.reward_head(seen[1:]))
            continues = world.continue_head(seen[1:]).squeeze(-1).sigmoid()
            value = mean(logits)
            returns = lambda_return(rewards, continues, value, 0.95)
            weight = torch.cat([(~ended).float().unsqueeze(0), continues[:-1]]).cumprod(0)
            scale.lerp_(return_range(returns), 0.01)
            advantage = (returns - value[:-1]) / scale.clamp_min(1.0)
            average = mean(slow(seen[:-1]))
            follows = F.pad((~first[:, 2:]).float(), (0, 1)).t()
            later = reward[:, 2:].t(), going_on.view(BATCH, -1)[:, 1:].t()
            known = returns[0].view(BATCH, -1).t()
            replay = lambda_return(*later, known, 0.95 * follows[1:])
            replay = torch.cat([replay, known[-1:]]).t().flatten()
        held = cross_entropy(logits[:-1], average)
        again = cross_entropy(logits[0], replay) + held[0]
        out |= {
            "loss_actor": -(weight * (log_probs * advantage + 3e-4 * entropy)).mean(),
            "loss_value": (weight * (cross_entropy(logits[:-1], returns) + held)).mean(),
            "loss_replay": 0.3 * (again * follows.t().flatten()).mean(),
            "entropy": entropy.detach().mean(), "return": returns.mean(), "value": value.mean(),
            "kl": kl(posterior, prior).detach().mean(), "return_range": scale.clone(),
            "unexplained": out["loss_observation"].detach() / image.var(0, correction=0).sum(),
        }  # fmt: skip
        return out

    parameters = [p for network in (world, actor, critic) for p in network.parameters()]
    return Hand(batch, parameters, losses, sources=list(critic.parameters()),
                targets=list(slow.parameters()), clip=100.0)  # fmt: skip


def benchmark() -> Iterator[Case]:
    """A full Dreamer update: world model, actor and critic, on 8 x 32 images of 3 x 64 x 64."""
    for size in ("small", "medium"):
        torch.manual_seed(1)
        batch = records(TIME + 1)
        loss = DreamerLoss(*networks(size))
        update = Update(loss, lr=1e-4, tau=0.02, max_grad_norm=100.0)
        ways = {"by hand": by_hand(size, batch.clone())}
        if size == "small":
            ways["TorchRL"] = dreamer(size, batch[:, 1:])
        yield Case(f"{size}, horizon {HORIZON}", {**ways, "composerl": partial(update, batch)})
