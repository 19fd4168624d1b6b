"""Losses as TorchRL LossModules, and the per-sample functions they are made of."""

from composerl.losses.cql import CQLLoss
from composerl.losses.discrete_cql import DiscreteCQLLoss
from composerl.losses.dynamics import DynamicsLoss
from composerl.losses.fqf import FQFLoss
from composerl.losses.functional import (
    advantage_weighted_loss,
    cql_penalty,
    distance,
    expectile_loss,
    gaussian_nll,
    gumbel_rescale_loss,
    quantile_huber_loss,
    squashed_sample,
    xql_value_loss,
)
from composerl.losses.iql import IQLLoss
from composerl.losses.iqn import IQNLoss
from composerl.losses.sac import SACLoss
from composerl.losses.xql import XQLLoss

__all__ = [
    "CQLLoss",
    "DiscreteCQLLoss",
    "DynamicsLoss",
    "FQFLoss",
    "IQLLoss",
    "IQNLoss",
    "SACLoss",
    "XQLLoss",
    "advantage_weighted_loss",
    "cql_penalty",
    "distance",
    "expectile_loss",
    "gaussian_nll",
    "gumbel_rescale_loss",
    "quantile_huber_loss",
    "squashed_sample",
    "xql_value_loss",
]
