"""The learned model, side by side with hand-written PyTorch: training steps and imagined steps.

    OMP_NUM_THREADS=1 python tests/benchmarks/dynamics.py

Seven members of four layers of 200, a batch of 256 rows for each, on Pendulum's sizes (--obs and
--actions for others). CPU time of this process with one thread, variants interleaved. Then one-step
imagined transitions per CPU second, the policy's share included.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from itertools import pairwise
from time import process_time

import torch
import torch.nn.functional as F
from common import Step, compare
from tensordict import TensorDict
from torch import Tensor, nn

from composerl.data import branched_rollouts
from composerl.envs.spaces import Spaces
from composerl.losses import DynamicsLoss
from composerl.modules import ensemble, tanh_gaussian_actor
from composerl.optim.adam import FusedAdam
from composerl.update import Update

MEMBERS, ROWS, WIDTH = 7, 256, 200


def transitions(obs: int, actions: int) -> TensorDict:
    """A batch of random transitions, rows of its own for each member."""
    following = {"observation": torch.randn(MEMBERS, ROWS, obs)}
    following["reward"] = torch.randn(MEMBERS, ROWS, 1)
    data = {"observation": torch.randn(MEMBERS, ROWS, obs)}
    data["action"] = torch.rand(MEMBERS, ROWS, actions)
    return TensorDict({**data, "next": following}, [MEMBERS, ROWS])


def hand_written(batch: TensorDict) -> Step:
    """The same step without any library but torch: baddbmm, one backward, one fused Adam."""
    obs, actions = batch["observation"].shape[-1], batch["action"].shape[-1]
    sizes = [obs + actions, *[WIDTH] * 4, 2 * (obs + 1)]
    weights = [nn.Parameter(torch.randn(MEMBERS, n, m) / (2 * n**0.5)) for n, m in pairwise(sizes)]
    biases = [nn.Parameter(torch.zeros(MEMBERS, 1, m)) for m in sizes[1:]]
    low = nn.Parameter(torch.full((MEMBERS, 1, obs + 1), -10.0))
    high = nn.Parameter(torch.full((MEMBERS, 1, obs + 1), 0.5))
    mean, std = torch.zeros(sizes[0]), torch.ones(sizes[0])
    decays = (2.5e-5, 4.375e-5, 6.25e-5, 8.125e-5, 1e-4)
    groups = [
        {"params": [w], "weight_decay": decay} for w, decay in zip(weights, decays, strict=True)
    ]
    groups.append({"params": [*biases, low, high], "weight_decay": 0.0})
    optimizer = torch.optim.Adam(groups, lr=1e-3, fused=True)
    data: list[Tensor] = [batch["observation"], batch["action"]]
    data += [batch["next", "observation"], batch["next", "reward"]]

    def step() -> None:
        s, a, following, reward = data
        x = (torch.cat([s, a], -1) - mean) / std
        for w, b in zip(weights[:-1], biases[:-1], strict=True):
            x = F.silu(torch.baddbmm(b, x, w))
        mu, raw = torch.baddbmm(biases[-1], x, weights[-1]).chunk(2, -1)
        log_var = high - F.softplus(high - raw)
        log_var = low + F.softplus(log_var - low)
        error = torch.cat([following - s, reward], -1) - mu
        nll = (error.square() * (-log_var).exp() + log_var).mean((1, 2)).sum()
        (nll + 0.01 * (high.sum() - low.sum())).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--obs", type=int, default=3)
    parser.add_argument("--actions", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--updates", type=int, default=5, help="updates in a round")
    args = parser.parse_args()
    args.width, args.rows = WIDTH, ROWS
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    spaces = Spaces(obs_shape=(args.obs,), low=(-2.0,) * args.actions, high=(2.0,) * args.actions)
    batch = transitions(args.obs, args.actions)
    model = ensemble(spaces)
    loss = DynamicsLoss(model, per_member=True)
    update = Update(loss, optimizer=FusedAdam(loss.parameter_groups()))
    compare({"hand-written": hand_written(batch), "composerl": lambda: update(batch)}, args)

    starts = torch.randn(100_000, args.obs)
    for hidden in ((64, 64), (256, 256)):
        policy = tanh_gaussian_actor(spaces, hidden)
        rates = []
        for _ in range(5):
            start = process_time()
            branched_rollouts(model, policy, starts)
            rates.append(len(starts) / (process_time() - start))
        rate = statistics.median(rates)
        print(f"imagined, policy {hidden}: {rate:,.0f} transitions per CPU second")


if __name__ == "__main__":
    main()
