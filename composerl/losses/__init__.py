"""Losses as TorchRL LossModules, and the per-sample functions they are made of."""

from composerl.losses.functional import (
    advantage_weighted_loss,
    distance,
    expectile_loss,
    gumbel_rescale_loss,
    xql_value_loss,
)
from composerl.losses.iql import IQLLoss
from composerl.losses.xql import XQLLoss

__all__ = [
    "IQLLoss",
    "XQLLoss",
    "advantage_weighted_loss",
    "distance",
    "expectile_loss",
    "gumbel_rescale_loss",
    "xql_value_loss",
]
