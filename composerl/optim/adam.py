"""Adam as torch.optim has it: its fused kernel alone, or in a compiled graph of the update."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer
from torchrl.objectives import LossModule

from composerl.optim import inductor

__all__ = ["FusedAdam", "GraphStep", "adam_state", "clip_factor", "total"]

_log = logging.getLogger(__name__)

_ONE = torch.tensor(1.0)


class FusedAdam(Adam):
    """``torch.optim.Adam(fused=True)`` with a leaner ``step``: same state, same bits.

    The stock method sorts parameters by device, type and options at every call, which takes ten
    times as long as the kernel itself for networks of this size.
    """

    def __init__(self, params: Any, lr: float = 3e-4, **options: Any) -> None:
        if options.get("amsgrad") or options.get("maximize"):
            raise ValueError("FusedAdam has no amsgrad and no maximize: use torch.optim.Adam")
        super().__init__(params, lr=lr, fused=True, **options)
        for group in self.param_groups:  # torch looks at the default only
            if not 0 <= group["lr"] < float("inf"):
                raise ValueError(f"lr must be a number >= 0, got {group['lr']}")

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # takes no closure
        """One update of every parameter that has a gradient."""
        if closure is not None:
            raise ValueError("FusedAdam takes no closure")
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            states = [self.state[p] or adam_state(self, p) for p in params]
            steps = [state["step"] for state in states]
            if len(params) == len(group["params"]):
                steps = _count(states, steps)
            else:
                # On the CPU a Python 1 would be wrapped into a tensor for each of the steps.
                torch._foreach_add_(steps, _ONE if steps[0].is_cpu else 1.0)
            grads = [p.grad for p in params]
            means, squares = ([s[k] for s in states] for k in ("exp_avg", "exp_avg_sq"))
            names = ("lr", "weight_decay", "eps", "amsgrad", "maximize")
            options = dict(zip(("beta1", "beta2"), group["betas"], strict=True))
            options |= {name: group[name] for name in names}
            torch._fused_adam_(params, grads, means, squares, [], steps, **options)


def _count(states: list[dict[str, Tensor]], steps: list[Tensor]) -> list[Tensor]:
    """Add 1 to all steps at once, of which views of one tensor are made if they are not yet."""
    whole = steps[0]._base
    if whole is None or len(whole) != len(steps) or [s for s in steps if s._base is not whole]:
        whole = torch.stack(steps)
        steps = list(whole.unbind())
        for state, step in zip(states, steps, strict=True):
            state["step"] = step
    whole.add_(1.0)
    return steps


def adam_state(optimizer: Optimizer, p: torch.nn.Parameter) -> dict[str, torch.Tensor]:
    """What Adam remembers of a parameter, made as torch.optim does if there is nothing yet."""
    state = optimizer.state[p]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
    return state


def total(out: TensorDictBase) -> Tensor:
    """The sum of all outputs named ``loss_*``, or ``loss`` as in TorchRL's ``DQNLoss``."""
    losses = [value for key, value in out.items() if key.split("_")[0] == "loss"]
    if not losses:
        raise ValueError(f"the loss returned nothing to minimise: {sorted(out.keys())}")
    return sum(losses[1:], losses[0])


def clip_factor(norm: Tensor, limit: float) -> Tensor:
    """What gradients of this norm are multiplied by to stay within the limit."""
    return (limit / (norm + 1e-6)).clamp(max=1.0)


@dataclass
class _AdamGroup:
    """A parameter group and the scalars that change from step to step.

    They are computed in Python's float64, as torch.optim does, and handed to the graph as tensors:
    a number in the graph would compile it anew at every step.
    """

    group: dict[str, Any]
    optimizer: Optimizer
    turn: int
    steps: int = 0
    step_size: Tensor = field(default_factory=lambda: torch.zeros(()))
    root: Tensor = field(default_factory=lambda: torch.zeros(()))
    shrink: Tensor = field(default_factory=lambda: torch.ones(()))

    def advance(self) -> None:
        self.steps += 1
        beta1, beta2 = self.group["betas"]
        self.step_size.fill_(self.group["lr"] / (1 - beta1**self.steps))
        self.root.fill_(math.sqrt(1 - beta2**self.steps))
        self.shrink.fill_(1 - self.group["lr"] * self.group["weight_decay"])

    def step(self, p: nn.Parameter, grad: Tensor) -> None:
        beta1, beta2 = self.group["betas"]
        state = self.optimizer.state[p]
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        if self.group["weight_decay"]:
            if self.group["decoupled_weight_decay"]:
                p.mul_(self.shrink)
            else:
                grad = grad + self.group["weight_decay"] * p
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        p.sub_(mean / (square.sqrt() / self.root + self.group["eps"]) * self.step_size)


