"""Networks as TensorDictModules, made from an environment's specs or from plain sizes."""

from __future__ import annotations

from typing import Any

from composerl.modules.actors import Actor, gaussian_actor, tanh_gaussian_actor
from composerl.modules.categorical import categorical_actor
from composerl.modules.critics import twin_q, value
from composerl.modules.discriminator import Discriminator, RunningNormalize, discriminator
from composerl.modules.dreamer_actor import DreamerActor, dreamer_actor, dreamer_critic
from composerl.modules.dynamics import Ensemble, ensemble
from composerl.modules.mlp import MLP, Normalize
from composerl.modules.quantile import FractionProposal, QuantileNetwork
from composerl.modules.quantile_actors import QuantileActor, fqf_network, iqn_network
from composerl.modules.trunks import Trunk
from composerl.modules.world import SIZES, Latent, WorldModel, world_model
from composerl.modules.world_parts import Head, ImageDecoder, ImageEncoder
from composerl.spaces import Spaces

__all__ = [
    "MLP",
    "SIZES",
    "Actor",
    "Discriminator",
    "DreamerActor",
    "Ensemble",
    "FractionProposal",
    "Head",
    "ImageDecoder",
    "ImageEncoder",
    "Latent",
    "Normalize",
    "QuantileActor",
    "QuantileNetwork",
    "RunningNormalize",
    "Trunk",
    "WorldModel",
    "build",
    "categorical_actor",
    "discriminator",
    "dreamer_actor",
    "dreamer_critic",
    "ensemble",
    "fqf_network",
    "gaussian_actor",
    "iqn_network",
    "tanh_gaussian_actor",
    "twin_q",
    "value",
    "world_model",
]

#: The closed list of networks that a policy file may name.
_ACTORS = {
    "categorical_actor": categorical_actor,
    "dreamer_actor": dreamer_actor,
    "fqf_network": fqf_network,
    "gaussian_actor": gaussian_actor,
    "iqn_network": iqn_network,
    "tanh_gaussian_actor": tanh_gaussian_actor,
}


def build(description: dict[str, Any]) -> Actor | DreamerActor | QuantileActor:
    """The network that an actor's ``description`` stands for, with fresh weights."""
    factory = description.get("factory")
    if not isinstance(factory, str) or factory not in _ACTORS:
        raise ValueError(f"unknown network {factory!r}: expected one of {sorted(_ACTORS)}")
    try:
        return _ACTORS[factory](Spaces(**description["spaces"]), **description["arguments"])
    except (TypeError, KeyError) as error:
        raise ValueError(f"{factory} cannot be built from its description: {error}") from error
