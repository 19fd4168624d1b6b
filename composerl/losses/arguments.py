"""What the losses are given: numbers, whole numbers, action boxes and critics, checked."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from tensordict import NestedKey
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec

__all__ = [
    "Only", "action_box", "bounds", "check_knob", "check_number", "check_shape", "check_whole",
    "further_options", "independent_copies", "least_entropy", "spec_of_action",
]  # fmt: skip


def check_number(name: str, value: Any, interval: str) -> float:
    """``value`` if it lies in the interval, written as in mathematics, else a ValueError."""
    low, high = map(float, interval[1:-1].split(","))
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    above = number and (low <= value if interval[0] == "[" else low < value)
    below = number and (value <= high if interval[-1] == "]" else value < high)
    if not (above and below):  # NaN fails every comparison and ends here too
        raise ValueError(f"{name} must be in {interval}, got {value!r}")
    return value


def check_knob(name: str, value: float | Tensor, interval: str) -> None:
    """The same for a number; a tensor is what a loss checked when it was made of a number."""
    if not isinstance(value, Tensor):
        check_number(name, value, interval)


def check_shape(
    name: str, x: Tensor, batch: Sequence[int], lead: str = "", trail: str = ""
) -> None:
    """Refuse a tensor that has not the batch's shape after or before a dimension that is named."""
    shape = x.shape[1:] if lead else x.shape[:-1] if trail else x.shape
    if shape != batch:
        wanted = (*[lead] * bool(lead), *batch, *[trail] * bool(trail))
        raise ValueError(f"{name} must have shape {wanted}, got {tuple(x.shape)}".replace("'", ""))


def check_whole(name: str, value: Any, least: int) -> int:
    """``value`` if it is an integer of at least ``least``, else a ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return value


class Only(NamedTuple):
    """The one value of an option that can be honoured here, and why."""

    value: Any
    reason: str


def further_options(
    owner: str, defaults: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """TorchRL's further options of a loss, as given or by default; others are refused.

    So is what differs from a default of ``Only``, for its reason.
    """
    if unknown := given.keys() - defaults.keys():
        raise TypeError(f"{owner} has no arguments {sorted(unknown)}")
    for name, value in given.items():
        default = defaults[name]
        if isinstance(default, Only) and value != default.value:
            raise ValueError(f"{name}={value!r} cannot be honoured: {default.reason}")
    if (mode := given.get("scalar_output_mode")) not in (None, "exclude", "non_tensor"):
        raise ValueError(f"scalar_output_mode must be 'exclude' or 'non_tensor', got {mode!r}")
    plain = {name: x.value if isinstance(x, Only) else x for name, x in defaults.items()}
    return {**plain, **given}


def spec_of_action(
    actor: nn.Module, spec: TensorSpec | None, key: NestedKey = "action"
) -> TensorSpec | None:
    """The spec of an action, a Composite if it has parts, out of a spec or the actor's own."""
    if spec is None:
        spec = getattr(actor, "spec", None)
    if isinstance(spec, Composite):
        spec = spec[key] if key in spec.keys(True) else None
    return spec


def action_box(
    actor: nn.Module, spec: TensorSpec | None, key: NestedKey = "action"
) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds of the actions, from a spec or the actor's own."""
    spec = spec_of_action(actor, spec, key)
    box = bounds(spec)
    if box is None:
        raise ValueError(f"bounded actions are needed: pass a Bounded action_spec, got {spec}")
    return box


def bounds(spec: TensorSpec | None) -> tuple[Tensor, Tensor] | None:
    """Lower and upper bounds of a spec, if it has any and they are finite."""
    space: Any = getattr(spec, "space", None)
    if not hasattr(space, "low") or not torch.isfinite(space.high - space.low).all():
        return None
    return space.low.clone(), space.high.clone()


def least_entropy(spec: TensorSpec | None) -> float:
    """Minus the dimension, or less in a small box: entropy is measured in its units."""
    if spec is None:
        raise ValueError("the size of an action is unknown: pass an action_spec")
    if isinstance(spec, Composite):
        return sum(map(least_entropy, spec.values(True, True)))
    low, high = bounds(spec) or (-torch.ones(spec.shape), torch.ones(spec.shape))
    return -low.numel() + min(0.0, ((high - low) / 2).log().sum().item())


def independent_copies(network: nn.Module | Sequence[nn.Module], number: int) -> nn.ModuleList:
    """``number`` networks: the given list, or one network and re-initialised copies of it.

    Copies are initialised by PyTorch's defaults; a network with parameters that
    ``reset_parameters`` does not reach is refused, as its copies would stay identical.
    """
    if number < 1:
        raise ValueError(f"num_qvalue_nets must be at least 1, got {number}")
    if isinstance(network, (Sequence, nn.ModuleList)):
        if len({id(net) for net in network}) != len(network):
            raise ValueError("the same critic is in the list twice: pass independent networks")
        if len(network) != number:
            raise ValueError(f"num_qvalue_nets={number} needs as many networks, got {len(network)}")
        return nn.ModuleList(network)
    copies = [network]
    for _ in range(number - 1):
        copy = deepcopy(network)
        for module in copy.modules():
            reset: Any = getattr(module, "reset_parameters", None)
            if reset is not None:
                reset()
            elif any(True for _ in module.parameters(recurse=False)):
                raise ValueError(
                    f"{type(module).__name__} has no reset_parameters(), so its copies would be "
                    f"identical: pass a list of {number} networks"
                )
        copies.append(copy)
    return nn.ModuleList(copies)
