"""Networks from the JSON by which they describe themselves."""

from collections.abc import Callable
from typing import Any

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


def build(description: dict[str, Any]) -> Described:
    """The network that an actor's ``description`` stands for, with fresh weights."""
    factory = description.get("factory")
    if not isinstance(factory, str) or factory not in _ACTORS:
        raise ValueError(f"unknown network {factory!r}: expected one of {sorted(_ACTORS)}")
    try:
        return _ACTORS[factory](Spaces(**description["spaces"]), **description["arguments"])
    except (TypeError, KeyError) as error:
        raise ValueError(f"{factory} cannot be built from its description: {error}") from error
