"""Networks as TensorDictModules, made from an environment's specs or from plain sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from composerl._lazy import lazy

if TYPE_CHECKING:
    from composerl.modules.actors import Actor, gaussian_actor, tanh_gaussian_actor
    from composerl.modules.building import build
    from composerl.modules.categorical import categorical_actor
    from composerl.modules.critics import twin_q, value
    from composerl.modules.discriminators import Discriminator, RunningNormalize, discriminator
    from composerl.modules.dreamer import DreamerActor, dreamer_actor, dreamer_critic
    from composerl.modules.dynamics import Ensemble, ensemble
    from composerl.modules.mlp import MLP, Normalize
    from composerl.modules.quantile import FractionProposal, QuantileNetwork
    from composerl.modules.quantile_actors import QuantileActor, fqf_network, iqn_network
    from composerl.modules.trunks import Trunk
    from composerl.modules.world import SIZES, Latent, WorldModel, world_model
    from composerl.modules.world_parts import Head, ImageDecoder, ImageEncoder

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
