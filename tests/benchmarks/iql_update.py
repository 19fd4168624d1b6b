"""One IQL and one XQL update, side by side: TorchRL's stock loss, hand-written PyTorch, composerl.

    OMP_NUM_THREADS=1 python tests/benchmarks/iql_update.py

Batch 256, two hidden layers of 256, 17 observations and 6 actions (HalfCheetah). CPU time of this
process with one thread, all variants interleaved in one run, so that whatever else the machine is
doing hits them alike.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from common import SPACES, Step, arguments, compare, stock_step, told, transitions
from tensordict import TensorDict
from torch import nn
from torchrl.objectives import IQLLoss as StockIQLLoss

from composerl.losses import IQLLoss, XQLLoss
from composerl.modules import gaussian_actor, twin_q, value
from composerl.update import Update


def networks(width: int) -> tuple:
    torch.manual_seed(0)
    hidden = (width, width)
    return gaussian_actor(SPACES, hidden), twin_q(SPACES, hidden), value(SPACES, hidden)


def hand_written(width: int, batch: TensorDict) -> Step:
    """What one would write without any library but torch: one backward, one fused Adam.

    It does what composerl does: actions in a box, priorities, the metrics.
    """

    def mlp(n: int, m: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(n, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, m)
        )

    actor, v, log_std = mlp(17, 6), mlp(17, 1), nn.Parameter(torch.zeros(6))
    critics = nn.ModuleList([mlp(23, 1), mlp(23, 1)])
    targets = deepcopy(critics).requires_grad_(False)
    parameters = [*actor.parameters(), log_std, *critics.parameters(), *v.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-4, fused=True)
    sources, copies = list(critics.parameters()), list(targets.parameters())
    data = [batch[key] for key in ("observation", "action")]
    data += [batch["next", key] for key in ("observation", "reward", "terminated")]

    middle, half_range = torch.zeros(6), torch.ones(6)

    def step() -> None:
        s, a, s2, r, terminated = data
        sa = torch.cat([s, a], -1)
        with torch.no_grad():
            target_q = torch.minimum(targets[0](sa), targets[1](sa))
            y = r + 0.99 * (~terminated).float() * v(s2)
        u = target_q - v(s)
        loss_v = (torch.where(u < 0, 0.3, 0.7) * u**2).mean()
        errors = [(critic(sa) - y) ** 2 for critic in critics]
        batch["td_error"] = torch.maximum(*errors).detach().squeeze(-1)
        loss_q = errors[0].mean() + errors[1].mean()
        mean = middle + half_range * actor(s).tanh()
        std = log_std.clamp(-5, 2).exp() * half_range
        log_prob = torch.distributions.Normal(mean, std, validate_args=False).log_prob(a).sum(-1)
        weight = (3.0 * u.detach()).exp().clamp(max=100).squeeze(-1)
        loss_pi = -(weight * log_prob).mean()
        (loss_v + loss_q + loss_pi).backward()
        losses = {"v": loss_v, "q": loss_q, "pi": loss_pi, "entropy": -log_prob.mean()}
        told(losses, parameters)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(copies, sources, 0.005)

    return step


def main() -> None:
    args = arguments(__doc__, rounds=40, updates=10)
    batch = transitions(args.rows)
    names = ["loss_actor", "loss_qvalue", "loss_value"]
    stock = StockIQLLoss(*networks(args.width), loss_function="l2", temperature=3.0, expectile=0.7)
    eager = Update(IQLLoss(*networks(args.width)))
    compiled = Update(IQLLoss(*networks(args.width)), compile=True)
    xql = Update(XQLLoss(*networks(args.width)))
    xql_compiled = Update(XQLLoss(*networks(args.width)), compile=True)
    variants = {
        "stock": stock_step(stock, batch.clone(), names),
        "hand-written": hand_written(args.width, batch.clone()),
        "composerl eager": lambda: eager(batch),
        "composerl compiled": lambda: compiled(batch),
        "composerl XQL eager": lambda: xql(batch),
        "composerl XQL compiled": lambda: xql_compiled(batch),
    }
    compare(variants, args)


if __name__ == "__main__":
    main()
