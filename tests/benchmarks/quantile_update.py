"""One IQN and one FQF update, side by side: hand-written PyTorch, composerl.

    OMP_NUM_THREADS=1 python tests/benchmarks/quantile_update.py

CartPole's sizes: batch 64, width 128 in trunk and head, 32 quantiles (N = N' = K). CPU time of
this process with one thread, all variants interleaved in one run, so that whatever else the
machine is doing hits them alike.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from common import Step, arguments, compare
from tensordict import TensorDict
from torch import Tensor, nn
from torch.optim import RMSprop

from composerl.envs.spaces import Spaces
from composerl.losses import FQFLoss, IQNLoss
from composerl.modules import fqf_network, iqn_network
from composerl.optim.adam import FusedAdam
from composerl.update import Update

SPACES = Spaces(obs_shape=(4,), num_actions=2)
N = 32


def transitions(rows: int) -> TensorDict:
    """A batch of random transitions."""
    no = torch.zeros(rows, 1, dtype=torch.bool)
    following = {
        "observation": torch.randn(rows, 4),
        "reward": torch.ones(rows, 1),
        "done": no,
        "terminated": no.clone(),
    }
    data = {"observation": torch.randn(rows, 4), "action": torch.randint(2, (rows,))}
    return TensorDict({**data, "next": following}, [rows])


class HandNet(nn.Module):
    """What one would write for the paper's network."""

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
    delta = target.unsqueeze(1) - current.unsqueeze(2)
    huber = torch.where(delta.abs() <= 1, 0.5 * delta**2, delta.abs() - 0.5)
    weight = (taus.unsqueeze(2) - (delta.detach() < 0).float()).abs()
    return (weight * huber).mean(2).sum(1).mean()


def unpack(batch: TensorDict) -> list[Tensor]:
    data = [batch[key] for key in ("observation", "action")]
    return data + [batch["next", key] for key in ("observation", "reward", "terminated")]


def hand_iqn(width: int, batch: TensorDict) -> Step:
    net = HandNet(width)
    target = deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-4, fused=True)
    sources, copies = list(net.parameters()), list(target.parameters())
    s, a, s2, r, terminated = unpack(batch)
    rows = torch.arange(len(a))

    def step() -> None:
        with torch.no_grad():
            features = target.trunk(s2)
            best = target(features, torch.rand(1, N)).mean(1).argmax(-1)
            z = target(features, torch.rand(len(a), N))[rows, :, best]
            y = r + 0.99 * (~terminated).float() * z
        taus = torch.rand(len(a), N)
        current = net(net.trunk(s), taus)[rows, :, a]
        regression(current, y, taus).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(copies, sources, 0.005)

    return step


def hand_fqf(width: int, batch: TensorDict) -> Step:
    net, linear = HandNet(width), nn.Linear(width, N)
    target = deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-4, fused=True)
    fractions = torch.optim.RMSprop(linear.parameters(), lr=1e-6)
    sources, copies = list(net.parameters()), list(target.parameters())
    s, a, s2, r, terminated = unpack(batch)
    rows = torch.arange(len(a))

    def propose(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        distribution = torch.distributions.Categorical(logits=linear(features.detach()))
        taus = nn.functional.pad(distribution.probs.cumsum(-1), (1, 0))
        return taus, (taus[:, 1:] + taus[:, :-1]).detach() / 2, distribution.entropy()

    def step() -> None:
        features = net.trunk(s)
        taus, hats, entropy = propose(features)
        current = net(features, hats)[rows, :, a]
        with torch.no_grad():
            after = target.trunk(s2)
            next_taus, next_hats, _ = propose(after)
            z = target(after, next_hats)
            best = (z * next_taus.diff(dim=-1).unsqueeze(-1)).sum(1).argmax(-1)
            y = r + 0.99 * (~terminated).float() * z[rows, :, best]
            at = net(features, taus[:, 1:-1])[rows, :, a]
            gradient = (at - current[:, :-1]).abs() - (at - current[:, 1:]).abs()
        loss_fraction = ((gradient * taus[:, 1:-1]).sum(-1) - 1e-3 * entropy).mean()
        (regression(current, y, hats) + loss_fraction).backward()
        for opt in (optimizer, fractions):
            opt.step()
            opt.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(copies, sources, 0.005)

    return step


def composerl_iqn(width: int, compile: bool = False, **options: object) -> Update:
    actor = iqn_network(SPACES, (width, width), **options)
    return Update(
        IQNLoss(
            actor.value_network,
            num_quantiles=N, num_target_quantiles=N, num_acting_quantiles=N,
        ),
        compile=compile,
    )  # fmt: skip


def composerl_fqf(width: int, compile: bool = False, **options: object) -> Update:
    actor = fqf_network(SPACES, (width, width), num_quantiles=N, **options)
    loss = FQFLoss(actor.value_network, actor.fraction_network)
    adam = FusedAdam(loss.value_network.parameters(), lr=3e-4)
    rmsprop = RMSprop(loss.fraction_network.parameters(), lr=1e-6)
    return Update(loss, optimizer=[adam, rmsprop], compile=compile)


def main() -> None:
    args = arguments(__doc__, rounds=30, updates=10, width=128, rows=64)
    batch = transitions(args.rows)
    updates = {
        "composerl IQN": composerl_iqn(args.width),
        "composerl IQN LayerNorm": composerl_iqn(args.width, layer_norm=True),
        "composerl IQN compiled": composerl_iqn(args.width, compile=True),
        "composerl FQF": composerl_fqf(args.width),
        "composerl FQF LayerNorm": composerl_fqf(args.width, layer_norm=True),
        "composerl FQF compiled": composerl_fqf(args.width, compile=True),
    }
    variants = {
        "hand-written IQN": hand_iqn(args.width, batch.clone()),
        "hand-written FQF": hand_fqf(args.width, batch.clone()),
        **{name: (lambda update=update: update(batch)) for name, update in updates.items()},
    }
    compare(variants, args)


if __name__ == "__main__":
    main()
