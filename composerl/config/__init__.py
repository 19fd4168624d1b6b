"""Configuration and command line of a recipe. Imports neither torch nor wandb, on purpose."""

from typing import TYPE_CHECKING

from composerl._lazy import lazy

if TYPE_CHECKING:
    from composerl.config.fields import MAY_CHANGE, Section, may_change, suggest
    from composerl.config.flags import (
        cli,
        config_start,
        look_here,
        option,
        parse,
        start_with,
        wait_passively,
    )
    from composerl.config.kinds import (
        OffPolicyConfig,
        OnPolicyConfig,
        SizeName,
        ValueConfig,
        WorldModelConfig,
    )
    from composerl.config.offline import DatasetConfig, OfflineConfig
    from composerl.config.place import check_place, check_run, require_recipe, runs_at
    from composerl.config.rules import (
        Count,
        Finite,
        NonNegative,
        Positive,
        Rule,
        Share,
        Whole,
        Widths,
    )
    from composerl.config.settings import (
        LRSchedule,
        RunConfig,
        config_from_yaml,
        config_to_dict,
        preset_files,
    )

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
