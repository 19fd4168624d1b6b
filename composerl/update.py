"""Update: a loss, its optimizer, its targets and its learning rates, stepped together."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.optim import Optimizer
from torchrl.objectives import LossModule
from torchrl.objectives.utils import TargetNetUpdater

from composerl.optim.adam import FusedAdam, GraphStep, clip_factor, total
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
            :mod:`composerl.optim.schedules`), for all networks or by name.
        tau: share of the online network that enters the target at each update.
        target: ``"soft"`` for that, a TorchRL updater, or None for no target update.
        max_grad_norm: gradients are scaled down to this global norm.
        compile: run the whole update as one compiled graph; the same numbers to rounding. Adam
            and AdamW are part of the graph, other optimizers step right after it.

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
        schedule: Schedule | Mapping[str, Schedule] | None = None,
        tau: float = 0.005,
        target: str | TargetNetUpdater | None = "soft",
        max_grad_norm: float | None = None,
        compile: bool = False,
    ) -> None:
        if not 0 < tau <= 1:
            raise ValueError(f"tau must be in (0, 1], got {tau}")
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise ValueError(f"max_grad_norm must be positive, got {max_grad_norm}")
        if getattr(loss, "reduction", "mean") == "none":
            raise ValueError("Update needs a loss with reduction 'mean' or 'sum', got 'none'")
        if target not in ("soft", None) and not isinstance(target, TargetNetUpdater):
            raise ValueError(f"target must be 'soft', None or a TorchRL updater, got {target!r}")
        self.loss = loss
        self.updates = 0
        self.max_grad_norm = max_grad_norm
        self._parameters = [p for p in loss.parameters() if p.requires_grad]
        by_name: Mapping[str, Any] = schedule if isinstance(schedule, Mapping) else {}
        for_all = None if isinstance(schedule, Mapping) else schedule
        if optimizer is None:
            self.optimizers: list[Optimizer] = [FusedAdam(_groups_by_name(loss, lr, by_name))]
        else:
            self.optimizers = [optimizer] if isinstance(optimizer, Optimizer) else [*optimizer]
            if by_name:
                raise ValueError("schedules by name need the default optimizer; pass one function")
            _check_ownership(loss, self.optimizers)
        self._rates = [(g["lr"], by_name.get(g.get("name", ""), for_all)) for g in self._groups()]
        self._set_rates()
        self._updater = target if isinstance(target, TargetNetUpdater) else None
        pairs = _target_pairs(loss) if target == "soft" else []
        soft = [pair for pair in pairs if pair[1].requires_grad]
        self._soft = [list(tensors) for tensors in zip(*soft, strict=True)]
        self._copied = [pair for pair in pairs if not pair[1].requires_grad]  # buffers
        self._tau = tau
        self._graph: GraphStep | None = None
        if compile:
            self._graph = GraphStep(
                loss, self._parameters, self.optimizers, max_grad_norm, self._move_targets
            )

    def __call__(self, batch: TensorDictBase) -> TensorDict:
        """Update on a batch; returns detached metrics."""
        metrics = self._eager_step(batch) if self._graph is None else self._graph(batch)
        if self._updater is not None:
            self._updater.step()
        for group in self._groups():
            name = group.get("name", "default")
            key = "lr" if name == "default" else f"lr_{name}"
            metrics.setdefault(key, torch.tensor(float(group["lr"])))
        self.updates += 1
        self._set_rates()
        return TensorDict(metrics)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on exactly: loss and targets, optimizers, count."""
        if self._graph is not None:
            self._graph.write_steps()
        return {
            "updates": self.updates,
            "loss": dict(self.loss.state_dict()),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "target": self._updater.state_dict() if self._updater is not None else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, from an eager or a compiled Update alike."""
        self.updates = state["updates"]
        self.loss.load_state_dict(state["loss"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        if self._updater is not None:
            self._updater.load_state_dict(state["target"])
        if self._graph is not None:
            self._graph.rebind()
        self._set_rates()

    def _eager_step(self, batch: TensorDictBase) -> dict[str, Tensor]:
        for p in self._parameters:
            p.grad = None  # whatever other code has left there
        out = self.loss(batch)
        total(out).backward()
        grads = [p.grad for p in self._parameters if p.grad is not None]
        norm = global_norm(grads)
        if self.max_grad_norm is not None:
            torch._foreach_mul_(grads, clip_factor(norm, self.max_grad_norm))
        for optimizer in self.optimizers:
            optimizer.step()
        self._move_targets()
        return {key: value.detach() for key, value in out.items()} | {"grad_norm": norm}

    @torch.no_grad()
    def _move_targets(self) -> None:
        if self._soft:
            torch._foreach_lerp_(self._soft[0], self._soft[1], self._tau)
        for target, source in self._copied:
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
    flat = [tensor.reshape(-1) for tensor in tensors]
    large = [torch.dot(x, x) for x in flat if x.numel() > 4096]
    small = [x for x in flat if x.numel() <= 4096]
    joined = [torch.cat(small).square().sum()] if small else []
    return torch.stack([*large, *joined]).sum().sqrt()


def _groups_by_name(
    loss: LossModule, lr: float | Mapping[str, float], scheduled: Iterable[str]
) -> list[dict[str, Any]]:
    """Parameter groups, each parameter under the longest of the names it starts with."""
    rates = dict(lr) if isinstance(lr, Mapping) else {"default": lr}
    names = {*rates, *scheduled} - {"default"}
    groups: dict[str, list[nn.Parameter]] = {name: [] for name in [*sorted(names), "default"]}
    for parameter_name, parameter in loss.named_parameters():
        if parameter.requires_grad:
            found = [name for name in names if parameter_name.startswith(name)]
            groups[max(found, key=len) if found else "default"].append(parameter)
    for name in names:
        if not groups[name]:
            known = sorted({name.split(".")[0] for name, _ in loss.named_parameters()})
            raise ValueError(f"no parameter of the loss is under {name!r}; its networks: {known}")
    if groups["default"] and "default" not in rates:
        raise ValueError(f"lr names {sorted(rates)} leave parameters out: add a 'default' rate")
    return [
        {"params": params, "lr": rates.get(name, rates.get("default")), "name": name}
        for name, params in groups.items()
        if params
    ]


def _check_ownership(loss: LossModule, optimizers: Sequence[Optimizer]) -> None:
    owned = [p for opt in optimizers for group in opt.param_groups for p in group["params"]]
    if len({id(p) for p in owned}) != len(owned):
        raise ValueError("a parameter is in more than one optimizer or group")
    for name, parameter in loss.named_parameters():
        if parameter.requires_grad and not any(parameter is p for p in owned):
            raise ValueError(f"no optimizer has the loss's parameter {name!r}")


def _target_pairs(loss: LossModule) -> list[tuple[Tensor, Tensor]]:
    """(target, source) of every tensor of the target networks."""
    pairs: list[tuple[Tensor, Tensor]] = []
    for name, _ in loss.named_children():
        if name.startswith("target_") and name.endswith("_params"):
            loss._has_update_associated[name[len("target_") : -len("_params")]] = True
            source = getattr(loss, name.removeprefix("target_"))
            pairs += [
                (value, source.get(key)) for key, value in getattr(loss, name).items(True, True)
            ]
    return pairs
