"""Updates by hand, of continuous actions: IQL, XQL, SAC, CQL, TD3+BC."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from tensordict import TensorDict
from torch import Tensor, nn

from .hand import Hand, adopt, bootstrap, columns, following, frozen, largest_error, mlp


def hand_iql(loss: nn.Module, batch: TensorDict, width: int, *, gumbel: bool = False) -> Hand:
    """IQL, or XQL with Gumbel regression and Huber critics."""
    actor, v, log_std = mlp(17, width, 6), mlp(17, width, 1), nn.Parameter(torch.zeros(6))
    critics = nn.ModuleList([mlp(23, width, 1), mlp(23, width, 1)])
    nets = (*actor.parameters(), *v.parameters(), *critics.parameters())
    parameters, targets = adopt([log_std, *nets], loss), following(critics)
    s, a, s2, r, ended = columns(batch)
    middle, half = torch.zeros(6), torch.ones(6)

    def value_loss(u: Tensor) -> Tensor:
        if not gumbel:
            return (torch.where(u < 0, 0.3, 0.7) * u**2).mean()
        z = (u / 2.0).clamp(max=7.0)
        m = z.detach().max().clamp(min=-1.0)
        return ((z - m).exp() - (z + 1) * (-m).exp()).mean()

    def critic_loss(q: Tensor, y: Tensor) -> Tensor:
        return F.huber_loss(q, y, delta=20.0) if gumbel else F.mse_loss(q, y)

    def losses() -> dict[str, Tensor]:
        sa = torch.cat([s, a], -1)
        with torch.no_grad():
            target_q = torch.minimum(targets[0](sa), targets[1](sa))
            y = bootstrap(r, ended, v(s2))
        u = target_q - v(s)
        values = [critic(sa) for critic in critics]
        mean = middle + half * actor(s).tanh()
        std = log_std.clamp(-5, 2).exp() * half
        log_prob = torch.distributions.Normal(mean, std, validate_args=False).log_prob(a).sum(-1)
        weight = (3.0 * u.detach()).exp().clamp(max=100).squeeze(-1)
        return {
            "loss_actor": -(weight * log_prob).mean(),
            "loss_qvalue": sum(critic_loss(q, y) for q in values),
            "loss_value": value_loss(u),
            "entropy": -log_prob.detach().mean(),
            "pred_value": torch.stack(values).detach().mean(),
            "priority": largest_error(values, y),
        }

    return Hand(batch, parameters, losses, sources=list(critics.parameters()),
                targets=list(targets.parameters()))  # fmt: skip


def hand_xql(loss: nn.Module, batch: TensorDict, width: int) -> Hand:
    """XQL."""
    return hand_iql(loss, batch, width, gumbel=True)


class Squashed:
    """SAC's policy: a Gaussian through tanh, in the box [-1, 1]."""

    def __init__(self, width: int) -> None:
        self.net = mlp(17, width, 12)
        self.middle, self.half = torch.zeros(6), torch.ones(6)

    def __call__(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.net(observation).chunk(2, -1)
        return mean, log_std.clamp(-5, 2)

    def draw(self, mean: Tensor, log_std: Tensor, *lead: int) -> tuple[Tensor, Tensor]:
        """Actions and their log-probabilities ``(..., 1)``."""
        noise = torch.randn(*lead, *mean.shape)
        u = mean + log_std.exp() * noise
        squash = 2 * (math.log(2) - u - F.softplus(-2 * u))
        log_prob = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi) - squash
        action = self.middle + self.half * u.tanh()
        return action, (log_prob - self.half.log()).sum(-1, keepdim=True)


