"""Updates by hand, of discrete actions: IQN, FQF, PPO, GAIL's judge."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tensordict import TensorDict
from torch import Tensor, nn
from torch.optim import Adam, RMSprop

from .hand import Hand, adopt, bootstrap, columns, following, mlp

#: Fractions of IQN, all three kinds, and of FQF.
QUANTILES = 32


class Quantiles(nn.Module):
    """The paper's network, as one would write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, width), nn.ReLU())
        self.phi = nn.Sequential(nn.Linear(64, width), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
        self.register_buffer("i", torch.arange(1, 65) * torch.pi)

    def forward(self, features: Tensor, taus: Tensor) -> Tensor:
        phi = self.phi(torch.cos(taus.unsqueeze(-1) * self.i))
        return self.head(features.unsqueeze(1) * phi)


def regression(current: Tensor, target: Tensor, taus: Tensor) -> Tensor:
    """Quantile Huber loss of all pairs."""
    delta = target.unsqueeze(1) - current.unsqueeze(2)
    huber = torch.where(delta.abs() <= 1, 0.5 * delta**2, delta.abs() - 0.5)
    weight = (taus.unsqueeze(2) - (delta.detach() < 0).float()).abs()
    return (weight * huber).mean(2).sum(1).mean()


def told(pred: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Means and the distance of values ``(batch,)``, which is the priority too."""
    error = (target - pred).abs()
    means = {"pred_value": pred.mean(), "target_value": target.mean(), "td_error": error.mean()}
    return means | {"priority": error}


def hand_iqn(loss: nn.Module, batch: TensorDict, width: int) -> Hand:
    """IQN; the fractions that choose the next action are drawn once for all rows, as ours are."""
    net = Quantiles(width)
    parameters, target = adopt(net.parameters(), loss), following(net)
    s, a, s2, r, ended = columns(batch)
    rows, n = torch.arange(len(a)), QUANTILES

    def losses() -> dict[str, Tensor]:
        with torch.no_grad():
            features = target.trunk(s2)
            best = target(features, torch.rand(1, n)).mean(1).argmax(-1)
            z = target(features, torch.rand(len(a), n))[rows, :, best]
            y = bootstrap(r, ended, z)
        features = net.trunk(s)
        taus = torch.rand(len(a), n)
        current = net(features, taus)[rows, :, a]
        metrics = told(current.detach().mean(1), y.mean(1))
        return {"loss_qvalue": regression(current, y, taus), **metrics}

    return Hand(batch, parameters, losses, sources=parameters, targets=list(target.parameters()))


def hand_fqf(loss: nn.Module, batch: TensorDict, width: int) -> Hand:
    """FQF, with an optimizer for each network."""
    net, linear = Quantiles(width), nn.Linear(width, QUANTILES)
    parameters = adopt([*net.parameters(), *linear.parameters()], loss)
    target = following(net)
    s, a, s2, r, ended = columns(batch)
    rows = torch.arange(len(a))

    def propose(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_shares = linear(features.detach()).log_softmax(-1)
        shares = log_shares.exp()
        taus = F.pad(shares.cumsum(-1), (1, 0))
        hats = (taus[:, 1:] + taus[:, :-1]).detach() / 2
        return taus, hats, -(shares * log_shares).sum(-1)

    def losses() -> dict[str, Tensor]:
        features = net.trunk(s)
        taus, hats, entropy = propose(features)
        current = net(features, hats)[rows, :, a]
        with torch.no_grad():
            after = target.trunk(s2)
            next_taus, next_hats, _ = propose(after)
            z, shares = target(after, next_hats), next_taus.diff(dim=-1)
            best = (z * shares.unsqueeze(-1)).sum(1).argmax(-1)
            y = bootstrap(r, ended, z[rows, :, best])
            at = net(features, taus[:, 1:-1])[rows, :, a]
            slope = (at - current[:, :-1]).abs() - (at - current[:, 1:]).abs()
            metrics = told((taus.diff(dim=-1) * current).sum(1), (shares * y).sum(1))
        return {
            "loss_qvalue": regression(current, y, hats),
            "loss_fraction": ((slope * taus[:, 1:-1]).sum(-1) - 1e-3 * entropy).mean(),
            "fraction_entropy": entropy.detach().mean(),
            **metrics,
        }

    optimizers = [
        Adam(net.parameters(), lr=3e-4, fused=True),
        RMSprop(linear.parameters(), lr=1e-6),
    ]
    return Hand(batch, parameters, losses, optimizers=optimizers, sources=list(net.parameters()),
                targets=list(target.parameters()))  # fmt: skip


def hand_ppo(loss: nn.Module, batch: TensorDict, width: int) -> Hand:
    """PPO on a minibatch whose advantages are known, with two actions."""
    actor, v = mlp(4, width, 2, nn.Tanh), mlp(4, width, 1, nn.Tanh)
    parameters = adopt([*actor.parameters(), *v.parameters()], loss)
    s, a, old = (batch[key] for key in ("observation", "action", "action_log_prob"))
    advantage, returns = batch["advantage"].squeeze(-1), batch["value_target"].squeeze(-1)

    def losses() -> dict[str, Tensor]:
        log_probs = actor(s).log_softmax(-1)
        log_ratio = log_probs.gather(1, a.unsqueeze(1)).squeeze(1) - old
        ratio = log_ratio.exp()
        clipped = ratio.clamp(0.8, 1.2)
        entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
        with torch.no_grad():
            gone = ratio - 1
            metrics = {
                "entropy": entropy.detach(),
                "kl_approx": (gone - log_ratio).mean(),
                "clip_fraction": (gone.abs() > 0.2).float().mean(),
            }
        return {
            "loss_objective": -torch.minimum(ratio * advantage, clipped * advantage).mean(),
            "loss_critic": F.mse_loss(v(s).squeeze(-1), returns),
            "loss_entropy": -0.01 * entropy,
            **metrics,
        }

    return Hand(batch, parameters, losses, clip=0.5)


def hand_gail(loss: nn.Module, batch: TensorDict, width: int) -> Hand:
    """GAIL's judge, of standardised observations and two actions."""
    net = mlp(6, width, 1)
    parameters = adopt(net.parameters(), loss)
    pairs = [(batch["observation"], batch["action"]),
             (batch["expert", "observation"], batch["expert", "action"])]  # fmt: skip
    mean, variance = torch.zeros(4), torch.ones(4)
    n = len(batch)
    labels = torch.cat([torch.zeros(n), torch.ones(n)])

    def losses() -> dict[str, Tensor]:
        s = (torch.cat([s for s, _ in pairs]) - mean) / variance.sqrt().clamp(min=1e-3)
        a = F.one_hot(torch.cat([a for _, a in pairs]), 2).float()
        logits = net(torch.cat([s, a], -1)).squeeze(-1)
        with torch.no_grad():
            right = ((logits > 0) == (labels > 0)).float()
            entropy = F.softplus(logits) - logits * logits.sigmoid()
            metrics = {
                "accuracy_policy": right[:n].mean(), "accuracy_expert": right[n:].mean(),
                "logits_policy": logits[:n].mean(), "logits_expert": logits[n:].mean(),
                "entropy": entropy.mean(),
            }  # fmt: skip
        judged = F.binary_cross_entropy_with_logits(logits, labels)
        return {"loss_discriminator": judged, **metrics}

    return Hand(batch, parameters, losses)
