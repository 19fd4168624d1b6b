"""Imagined steps: branched rollouts in an ensemble, by a loop by hand, TorchRL's rollout and ours.

TorchRL's is ``rollout`` of the model as a TorchRL environment, all branches at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from composerl.data import ModelEnv, branched_rollouts
from composerl.modules import ensemble, tanh_gaussian_actor

from .batches import BOX
from .timing import Case, Step

BRANCHES = 10_000


def plain_loop(model: torch.nn.Module, policy: torch.nn.Module, start: Tensor, length: int) -> Step:
    """Every elite predicts its share of the rows, which are dealt out at random."""
    layers = [(layer.weight, layer.bias) for layer in model.layers]
    low, high, elites = model.min_log_var, model.max_log_var, model.elites.tolist()
    net, scale = policy.module[0].module.features, 2 * model.target_std.log()

    def member(e: int, x: Tensor) -> Tensor:
        for weight, bias in layers[:-1]:
            x = F.silu(torch.addmm(bias[e], x, weight[e]))
        weight, bias = layers[-1]
        mean, raw = torch.addmm(bias[e], x, weight[e]).chunk(2, -1)
        log_var = high - F.softplus(high - raw)
        log_var = low + F.softplus(log_var - low) + scale
        mean = mean * model.target_std + model.target_mean
        return mean + (0.5 * log_var).exp() * torch.randn_like(mean)

    @torch.no_grad()
    def roll() -> dict[str, Tensor]:
        now, steps = start, []
        for t in range(length):
            mean, log_std = net(now).chunk(2, -1)
            noise = torch.randn_like(mean)
            action = (mean + log_std.clamp(-5, 2).exp() * noise).tanh()
            x = (torch.cat([now, action], -1) - model.mean) / model.std
            order = torch.randperm(len(x))
            drawn = torch.empty(len(x), now.shape[-1] + 1)
            for e, rows in zip(elites, order.chunk(len(elites)), strict=True):
                drawn[rows] = member(e, x[rows])
            after, no = now + drawn[:, :-1], torch.zeros(len(now), 1, dtype=torch.bool)
            cut = torch.full_like(no, t == length - 1)
            steps.append((now, action, after, drawn[:, -1:], no, cut, cut | no))
            now = after
        names = ("observation", "action", "after", "reward", "terminated", "truncated", "done")
        return {key: torch.cat(x) for key, x in zip(names, zip(*steps, strict=True), strict=True)}

    return roll


def benchmark() -> Iterator[Case]:
    """Imagined transitions of 10,000 branches, of one step and of five; seven models of 4 x 200."""
    for hidden, length in (((64, 64), 1), ((256, 256), 1), ((256, 256), 5)):
        torch.manual_seed(0)
        network, policy = ensemble(BOX), tanh_gaussian_actor(BOX, hidden)
        start = torch.randn(BRANCHES, 17)
        env = ModelEnv(network, BOX, lambda number, start=start: start, batch_size=(BRANCHES,))

        def torchrl(env: ModelEnv = env, policy: torch.nn.Module = policy, n: int = length) -> None:
            env.rollout(n, policy, break_when_any_done=False)

        ways = {
            "plain loop": plain_loop(network.module, policy, start, length),
            "TorchRL": torch.no_grad()(torchrl),
            "composerl": lambda n=network, p=policy, s=start, k=length: branched_rollouts(
                n, p, s, k
            ),
        }
        case = f"{length} steps, policy of {hidden[0]} x {hidden[1]}"
        yield Case(case, ways, each=BRANCHES * length)
