"""One SAC update, side by side: TorchRL's stock loss, hand-written PyTorch, composerl.

    OMP_NUM_THREADS=1 python tests/benchmarks/sac_update.py

Sizes and method as in iql_update.py.
"""

from __future__ import annotations

import math
from copy import deepcopy

import torch
import torch.nn.functional as F
from common import SPACES, Step, arguments, compare, stock_step, told, transitions
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.objectives import SACLoss as StockSACLoss

from composerl.losses import SACLoss
from composerl.modules import tanh_gaussian_actor, twin_q
from composerl.update import Update


def networks(width: int) -> tuple:
    torch.manual_seed(0)
    hidden = (width, width)
    return tanh_gaussian_actor(SPACES, hidden), twin_q(SPACES, hidden)


def hand_written(width: int, batch: TensorDict) -> Step:
    """What one would write without any library but torch; it does what composerl does."""

    def mlp(n: int, m: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(n, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, m)
        )

    actor, log_alpha = mlp(17, 12), nn.Parameter(torch.zeros(()))
    critics = nn.ModuleList([mlp(23, 1), mlp(23, 1)])
    targets = deepcopy(critics).requires_grad_(False)
    sources, copies = list(critics.parameters()), list(targets.parameters())
    parameters = [*actor.parameters(), log_alpha, *sources]
    optimizer = torch.optim.Adam(parameters, lr=3e-4, fused=True)
    middle, half_range = torch.zeros(6), torch.ones(6)
    log_half_range = half_range.log().sum()
    data = [batch[key] for key in ("observation", "action")]
    data += [batch["next", key] for key in ("observation", "reward", "terminated")]

    def act(observation: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = actor(observation).chunk(2, -1)
        log_std = log_std.clamp(-5, 2)
        noise = torch.randn_like(mean)
        u = mean + log_std.exp() * noise
        squash = 2 * (math.log(2) - u - F.softplus(-2 * u))
        log_prob = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi) - squash
        action = middle + half_range * u.tanh()
        return action, log_prob.sum(-1, keepdim=True) - log_half_range

    def step() -> None:
        s, a, s2, r, terminated = data
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            a2, log_prob2 = act(s2)
            sa2 = torch.cat([s2, a2], -1)
            value = torch.minimum(targets[0](sa2), targets[1](sa2)) - alpha * log_prob2
            y = r + 0.99 * (~terminated).float() * value
        sa = torch.cat([s, a], -1)
        errors = [(critic(sa) - y) ** 2 for critic in critics]
        batch["td_error"] = torch.maximum(*errors).detach().squeeze(-1)
        loss_q = errors[0].mean() + errors[1].mean()
        new, log_prob = act(s)
        for p in sources:  # so that the actor's loss leaves them alone
            p.requires_grad_(False)
        sn = torch.cat([s, new], -1)
        loss_pi = (alpha * log_prob - torch.minimum(critics[0](sn), critics[1](sn))).mean()
        for p in sources:
            p.requires_grad_(True)
        loss_alpha = -(log_alpha * (log_prob.detach() - 6)).mean()
        (loss_q + loss_pi + loss_alpha).backward()
        losses = {"q": loss_q, "pi": loss_pi, "alpha": loss_alpha, "entropy": -log_prob.mean()}
        told(losses, parameters)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(copies, sources, 0.005)

    return step


def main() -> None:
    args = arguments(__doc__, rounds=40, updates=10)
    batch = transitions(args.rows)
    names = ["loss_actor", "loss_qvalue", "loss_alpha"]
    stock = StockSACLoss(*networks(args.width), loss_function="l2")
    update = Update(SACLoss(*networks(args.width)))
    variants = {
        "stock": stock_step(stock, batch.clone(), names),
        "hand-written": hand_written(args.width, batch.clone()),
        "composerl eager": lambda: update(batch),
    }
    compare(variants, args)


if __name__ == "__main__":
    main()
