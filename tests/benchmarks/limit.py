"""The best that is known: IQL's gradients derived by hand, one graph for all of the update."""

from __future__ import annotations

import math

import torch
from tensordict import TensorDict
from torch import Tensor, nn

Layers = list[Tensor]  # weight, bias, weight, bias, ...


class IQLLimit:
    """IQL without autograd: forward, backward, Adam and targets under one ``torch.compile``.

    Numbers are ours, to rounding; nothing in it can be reused for another loss.
    """

    def __init__(self, loss: nn.Module, batch: TensorDict, width: int) -> None:
        self.weights = [p.data for p in loss.parameters() if p.requires_grad]
        self.means = [torch.zeros_like(p) for p in self.weights]
        self.squares = [torch.zeros_like(p) for p in self.weights]
        self.targets = [p.data.clone() for p in self.weights[13:]]
        names = ("observation", "reward", "terminated")
        self.batch, self.updates = batch, 0
        self.data = [batch["observation"], batch["action"], *(batch["next", n] for n in names)]
        self.size, self.root = torch.zeros(()), torch.zeros(())
        self.compiled = torch.compile(self._step, fullgraph=True, dynamic=False)

    @torch.no_grad()
    def __call__(self) -> dict[str, Tensor]:
        """One update; returns metrics."""
        self.updates += 1
        self.size.fill_(3e-4 / (1 - 0.9**self.updates))
        self.root.fill_(math.sqrt(1 - 0.999**self.updates))
        out = self.compiled()
        self.batch["td_error"] = out.pop("priority")
        return out

    def _step(self) -> dict[str, Tensor]:
        s, a, s2, r, ended = self.data
        log_std, weights = self.weights[0], self.weights[1:]
        actor, v, first, second = (weights[6 * i : 6 * i + 6] for i in range(4))
        n, sa = len(s), torch.cat([s, a], -1)
        least = torch.minimum(*(_run(self.targets[i : i + 6], sa)[0] for i in (0, 6)))
        y = r + 0.99 * (~ended).float() * _run(v, s2)[0]

        value, kept_v = _run(v, s)
        u = least - value
        asymmetry = torch.where(u < 0, 0.3, 0.7)
        q1, kept_1 = _run(first, sa)
        q2, kept_2 = _run(second, sa)
        e1, e2 = q1 - y, q2 - y
        out, kept_a = _run(actor, s)
        mean, deviation = out.tanh(), log_std.clamp(-5, 2).exp()
        z = (a - mean) / deviation
        log_prob = (-0.5 * z.square() - deviation.log() - 0.5 * math.log(2 * math.pi)).sum(-1)
        weight = (3.0 * u).exp().clamp(max=100.0) / n

        inside = ((log_std > -5) & (log_std < 2)).float()
        grads = [(weight * (1 - z.square())).sum(0) * inside]
        grads += _back(actor, kept_a, -weight * z / deviation * (1 - mean.square()))
        grads += _back(v, kept_v, -2 / n * asymmetry * u)
        grads += _back(first, kept_1, 2 / n * e1) + _back(second, kept_2, 2 / n * e2)
        norm = torch.stack([g.norm() for g in grads]).norm()
        for p, g, m, q in zip(self.weights, grads, self.means, self.squares, strict=True):
            m.lerp_(g, 0.1)
            q.mul_(0.999).addcmul_(g, g, value=0.001)
            p.sub_(m / (q.sqrt() / self.root + 1e-8) * self.size)
        for target, source in zip(self.targets, self.weights[13:], strict=True):
            target.lerp_(source, 0.005)
        return {
            "loss_actor": -(weight.squeeze(-1) * log_prob).sum(),
            "loss_qvalue": e1.square().mean() + e2.square().mean(),
            "loss_value": (asymmetry * u.square()).mean(),
            "entropy": -log_prob.mean(),
            "pred_value": 0.5 * (q1.mean() + q2.mean()),
            "grad_norm": norm,
            "priority": torch.maximum(e1.square(), e2.square()).squeeze(-1),
        }


def _run(net: Layers, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Outputs, and the inputs of each layer."""
    w1, b1, w2, b2, w3, b3 = net
    one = torch.addmm(b1, x, w1.t()).relu()
    two = torch.addmm(b2, one, w2.t()).relu()
    return torch.addmm(b3, two, w3.t()), [x, one, two]


def _back(net: Layers, kept: list[Tensor], grad: Tensor) -> Layers:
    """Gradients of weights and biases, first layer first."""
    grads: Layers = []
    for i in (2, 1, 0):
        grads = [grad.t() @ kept[i], grad.sum(0), *grads]
        if i:
            grad = (grad @ net[2 * i]) * (kept[i] > 0)
    return grads
