"""What recipes share: the settings of every run, and those of the offline ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

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
    as_declared,
    declarations,
)

__all__ = ["LRSchedule", "OfflineConfig", "RunConfig"]

#: The names that :func:`composerl.optim.lr_schedule` knows.
LRSchedule = Literal["constant", "linear", "cosine", "step"]

_Seed = Annotated[int, Rule(lambda n: 0 <= n < 2**32, "in [0, 2**32)")]
_Goal = Annotated[float, Rule(lambda x: not math.isnan(x), "a number")]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What every recipe can be told; a recipe's own ``Config`` adds its hyperparameters."""

    run: ClassVar[Section]
    env: str
    """Gymnasium id of the environment."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment, a JSON object: '{"g": 5}'."""
    seed: _Seed = 0
    """Seed of everything random: weights, batches, environments."""
    steps: Annotated[Count, MAY_CHANGE]
    """Length of the run: gradient steps offline, environment steps online."""
    out: Path | None = None
    """Run directory. Default: runs/<recipe>/<time>-seed<seed>."""
    resume: bool = False
    """Go on with the run in --out, with the configuration found there."""
    config: Path | None = None
    """YAML file with values for these flags (a run's config.yaml is one); flags override it."""
    device: Annotated[str, MAY_CHANGE] = "cpu"
    """Torch device to train on."""
    threads: Annotated[Count, MAY_CHANGE] = 1
    """Torch threads; small networks are fastest with one."""
    compile: bool = False
    """Compile the update: faster steps after about half a minute of compilation."""
    log_every: Annotated[Count, MAY_CHANGE] = 100
    """Steps between rows of training metrics."""
    eval_every: Annotated[Count, MAY_CHANGE] = 1000
    """Steps between evaluations."""
    eval_episodes: Annotated[Count, MAY_CHANGE] = 20
    """Episodes of an evaluation."""
    save_every: Annotated[Count, MAY_CHANGE] = 1000
    """Steps between checkpoints."""
    stop_at: Annotated[_Goal | None, MAY_CHANGE] = None
    """Stop early when an evaluation's mean return reaches this."""
    patience: Annotated[Count | None, MAY_CHANGE] = None
    """Stop early after so many evaluations without a new best."""
    wandb: Annotated[Literal["auto", "online", "offline", "disabled"], MAY_CHANGE] = "auto"
    """Weights & Biases; auto is online when a key is configured, offline otherwise."""
    wandb_project: Annotated[str, MAY_CHANGE] = "composerl"
    """Project in Weights & Biases."""
    wandb_artifacts: Annotated[bool, MAY_CHANGE] = False
    """Also store checkpoints and the final policy as artifacts in Weights & Biases."""
    tensorboard: Annotated[bool, MAY_CHANGE] = False
    """Also write TensorBoard files into the run directory."""
    video: Annotated[bool, MAY_CHANGE] = False
    """Draw an episode of the final policy, as images/episode-*.gif and in Weights & Biases."""

    def __post_init__(self) -> None:
        declared = declarations(type(self))
        for f in fields(self):
            value = as_declared(f.name, getattr(self, f.name), declared[f.name])
            object.__setattr__(self, f.name, value)

    @classmethod
    def implied(cls, given: set[str]) -> dict[str, Any]:
        """Values that follow from which fields are given, on the command line or to ``train``.

        A recipe with fields that exclude each other raises a ValueError here.
        """
        return {}


@dataclass(frozen=True, kw_only=True)
class OfflineConfig(RunConfig):
    """What every recipe can be told that learns from a dataset, and may go on online."""

    run: ClassVar[Section]
    epochs: Annotated[Count | None, MAY_CHANGE] = None
    """Passes over the dataset, instead of --steps: each is rows / batch size steps, rounded up."""

    data: ClassVar[Section]
    dataset: str = "mixed"
    """Behaviour to generate (random scripted noisy mixed) or a file: npz, D4RL HDF5, Minari."""
    dataset_size: Count = 40_000
    """Transitions of a generated dataset."""
    dataset_seed: int = 0
    """Seed of a generated dataset."""
    reward_scale: Finite = 0.1
    """Rewards are multiplied by this."""
    reward_shift: Finite = 0.0
    """Then this is added."""
    normalize: bool = False
    """Standardise observations; the statistics become part of the policy."""
    batch_size: Count = 256
    """Transitions in a batch."""

    networks: ClassVar[Section]
    hidden: tuple[Count, ...] = (128, 128)
    """Widths of the hidden layers."""

    algorithm: ClassVar[Section]
    lr: NonNegative = 1e-3
    """Learning rate."""
    lr_schedule: LRSchedule = "constant"
    """How it falls, offline and once more online: to 0, or (step) by half at each quarter."""
    gamma: Share = 0.99
    """Discount."""
    tau: float = 0.02
    """Share of the critics that enters their targets at each step."""
    max_grad_norm: Positive | None = None
    """Clip gradients to this global norm."""

    online: ClassVar[Section]
    online_steps: Annotated[Whole, MAY_CHANGE] = 0
    """Steps after the offline ones that also act: one environment step, one update."""
    offline_fraction: Share = 0.5
    """Share of the dataset in the batches of the online steps."""

    def gradient_steps(self, rows: int) -> int:
        """The offline steps on a dataset of so many rows: ``steps``, or those of ``epochs``."""
        return (
            self.steps if self.epochs is None else self.epochs * math.ceil(rows / self.batch_size)
        )

    @classmethod
    def implied(cls, given: set[str]) -> dict[str, Any]:
        """``steps`` replaces the ``epochs`` of a file; both at once are refused."""
        if {"steps", "epochs"} <= given:
            raise ValueError(
                "--steps and --epochs cannot be given together: each is a run's length"
            )
        return super().implied(given) | ({"epochs": None} if "steps" in given else {})
