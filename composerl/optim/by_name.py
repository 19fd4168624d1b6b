"""What belongs to which part of a loss, by its name: learning rates, periods, optimizers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torchrl.objectives import LossModule

__all__ = ["check_ownership", "groups_by_name", "periods_by_name", "schedulers_of"]


def groups_by_name(
    loss: LossModule, lr: float | Mapping[str, float], scheduled: Iterable[str]
) -> list[dict[str, Any]]:
    """Parameter groups, each parameter under the longest of the names it starts with."""
    rates = dict(lr) if isinstance(lr, Mapping) else {"default": lr}
    names = {*rates, *scheduled} - {"default"}
    groups: dict[str, list[nn.Parameter]] = {name: [] for name in [*sorted(names), "default"]}
    for parameter_name, parameter in loss.named_parameters():
        if parameter.requires_grad:
            groups[_longest(names, parameter_name) or "default"].append(parameter)
    _check_found([name for name in names if not groups[name]], dict(loss.named_parameters()))
    if groups["default"] and "default" not in rates:
        raise ValueError(f"lr names {sorted(rates)} leave parameters out: add a 'default' rate")
    return [
        {"params": params, "lr": rates.get(name, rates.get("default")), "name": name}
        for name, params in groups.items()
        if params
    ]


def periods_by_name(
    every: Mapping[str, int], parameters: Sequence[str], targets: Sequence[str]
) -> dict[str, int]:
    """At every which update each of these parameters and targets moves: 1 unless it is named."""
    for name, period in every.items():
        if isinstance(period, bool) or not isinstance(period, int) or period < 1:
            raise ValueError(f"every[{name!r}] must be an integer of at least 1, got {period!r}")
    found = {name: _longest(every, name) for name in (*parameters, *targets)}
    _check_found(every.keys() - {*found.values()}, found)
    periods = {name: 1 if key is None else every[key] for name, key in found.items()}
    if all(periods[name] > 1 for name in parameters):
        raise ValueError(f"every={dict(every)} leaves no network that moves at each update")
    return periods


def schedulers_of(schedule: Any, optimizers: Sequence[Optimizer]) -> list[LRScheduler]:
    """The schedulers of torch among what is given as a schedule; they must be of the optimizers."""
    given = schedule if isinstance(schedule, Sequence) else [schedule]
    found = [one for one in given if isinstance(one, LRScheduler)]
    for one in found:
        if isinstance(one, ReduceLROnPlateau):
            raise ValueError(
                "ReduceLROnPlateau looks at a metric, which Update cannot know: step it"
            )
        if not any(one.optimizer is optimizer for optimizer in optimizers):
            raise ValueError(
                f"the optimizer of {type(one).__name__} is not the Update's: pass it as optimizer="
            )
    if isinstance(schedule, Sequence) and len(found) != len(schedule):
        raise ValueError(
            f"several schedules must all be torch.optim.lr_scheduler's, got {schedule}"
        )
    return found


def check_ownership(loss: LossModule, optimizers: Sequence[Optimizer]) -> None:
    """Each trained parameter of the loss must be in one optimizer, and in one group of it."""
    owned = [p for opt in optimizers for group in opt.param_groups for p in group["params"]]
    if len({id(p) for p in owned}) != len(owned):
        raise ValueError("a parameter is in more than one optimizer or group")
    for name, parameter in loss.named_parameters():
        if parameter.requires_grad and not any(parameter is p for p in owned):
            raise ValueError(f"no optimizer has the loss's parameter {name!r}")


def _longest(names: Iterable[str], of: str) -> str | None:
    """The longest of the names that this one starts with."""
    return max((name for name in names if of.startswith(name)), key=len, default=None)


def _check_found(absent: Iterable[str], known: Iterable[str]) -> None:
    for name in absent:
        networks = sorted({other.split(".")[0] for other in known})
        raise ValueError(f"no part of the loss is under {name!r}; its networks: {networks}")
