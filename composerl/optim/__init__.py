"""Optimizers, the compiled step, learning-rate schedules, and fitting until convergence."""

from typing import TYPE_CHECKING

from composerl._lazy import lazy

if TYPE_CHECKING:
    from composerl.optim.adam import FusedAdam
    from composerl.optim.fit import DynamicsFit
    from composerl.optim.laprop import LaProp
    from composerl.optim.schedules import constant, cosine, linear, lr_schedule, step, warm_up

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
