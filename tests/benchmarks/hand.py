"""What updates share that are written without any library but torch.

Each takes a loss of ours for its weights, so that both sides start equal, and does the same work:
the same networks, draws, priorities and metrics. What one would do well by hand is done: one
backward, one fused Adam, targets by one foreach call, each network once per input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Adam, Optimizer

Losses = Callable[[], dict[str, Tensor]]


@dataclass
class Hand:
    """A hand-written update: what is minimised is named ``loss_*``, the rest is told.

    Attributes:
        batch: where ``td_error`` is written, if there is one.
        parameters: what learns.
        loss: evaluates it.
        late: what is added at every second update, when alone the targets move: TD3's delay.
        optimizers: one fused Adam over all by default.
        sources: networks that the targets follow.
        clip: of the gradients' norm.
    """

    batch: TensorDict
    parameters: Sequence[nn.Parameter]
    loss: Losses
    late: Losses | None = None
    optimizers: Sequence[Optimizer] = ()
    sources: Sequence[Tensor] = ()
    targets: Sequence[Tensor] = ()
    clip: float | None = None
    updates: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not self.optimizers:
            self.optimizers = [Adam(self.parameters, lr=3e-4, fused=True)]

    def compiled(self) -> Hand:
        """The same with its loss, and so its gradients, compiled."""
        self.loss = torch.compile(self.loss, fullgraph=True, dynamic=False)
        if self.late is not None:
            self.late = torch.compile(self.late, fullgraph=True, dynamic=False)
        return self

    def __call__(self) -> dict[str, Tensor]:
        """One update; returns detached metrics."""
        self.updates += 1
        due = self.late is None or self.updates % 2 == 0
        out = self.loss()
        if self.late is not None and due:
            out |= self.late()
        sum(value for name, value in out.items() if name.startswith("loss_")).backward()
        grads = [p.grad for p in self.parameters if p.grad is not None]
        norm = get_total_norm(grads)
        if self.clip is not None:
            clip_grads_with_norm_(self.parameters, self.clip, norm)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if due and self.targets:
            with torch.no_grad():
                torch._foreach_lerp_(self.targets, self.sources, 0.005)
        if "priority" in out:
            self.batch["td_error"] = out.pop("priority")
        return {name: value.detach() for name, value in out.items()} | {"grad_norm": norm}


def mlp(n: int, width: int, m: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(n, width), activation(), nn.Linear(width, width), activation(),
        nn.Linear(width, m),
    )  # fmt: skip


def adopt(parameters: Iterable[nn.Parameter], loss: nn.Module) -> list[nn.Parameter]:
    """These parameters, with the weights of ours, which come in the same order."""
    mine, theirs = list(parameters), [p for p in loss.parameters() if p.requires_grad]
    for p, q in zip(mine, theirs, strict=True):
        if p.shape != q.shape:
            raise ValueError(f"not the same networks: {tuple(p.shape)} and {tuple(q.shape)}")
        p.data.copy_(q.data)
    return mine


def following(network: nn.Module) -> nn.Module:
    """Its target."""
    return deepcopy(network).requires_grad_(False)


def frozen(network: nn.Module) -> nn.Module:
    """The same weights, for what shall learn through them and not move them."""
    same = deepcopy(network).requires_grad_(False)
    for mine, theirs in zip(same.parameters(), network.parameters(), strict=True):
        mine.data = theirs.data
    return same


def columns(batch: TensorDict) -> list[Tensor]:
    """s, a, s', r, whether it goes on."""
    s, a = batch["observation"], batch["action"]
    s2, r, ended = (batch["next", key] for key in ("observation", "reward", "terminated"))
    return [s, a, s2, r, ended]


def bootstrap(r: Tensor, ended: Tensor, value: Tensor) -> Tensor:
    """The target of one step."""
    return r + 0.99 * (~ended).float() * value


@torch.no_grad()
def largest_error(values: list[Tensor], target: Tensor) -> Tensor:
    """What prioritized replay needs, ``(batch,)``."""
    return torch.maximum(*[(q - target) ** 2 for q in values]).squeeze(-1)
