"""Losses as TorchRL LossModules, and the per-sample functions they are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from composerl._lazy import lazy

if TYPE_CHECKING:
    from composerl.losses.bc import BCLoss
    from composerl.losses.cql import CQLLoss
    from composerl.losses.discrete_cql import DiscreteCQLLoss
    from composerl.losses.dreamer import DreamerLoss
    from composerl.losses.dreamer_math import (
        categorical_kl,
        free_nats_kl,
        lambda_return,
        return_range,
        symexp,
        symexp_bins,
        symlog,
        two_hot,
        two_hot_loss,
        two_hot_mean,
    )
    from composerl.losses.dynamics import DynamicsLoss
    from composerl.losses.fqf import FQFLoss
    from composerl.losses.functional import (
        advantage_weighted_loss,
        clipped_objective,
        cql_penalty,
        discriminator_loss,
        distance,
        expectile_loss,
        gaussian_nll,
        gumbel_rescale_loss,
        quantile_huber_loss,
        xql_value_loss,
    )
    from composerl.losses.gail import GAILLoss
    from composerl.losses.iql import IQLLoss
    from composerl.losses.iqn import IQNLoss
    from composerl.losses.ppo import ClipPPOLoss
    from composerl.losses.rewards import GAILReward, gail_reward
    from composerl.losses.sac import SACLoss
    from composerl.losses.squashed import squashed_sample
    from composerl.losses.world_model import WorldModelLoss
    from composerl.losses.xql import XQLLoss

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
