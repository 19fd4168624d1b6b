"""Update: a loss, its optimizer, its targets and its learning rates, stepped together."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchrl.objectives import LossModule
from torchrl.objectives.utils import TargetNetUpdater

from composerl._private import unchecked_tensordict
from composerl.modules.products import large_products
from composerl.optim import inductor
from composerl.optim.adam import FusedAdam, GraphStep, clip_factor, total
from composerl.optim.by_name import (
    check_ownership,
    groups_by_name,
    periods_by_name,
    schedulers_of,
)
from composerl.optim.schedules import Schedule, cosine, linear

__all__ = ["Update", "cosine", "global_norm", "linear"]


class Update:
    """One training step: loss, backward, optimizer, target networks.

    ``Update(loss)`` alone is a working default: one fused Adam over all of the loss's parameters
    and a soft target update where the loss has targets. Works with any TorchRL LossModule.

    Args:
        loss: the loss; every output named ``loss`` or ``loss_...`` is minimised.
        lr: learning rate of the Adam made here, or one per network, by the name under which the
            loss holds it: ``{"actor_network": 1e-4, "default": 3e-4}``.

    Keyword Args:
        optimizer: one or several optimizers over the loss's parameters, instead of Adam.
        schedule: factor of the learning rate as a function of the updates done (see
            :mod:`composerl.optim.schedules`), for all networks or by name; or one or several
            ``torch.optim.lr_scheduler`` objects of the given optimizers, stepped at each update.
        tau: share of the online network that enters the target at each update.
        target: ``"soft"`` for that, a TorchRL updater, or None for no target update.
        every: networks and targets that move only at every so many-th update, by what their names
            begin with: ``{"actor_network": 2, "target_": 2}`` is TD3's delay.
        max_grad_norm: gradients are scaled down to this global norm.
        compile: run the whole update as one compiled graph; the same numbers to rounding. Adam
            and AdamW are part of the graph, other optimizers step right after it. A recipe asks
            ``run.compiles`` whether it pays; ``"on"`` compiles, ``"off"`` and ``"auto"`` do not.
            A loss that has ``compile_parts`` (Dreamer's) is asked to compile these instead.
            Batches smaller than the largest so far, as the last of an epoch, are not worth a
            second graph: they are computed eagerly.

    Calling it with a batch returns a TensorDict of detached scalars: the loss's outputs,
    ``grad_norm`` (before clipping) and ``lr`` (``lr_<name>`` for each name in ``lr`` and
    ``schedule``).
    """

    def __init__(
        self,
        loss: LossModule,
        lr: float | Mapping[str, float] = 3e-4,
        *,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        schedule: Schedule
        | Mapping[str, Schedule]
        | LRScheduler
        | Sequence[LRScheduler]
        | None = None,
        tau: float = 0.005,
        target: str | TargetNetUpdater | None = "soft",
        every: Mapping[str, int] | None = None,
        max_grad_norm: float | None = None,
        compile: bool | str = False,
    ) -> None:
        if not 0 < tau <= 1:
            raise ValueError(f"tau must be in (0, 1], got {tau}")
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise ValueError(f"max_grad_norm must be positive, got {max_grad_norm}")
        if getattr(loss, "reduction", "mean") == "none":
            raise ValueError("Update needs a loss with reduction 'mean' or 'sum', got 'none'")
        if target not in ("soft", None) and not isinstance(target, TargetNetUpdater):
            raise ValueError(f"target must be 'soft', None or a TorchRL updater, got {target!r}")
        if compile not in (True, False, "on", "off", "auto"):
            raise ValueError(f"compile must be True, False, 'on', 'off' or 'auto', got {compile!r}")
        self.loss = loss
        self.updates = 0
        self.max_grad_norm = max_grad_norm
        trained = {name: p for name, p in loss.named_parameters() if p.requires_grad}
        self._parameters = list(trained.values())
        by_name: Mapping[str, Any] = schedule if isinstance(schedule, Mapping) else {}
        for_all = schedule if callable(schedule) else None
        if optimizer is None:
            self.optimizers: list[Optimizer] = [FusedAdam(groups_by_name(loss, lr, by_name))]
        else:
            self.optimizers = [optimizer] if isinstance(optimizer, Optimizer) else [*optimizer]
            if by_name:
                raise ValueError("schedules by name need the default optimizer; pass one function")
            check_ownership(loss, self.optimizers)
        self._schedulers = schedulers_of(schedule, self.optimizers)
        self._rates = [(g["lr"], by_name.get(g.get("name", ""), for_all)) for g in self._groups()]
        self._set_rates()
        self._updater = target if isinstance(target, TargetNetUpdater) else None
        targets = _targets(loss) if target == "soft" else {}
        period = periods_by_name(every or {}, [*trained], [*targets])
        # Those of period k move at the k-th update, the 2 k-th, ...; of period 1 at all.
        self._periods = sorted({1, *period.values()})
        self._turns = [self._periods.index(period[name]) for name in trained]
        self._soft: list[tuple[list[Tensor], list[Tensor]]] = []
        self._copied: list[list[tuple[Tensor, Tensor]]] = []  # buffers
        for k in self._periods:
            pairs = [pair for name in targets if period[name] == k for pair in targets[name]]
            soft = [pair for pair in pairs if pair[1].requires_grad]
            self._soft.append(([target for target, _ in soft], [source for _, source in soft]))
            self._copied.append([pair for pair in pairs if not pair[1].requires_grad])
        self._tau = tau
        self._graph: GraphStep | None = None
        if compile in (True, "on") and hasattr(loss, "compile_parts"):
            inductor.prepare()
            loss.compile_parts()
        elif compile in (True, "on"):
            self._graph = GraphStep(
                loss, self._parameters, self._turns, self.optimizers, max_grad_norm,
                self._move_targets,
            )  # fmt: skip
            for scheduler in self._schedulers:  # it warns if its optimizer has never stepped
                scheduler.optimizer.zero_grad()
                scheduler.optimizer.step()

    def __call__(self, batch: TensorDictBase) -> TensorDict:
        """Update on a batch; returns detached metrics."""
        due = tuple((self.updates + 1) % period == 0 for period in self._periods)
        if self._graph is None:
            metrics = self._eager_step(batch, due)
        elif self._graph.takes(batch):
            metrics = self._graph(batch, due)
        else:
            with self._graph.paused(due):
                metrics = self._eager_step(batch, due)
        if self._updater is not None:
            self._updater.step()
        for group in self._groups():
            name = group.get("name", "default")
            key = "lr" if name == "default" else f"lr_{name}"
            if key not in metrics:
                metrics[key] = torch.tensor(float(group["lr"]))
        self.updates += 1
        self._set_rates()
        for scheduler in self._schedulers:
            scheduler.step()
        return unchecked_tensordict(metrics, torch.Size([]))

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on exactly: loss and targets, optimizers, schedulers, count."""
        if self._graph is not None:
            self._graph.write_steps()
        return {
            "updates": self.updates,
            "loss": dict(self.loss.state_dict()),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "schedulers": [scheduler.state_dict() for scheduler in self._schedulers],
            "target": self._updater.state_dict() if self._updater is not None else None,
            "compiled_rows": self._graph.rows if self._graph is not None else 0,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, from an eager or a compiled Update alike."""
        self.updates = state["updates"]
        self.loss.load_state_dict(state["loss"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        for scheduler, saved in zip(self._schedulers, state.get("schedulers", ()), strict=True):
            scheduler.load_state_dict(saved)
        if self._updater is not None:
            self._updater.load_state_dict(state["target"])
        if self._graph is not None:
            self._graph.rebind()
            self._graph.rows = state.get("compiled_rows", 0)
        self._set_rates()

    def _eager_step(self, batch: TensorDictBase, due: Sequence[bool]) -> dict[str, Tensor]:
        for p in self._parameters:
            p.grad = None  # whatever other code has left there
        moved = None
        if not all(due):  # optimizers pass over what has no gradient
            turns = zip(self._parameters, self._turns, strict=True)
            moved = [p for p, turn in turns if due[turn]]
        large = getattr(self.loss, "large_products", False)
        with large_products() if large else nullcontext():
            out = self.loss(batch)
            total(out).backward(inputs=moved)
        grads = [p.grad for p in self._parameters if p.grad is not None]
        norm = global_norm(grads)
        if self.max_grad_norm is not None:
            torch._foreach_mul_(grads, clip_factor(norm, self.max_grad_norm))
        for optimizer in self.optimizers:
            optimizer.step()
        self._move_targets(due)
        return {key: value.detach() for key, value in out.items()} | {"grad_norm": norm}

    @torch.no_grad()
    def _move_targets(self, due: Sequence[bool]) -> None:
        for now, (targets, sources), copied in zip(due, self._soft, self._copied, strict=True):
            if now and targets:
                torch._foreach_lerp_(targets, sources, self._tau)
            for target, source in copied if now else ():
                target.copy_(source)

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def _set_rates(self) -> None:
        for group, (base, schedule) in zip(self._groups(), self._rates, strict=True):
            if schedule is not None:
                group["lr"] = base * schedule(self.updates)


def global_norm(tensors: Sequence[Tensor]) -> Tensor:
    """The norm of all tensors together, at half the cost of ``get_total_norm`` on a CPU.

    Small tensors are joined, as a call for each would cost more than the copy; large ones are not.
    """
    squares, small = [], []
    for tensor in tensors:
        flat = tensor.reshape(-1)
        if flat.numel() > 4096:
            squares.append(torch.dot(flat, flat))
        else:
            small.append(flat)
    if small:
        squares.append(torch.cat(small).square().sum())
    return torch.stack(squares).sum().sqrt()


def _targets(loss: LossModule) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """(target, source) of every tensor of the target networks, by their names."""
    found: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for name, _ in loss.named_children():
        if name.startswith("target_") and name.endswith("_params"):
            loss._has_update_associated[name[len("target_") : -len("_params")]] = True
            source = getattr(loss, name.removeprefix("target_"))
            found[name] = [
                (value, source.get(key)) for key, value in getattr(loss, name).items(True, True)
            ]
    return found
