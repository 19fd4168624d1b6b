"""Networks from the JSON by which they describe themselves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from composerl._schema import short
from composerl.envs.spaces import Spaces
from composerl.modules.actors import Actor, categorical_actor, gaussian_actor, tanh_gaussian_actor
from composerl.modules.deterministic import (
    DeterministicActor,
    QActor,
    deterministic_actor,
    q_network,
)
from composerl.modules.dreamer import DreamerActor, dreamer_actor
from composerl.modules.quantile_actors import QuantileActor, fqf_network, iqn_network

__all__ = ["build"]

WIDEST, MOST_LAYERS = 1 << 16, 64

Described = Actor | DeterministicActor | DreamerActor | QActor | QuantileActor
"""What describes itself."""

#: The closed list of networks that a policy file may name.
_ACTORS: dict[str, Callable[..., Described]] = {
    "categorical_actor": categorical_actor,
    "deterministic_actor": deterministic_actor,
    "dreamer_actor": dreamer_actor,
    "fqf_network": fqf_network,
    "gaussian_actor": gaussian_actor,
    "iqn_network": iqn_network,
    "q_network": q_network,
    "tanh_gaussian_actor": tanh_gaussian_actor,
}


def build(description: dict[str, Any], room: int | None = None) -> Described:
    """The network that an actor's ``description`` stands for, with fresh weights.

    One that needs more numbers than there is ``room`` for is refused before they are filled in.
    """
    factory = description.get("factory")
    if not isinstance(factory, str) or factory not in _ACTORS:
        raise ValueError(f"unknown network {short(factory)}: expected one of {sorted(_ACTORS)}")
    _require_few(description.get("arguments"))
    try:
        with _bounded(room):
            return _ACTORS[factory](Spaces(**description["spaces"]), **description["arguments"])
    except Exception as error:  # whatever arguments lead to that nobody has checked
        raise ValueError(f"{factory} cannot be built from its description: {error}") from error


def _require_few(arguments: Any) -> None:
    """Refuse numbers of layers, widths and quantiles that no policy has."""
    values = arguments.values() if isinstance(arguments, dict) else arguments
    if isinstance(arguments, (dict, list, tuple)):
        if len(arguments) > MOST_LAYERS:
            raise ValueError(f"a network of {len(arguments)} arguments or layers is refused")
        for value in values:
            _require_few(value)
    elif isinstance(arguments, int) and abs(arguments) > WIDEST:
        raise ValueError(f"a network with {arguments} in its description is refused")
    if isinstance(arguments, dict):
        for name in ("layers", "head_layers"):
            count = arguments.get(name, 1)
            if not isinstance(count, int) or not 0 <= count <= MOST_LAYERS:
                raise ValueError(f"a network of {short(count)} {name} is refused")


@contextmanager
def _bounded(room: int | None) -> Iterator[None]:
    """While networks are made: they may take so many numbers."""
    taken = 0

    def count(_module: nn.Module, name: str, tensor: Any) -> None:
        nonlocal taken
        taken += 0 if tensor is None else tensor.numel()
        if room is not None and taken > room:
            raise ValueError(f"it is larger than the {room} numbers that there are for it")

    hooks = (
        register_module_parameter_registration_hook(count),
        register_module_buffer_registration_hook(count),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
