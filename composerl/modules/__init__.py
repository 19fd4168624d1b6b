"""Networks as TensorDictModules, made from an environment's specs or from plain sizes."""

from __future__ import annotations

from typing import Any

from composerl.modules.actors import Actor, gaussian_actor, tanh_gaussian_actor
from composerl.modules.categorical import categorical_actor
from composerl.modules.critics import twin_q, value
from composerl.modules.discriminator import Discriminator, RunningNormalize, discriminator
from composerl.modules.dynamics import Ensemble, ensemble
from composerl.modules.mlp import MLP, Normalize
from composerl.modules.quantile import FractionProposal, QuantileNetwork
from composerl.modules.quantile_actors import QuantileActor, fqf_network, iqn_network
from composerl.modules.trunks import Trunk
from composerl.spaces import Spaces

__all__ = [
    "MLP",
    "Actor",
    "Discriminator",
    "Ensemble",
    "FractionProposal",
    "Normalize",
    "QuantileActor",
    "QuantileNetwork",
    "RunningNormalize",
    "Trunk",
    "build",
    "categorical_actor",
    "discriminator",
    "ensemble",
    "fqf_network",
    "gaussian_actor",
    "iqn_network",
    "tanh_gaussian_actor",
    "twin_q",
    "value",
]

#: The closed list of networks that a policy file may name.
_ACTORS = {
    "categorical_actor": categorical_actor,
    "fqf_network": fqf_network,
    "gaussian_actor": gaussian_actor,
    "iqn_network": iqn_network,
    "tanh_gaussian_actor": tanh_gaussian_actor,
}


def build(description: dict[str, Any]) -> Actor | QuantileActor:
    """The network that an actor's ``description`` stands for, with fresh weights."""
    factory = description.get("factory")
    if not isinstance(factory, str) or factory not in _ACTORS:
        raise ValueError(f"unknown network {factory!r}: expected one of {sorted(_ACTORS)}")
    try:
        return _ACTORS[factory](Spaces(**description["spaces"]), **description["arguments"])
    except (TypeError, KeyError) as error:
        raise ValueError(f"{factory} cannot be built from its description: {error}") from error