@dataclass(eq=False, repr=False)
class GraphStep:
    """Calls the compiled update; optimizers other than plain Adam and AdamW step after it.

    It is told which turns are ``due``: each such choice has a graph of its own, in which the
    parameters of other turns do not move.
    """

    loss: LossModule
    parameters: Sequence[nn.Parameter]
    turns: Sequence[int]
    optimizers: Sequence[Optimizer]
    max_grad_norm: float | None
    move_targets: Callable[[Sequence[bool]], None]

    def __post_init__(self) -> None:
        inductor.prepare()
        self._inside = [opt for opt in self.optimizers if _is_simple_adam(opt)]
        self._after = [opt for opt in self.optimizers if opt not in self._inside]
        self.rebind()
        # Looked up now: the first call would be compiled for keys that are still to be listed.
        getattr(self.loss, "in_keys", None)
        # Never for sizes in general: whether it came to that would depend on what was seen before,
        # which a resumed run has not.
        self._called = False
        self._compiled = torch.compile(self._step, fullgraph=True, dynamic=False)
        self.rows = 0

    def rebind(self) -> None:
        """Look the optimizers' groups and state up again, after they have been loaded."""
        groups: dict[nn.Parameter, _AdamGroup] = {}
        turns = dict(zip(self.parameters, self.turns, strict=True))
        for optimizer in self._inside:
            for group in optimizer.param_groups:
                adams = {turn: _AdamGroup(group, optimizer, turn) for turn in self.turns}
                for p in group["params"]:
                    groups[p] = adam = adams[turns.get(p, 0)]
                    adam.steps = max(adam.steps, int(adam_state(optimizer, p)["step"]))
        self._groups = [groups.get(p) for p in self.parameters]

    def takes(self, batch: TensorDictBase) -> bool:
        """Whether the batch is not smaller than the largest so far, for which there is a graph."""
        self.rows = max(self.rows, rows := batch.numel())
        return rows == self.rows

    @contextmanager
    def paused(self, due: Sequence[bool]) -> Iterator[None]:
        """A context for one step of the turns that are due that is made without the graph."""
        self.write_steps()
        yield
        self._advance(due)
        for p in self.parameters:
            p.grad = None  # the graph was traced without

    def _advance(self, due: Sequence[bool]) -> None:
        for adam in {id(adam): adam for adam in self._groups if adam is not None}.values():
            if due[adam.turn]:
                adam.advance()

    def __call__(self, batch: TensorDictBase, due: tuple[bool, ...]) -> dict[str, Tensor]:
        """One step of the turns that are due."""
        self._advance(due)
        if not self._called:
            self._called = True
            _log.info("compiling the update, which takes up to a minute (composerl warmup) ...")
        metrics, grads = self._compiled(batch, due)
        if self._after:
            for p, grad in zip(self.parameters, grads, strict=True):
                p.grad = grad
            for optimizer in self._after:
                optimizer.step()
                optimizer.zero_grad()
            self.move_targets(due)
        return metrics

    def write_steps(self) -> None:
        """Put the count where torch.optim keeps it, so that eager and compiled states agree."""
        for p, adam in zip(self.parameters, self._groups, strict=True):
            if adam is not None:
                adam.optimizer.state[p]["step"].fill_(adam.steps)

    def _step(
        self, batch: TensorDictBase, due: tuple[bool, ...]
    ) -> tuple[dict[str, Tensor], list[Tensor | None]]:
        out = self.loss(batch)
        moved = [p for p, turn in zip(self.parameters, self.turns, strict=True) if due[turn]]
        found = iter(torch.autograd.grad(total(out), moved, allow_unused=True))
        grads = [next(found) if due[turn] else None for turn in self.turns]
        rest: list[Tensor | None] = []
        with torch.no_grad():
            norm = torch.stack([g.norm() for g in grads if g is not None]).norm()
            if self.max_grad_norm is not None:
                factor = clip_factor(norm, self.max_grad_norm)
                grads = [None if g is None else g * factor for g in grads]
            for p, grad, adam in zip(self.parameters, grads, self._groups, strict=True):
                if adam is not None and grad is not None:
                    adam.step(p, grad)
            if self._after:
                # These optimizers step outside, and the targets must wait for their weights.
                rest = [g if a is None else None for g, a in zip(grads, self._groups, strict=True)]
            else:
                self.move_targets(due)
        return {key: value.detach() for key, value in out.items()} | {"grad_norm": norm}, rest


def _is_simple_adam(optimizer: Optimizer) -> bool:
    return type(optimizer) in (Adam, AdamW, FusedAdam) and not any(
        group["amsgrad"] or group["maximize"] for group in optimizer.param_groups
    )
