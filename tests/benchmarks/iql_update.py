"""One IQL update, side by side: TorchRL's stock loss, hand-written PyTorch, composerl.

    OMP_NUM_THREADS=1 python tests/benchmarks/iql_update.py

Batch 256, two hidden layers of 256, 17 observations and 6 actions (HalfCheetah). CPU time of this
process with one thread, all variants interleaved in one run, so that whatever else the machine is
doing hits them alike; the median of many short rounds. The ratio of two variants is the median of
the ratios within the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable
from copy import deepcopy
from time import process_time

import torch
import torch.nn.functional as F
from tensordict import TensorDict
from torch import nn
from torchrl.objectives import IQLLoss as StockIQLLoss
from torchrl.objectives import SoftUpdate

from composerl.losses import IQLLoss
from composerl.modules import gaussian_actor, twin_q, value
from composerl.spaces import Spaces
from composerl.update import Update

SPACES = Spaces(obs_shape=(17,), low=(-1.0,) * 6, high=(1.0,) * 6)


def networks(width: int) -> tuple:
    torch.manual_seed(0)
    hidden = (width, width)
    return gaussian_actor(SPACES, hidden), twin_q(SPACES, hidden), value(SPACES, hidden)


def stock(width: int, batch: TensorDict) -> Callable[[], object]:
    """TorchRL's IQLLoss as its documentation shows it: default Adam, SoftUpdate."""
    loss = StockIQLLoss(*networks(width), loss_function="l2", temperature=3.0, expectile=0.7)
    loss.make_value_estimator(gamma=0.99)
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-4)
    updater = SoftUpdate(loss, tau=0.005)

    def step() -> None:
        out = loss(batch)
        (out["loss_actor"] + out["loss_qvalue"] + out["loss_value"]).backward()
        optimizer.step()
        optimizer.zero_grad()
        updater.step()

    return step


def hand_written(width: int, batch: TensorDict) -> Callable[[], object]:
    """What one would write without any library but torch: one backward, one fused Adam."""

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

    def step() -> None:
        s, a, s2, r, terminated = data
        sa = torch.cat([s, a], -1)
        with torch.no_grad():
            target_q = torch.minimum(targets[0](sa), targets[1](sa))
            y = r + 0.99 * (~terminated).float() * v(s2)
        u = target_q - v(s)
        loss_v = (torch.where(u < 0, 0.3, 0.7) * u**2).mean()
        loss_q = F.mse_loss(critics[0](sa), y) + F.mse_loss(critics[1](sa), y)
        mean, std = actor(s).tanh(), log_std.clamp(-5, 2).exp()
        log_prob = torch.distributions.Normal(mean, std, validate_args=False).log_prob(a).sum(-1)
        weight = (3.0 * u.detach()).exp().clamp(max=100).squeeze(-1)
        loss_pi = -(weight * log_prob).mean()
        (loss_v + loss_q + loss_pi).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(copies, sources, 0.005)

    return step


def composerl_update(width: int, batch: TensorDict, compile: bool) -> Callable[[], object]:
    update = Update(IQLLoss(*networks(width)), lr=3e-4, tau=0.005, compile=compile)
    return lambda: update(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--updates", type=int, default=10, help="updates in a round")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = args.rows
    no = torch.zeros(rows, 1, dtype=torch.bool)
    batch = TensorDict(
        {
            "observation": torch.randn(rows, 17),
            "action": torch.rand(rows, 6) * 2 - 1,
            "next": {"observation": torch.randn(rows, 17), "reward": torch.randn(rows, 1),
                     "done": no, "terminated": no.clone(), "truncated": no.clone()},
        },
        [rows],
    )  # fmt: skip
    variants = {
        "stock TorchRL IQLLoss": stock(args.width, batch.clone()),
        "hand-written": hand_written(args.width, batch.clone()),
        "composerl eager": composerl_update(args.width, batch.clone(), compile=False),
        "composerl compiled": composerl_update(args.width, batch.clone(), compile=True),
    }
    for step in variants.values():
        for _ in range(20):
            step()
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(args.rounds):
        for name, step in variants.items():
            start = process_time()
            for _ in range(args.updates):
                step()
            times[name].append((process_time() - start) / args.updates)

    def ratio(name: str, base: str) -> float:
        return statistics.median(a / b for a, b in zip(times[name], times[base], strict=True))

    print(f"width {args.width}, batch {rows}, torch {torch.__version__}, one thread, CPU time")
    for name, seconds in times.items():
        print(
            f"{name:24s} {statistics.median(seconds) * 1e3:7.3f} ms"
            f"   {ratio(name, 'stock TorchRL IQLLoss'):5.2f} of stock"
            f"   {ratio(name, 'hand-written'):5.2f} of hand-written"
        )


if __name__ == "__main__":
    main()
