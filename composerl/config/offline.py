"""What recipes share that learn from a dataset."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from composerl.config.fields import MAY_CHANGE, Section
from composerl.config.learning import LearnConfig, OptimizeConfig
from composerl.config.rules import Count, Finite, Share, Whole, Widths
from composerl.config.settings import LRSchedule

__all__ = ["DatasetConfig", "OfflineConfig"]


@dataclass(frozen=True, kw_only=True)
class DatasetConfig(OptimizeConfig):
    """What every recipe can be told that learns from a dataset."""

    step_unit: ClassVar[str] = "updates"

    run: ClassVar[Section]
    steps: Annotated[Count, MAY_CHANGE]
    """Length of the run, in updates (gradient steps)."""
    epochs: Annotated[Count | None, MAY_CHANGE] = None
    """Passes over the dataset, instead of --steps: each is rows / batch size steps, rounded up."""

    data: ClassVar[Section]
    dataset: str = "mixed"
    """Behaviour to generate (random scripted noisy mixed) or a file: npz, D4RL HDF5, Minari."""
    dataset_size: Count = 40_000
    """Transitions of a generated dataset."""
    dataset_seed: Whole = 0
    """Seed of a generated dataset."""
    normalize: bool = False
    """Standardise observations; the statistics become part of the policy."""
    batch_size: Count = 256
    """Transitions in a batch."""

    networks: ClassVar[Section]
    hidden: Widths = (128, 128)
    """Widths of the hidden layers."""

    def loading(self) -> dict[str, Any]:
        """Keyword arguments of ``load_dataset``."""
        return {
            "size": self.dataset_size,
            "seed": self.dataset_seed,
            "env_kwargs": self.env_kwargs,
        }

    def gradient_steps(self, rows: int) -> int:
        """The steps on a dataset of so many rows: ``steps``, or those of ``epochs``."""
        if self.epochs is None:
            return self.steps
        return self.epochs * math.ceil(rows / self.batch_size)

    @classmethod
    def implied(cls, given: set[str]) -> dict[str, Any]:
        """``steps`` replaces the ``epochs`` of a file; both at once are refused."""
        if {"steps", "epochs"} <= given:
            raise ValueError(
                "--steps and --epochs cannot be given together: each is a run's length"
            )
        return super().implied(given) | ({"epochs": None} if "steps" in given else {})


@dataclass(frozen=True, kw_only=True)
class OfflineConfig(DatasetConfig, LearnConfig):
    """What every recipe can be told that learns values from a dataset, and may go on online."""

    data: ClassVar[Section]
    reward_scale: Finite | Literal["returns"] = 0.1
    """Rewards are multiplied by this; returns: by 1000 / (largest - smallest return)."""
    reward_shift: Finite = 0.0
    """Then this is added."""

    algorithm: ClassVar[Section]
    lr_schedule: LRSchedule = "constant"
    """How it falls, offline and once more online: to 0, or (step) by half at each quarter."""
    tau: Share = 0.02
    """Share of the critics that enters their targets at each step."""

    online: ClassVar[Section]
    online_steps: Annotated[Whole, MAY_CHANGE] = 0
    """Steps after the offline ones that also act: one environment step, one update."""
    offline_fraction: Share = 0.5
    """Share of the dataset in the batches of the online steps."""

    def loading(self) -> dict[str, Any]:
        """Keyword arguments of ``load_dataset``."""
        return super().loading() | {
            "reward_scale": self.reward_scale,
            "reward_shift": self.reward_shift,
        }