def hand_sac(loss: nn.Module, batch: TensorDict, width: int, number: int = 0) -> Hand:
    """SAC; with a ``number`` of sampled actions of each of three kinds it is CQL(H)."""
    actor, log_alpha = Squashed(width), nn.Parameter(torch.zeros(()))
    critics = nn.ModuleList([mlp(23, width, 1), mlp(23, width, 1)])
    parameters = adopt([log_alpha, *actor.net.parameters(), *critics.parameters()], loss)
    targets, fixed = following(critics), frozen(critics)
    s, a, s2, r, ended = columns(batch)
    volume = (2 * actor.half).log().sum()

    def sac_target(alpha: Tensor) -> Tensor:
        a2, log_prob = actor.draw(*actor(s2))
        sa2 = torch.cat([s2, a2], -1)
        return torch.minimum(targets[0](sa2), targets[1](sa2)) - alpha * log_prob

    def cql_target(now: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """The value of s', and what the penalty samples: pairs and their densities."""
        mine, density = actor.draw(*now, number)
        later, later_density = actor.draw(*actor(s2), number + 1)
        sa2 = torch.cat([s2, later[-1]], -1)
        value = torch.minimum(targets[0](sa2), targets[1](sa2))
        uniform = actor.middle - actor.half + 2 * actor.half * torch.rand_like(mine)
        actions = torch.cat([uniform, mine, later[:-1]])
        flat = (-volume).expand_as(density)
        pairs = torch.cat([s.expand(len(actions), -1, -1), actions], -1)
        return value, pairs, torch.cat([flat, density, later_density[:-1]])

    def losses() -> dict[str, Tensor]:
        alpha = log_alpha.detach().exp()
        now = actor(s)
        new, log_prob = actor.draw(*now)
        with torch.no_grad():
            if number:
                value, pairs, densities = cql_target(now)
            else:
                value = sac_target(alpha)
            y = bootstrap(r, ended, value)
        sa = torch.cat([s, a], -1)
        values = [critic(sa) for critic in critics]
        sn = torch.cat([s, new], -1)
        best = torch.minimum(fixed[0](sn), fixed[1](sn))
        out = {
            "loss_actor": (alpha * log_prob - best).mean(),
            "loss_qvalue": sum(F.mse_loss(q, y) for q in values),
            "loss_alpha": -(log_alpha * (log_prob.detach() - 6)).mean(),
            "alpha": alpha,
            "entropy": -log_prob.detach().mean(),
            "pred_value": torch.stack(values).detach().mean(),
            "priority": largest_error(values, y),
        }
        if number:
            sampled = [(critic(pairs) - densities).logsumexp(0) for critic in critics]
            gaps = zip(sampled, values, strict=True)
            out["loss_cql"] = 5.0 * sum((high - q).mean() for high, q in gaps)
        return out

    return Hand(batch, parameters, losses, sources=list(critics.parameters()),
                targets=list(targets.parameters()))  # fmt: skip


def hand_cql(loss: nn.Module, batch: TensorDict, width: int) -> Hand:
    """CQL with ten actions of each kind: thirty values in its logsumexp."""
    return hand_sac(loss, batch, width, number=10)


def hand_td3bc(loss: nn.Module, batch: TensorDict, width: int) -> Hand:
    """TD3+BC, whose policy and targets move at every second update."""
    actor = mlp(17, width, 6)
    critics = nn.ModuleList([mlp(23, width, 1), mlp(23, width, 1)])
    parameters = adopt([*actor.parameters(), *critics.parameters()], loss)
    target_actor, targets, fixed = following(actor), following(critics), frozen(critics[0])
    s, a, s2, r, ended = columns(batch)

    def losses() -> dict[str, Tensor]:
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(a)).clamp(-0.5, 0.5)
            sa2 = torch.cat([s2, (target_actor(s2).tanh() + noise).clamp(-1, 1)], -1)
            value = torch.minimum(targets[0](sa2), targets[1](sa2))
            y = bootstrap(r, ended, value)
        sa = torch.cat([s, a], -1)
        values = [critic(sa) for critic in critics]
        return {
            "loss_qvalue": sum(F.mse_loss(q, y) for q in values),
            "pred_value": torch.stack(values).detach().mean(),
            "next_state_value": value.mean(),
            "target_value": y.mean(),
            "priority": largest_error(values, y),
        }

    def late() -> dict[str, Tensor]:
        mine = actor(s).tanh()
        gain = fixed(torch.cat([s, mine], -1))
        lmbd, clone = 2.5 / gain.detach().abs().mean(), F.mse_loss(mine, a)
        told = {"bc_loss": clone.detach(), "state_action_value_actor": gain.detach().mean()}
        return {"loss_actor": clone - lmbd * gain.mean(), "lmbd": lmbd, **told}

    sources = [*actor.parameters(), *critics.parameters()]
    moving = [*target_actor.parameters(), *targets.parameters()]
    return Hand(batch, parameters, losses, late, sources=sources, targets=moving)
