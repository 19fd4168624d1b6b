"""Losses as TorchRL LossModules, and the per-sample functions they are made of."""

from composerl.losses.functional import advantage_weighted_loss, distance, expectile_loss
from composerl.losses.iql import IQLLoss

__all__ = ["IQLLoss", "advantage_weighted_loss", "distance", "expectile_loss"]
