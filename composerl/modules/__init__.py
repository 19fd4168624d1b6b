"""Networks as TensorDictModules, made from an environment's specs or from plain sizes.

Arguments that the factories have in common, and their own docstrings do not repeat:

    env: environment or :class:`~composerl.envs.spaces.Spaces` to read the sizes from.
    hidden: widths of the hidden layers.
    normalize: mean and standard deviation of the observations, to be part of the network.
    **layers: ``activation``, ``layer_norm`` and ``init`` of :class:`~composerl.modules.MLP`.
"""

from typing import TYPE_CHECKING

from composerl._lazy import lazy

if TYPE_CHECKING:
    from composerl.modules.actors import (
        Actor,
        categorical_actor,
        gaussian_actor,
        tanh_gaussian_actor,
        twin_q,
        value,
    )
    from composerl.modules.building import build
    from composerl.modules.deterministic import (
        DeterministicActor,
        QActor,
        deterministic_actor,
        q_network,
    )
    from composerl.modules.discriminators import Discriminator, RunningNormalize, discriminator
    from composerl.modules.dreamer import DreamerActor, dreamer_actor, dreamer_critic
    from composerl.modules.dynamics import Ensemble, ensemble
    from composerl.modules.mlp import MLP, Normalize, Trunk
    from composerl.modules.quantile import FractionProposal, QuantileNetwork
    from composerl.modules.quantile_actors import QuantileActor, fqf_network, iqn_network
    from composerl.modules.world import Latent, WorldModel, world_model
    from composerl.modules.world_images import (
        ImageDecoder,
        ImageEncoder,
        PooledDecoder,
        PooledEncoder,
    )
    from composerl.modules.world_parts import Head
    from composerl.modules.world_size import SIZES, WorldSize

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
