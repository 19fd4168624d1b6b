"""Configuration and command line of a recipe. Imports neither torch nor wandb, on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from composerl._lazy import lazy

if TYPE_CHECKING:
    from composerl.config.fields import (
        MAY_CHANGE,
        Count,
        Finite,
        NonNegative,
        Positive,
        Rule,
        Section,
        Share,
        Whole,
        may_change,
    )
    from composerl.config.flags import cli, option, parse
    from composerl.config.online import (
        OffPolicyConfig,
        OnPolicyConfig,
        ValueConfig,
        WorldModelConfig,
    )
    from composerl.config.settings import LRSchedule, OfflineConfig, RunConfig
    from composerl.config.text import config_from_yaml, config_to_dict, suggest

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
