"""What recipes of all kinds share that learn."""

from dataclasses import dataclass
from typing import ClassVar

from composerl.config.fields import Section
from composerl.config.rules import NonNegative, Positive, Share
from composerl.config.settings import LRSchedule, RunConfig

__all__ = ["LearnConfig", "OptimizeConfig"]


@dataclass(frozen=True, kw_only=True)
class OptimizeConfig(RunConfig):
    """What is the same in all kinds."""

    algorithm: ClassVar[Section]
    lr: NonNegative = 1e-3
    """Learning rate."""
    lr_schedule: LRSchedule = "constant"
    """How it falls over the run: to 0, or (step) by half at each quarter."""
    max_grad_norm: Positive | None = None
    """Clip gradients to this global norm."""


@dataclass(frozen=True, kw_only=True)
class LearnConfig(OptimizeConfig):
    """What is the same wherever returns count."""

    algorithm: ClassVar[Section]
    gamma: Share = 0.99
    """Discount."""
