"""Updates by hand, of models: an ensemble of the environment's dynamics."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from tensordict import TensorDict
from torch import Tensor, nn
from torch.optim import Adam

from .hand import Hand, adopt


def hand_dynamics(loss: nn.Module, batch: TensorDict, width: int) -> Hand:
    """An ensemble of Gaussian models: baddbmm, weight decay by layer."""
    members, _, obs = batch["observation"].shape
    sizes = [obs + batch["action"].shape[-1], *[width] * 4, 2 * (obs + 1)]
    weights = [nn.Parameter(torch.empty(members, n, m)) for n, m in pairwise(sizes)]
    biases = [nn.Parameter(torch.empty(members, 1, m)) for m in sizes[1:]]
    low, high = (nn.Parameter(torch.empty(obs + 1)) for _ in range(2))
    layers = [p for pair in zip(weights, biases, strict=True) for p in pair]
    parameters = adopt([low, high, *layers], loss)
    mean, std = torch.zeros(sizes[0]), torch.ones(sizes[0])
    target_mean, target_std = torch.zeros(obs + 1), torch.ones(obs + 1)
    decays = (2.5e-5, 4.375e-5, 6.25e-5, 8.125e-5, 1e-4)
    groups = [{"params": [w], "weight_decay": d} for w, d in zip(weights, decays, strict=True)]
    groups.append({"params": [*biases, low, high], "weight_decay": 0.0})
    s, a = batch["observation"], batch["action"]
    s2, r = batch["next", "observation"], batch["next", "reward"]

    def losses() -> dict[str, Tensor]:
        x = (torch.cat([s, a], -1) - mean) / std
        for w, b in zip(weights[:-1], biases[:-1], strict=True):
            x = F.silu(torch.baddbmm(b, x, w))
        mu, raw = torch.baddbmm(biases[-1], x, weights[-1]).chunk(2, -1)
        log_var = high - F.softplus(high - raw)
        log_var = low + F.softplus(log_var - low) + 2 * target_std.log()
        error = torch.cat([s2 - s, r], -1) - (mu * target_std + target_mean)
        return {
            "loss_dynamics": (error.square() * (-log_var).exp() + log_var).mean((1, 2)).sum(),
            "loss_bounds": 0.01 * (high.sum() - low.sum()),
            "mse": (error.detach() / target_std).square().mean(),
        }

    return Hand(batch, parameters, losses, optimizers=[Adam(groups, lr=1e-3, fused=True)])
