"""What recipes of one kind share that learn online: by value, by policy with or without replay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from composerl.config.fields import Count, NonNegative, Positive, Section, Share, Whole
from composerl.config.settings import LRSchedule, RunConfig

__all__ = ["OffPolicyConfig", "OnPolicyConfig", "ValueConfig", "WorldModelConfig"]


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(RunConfig):
    """What is the same wherever transitions are replayed."""

    data: ClassVar[Section]
    warmup: Whole
    """Environment steps at the start that act at random and train nothing."""
    buffer_size: Count
    """Transitions kept for replay."""
    batch_size: Count
    """Transitions in a batch."""

    networks: ClassVar[Section]
    hidden: tuple[Count, ...]
    """Widths of the hidden layers."""

    algorithm: ClassVar[Section]
    updates: Count
    """Updates for each step of all environments together."""
    lr: NonNegative
    """Learning rate."""
    lr_schedule: LRSchedule = "constant"
    """How that falls over the run: to 0, or (step) by half at each quarter."""
    gamma: Share = 0.99
    """Discount."""
    tau: float
    """Share of a network that enters its target at each update."""
    max_grad_norm: Positive | None = None
    """Clip gradients to this global norm."""


@dataclass(frozen=True, kw_only=True)
class ValueConfig(ReplayConfig):
    """What every recipe can be told that acts by the values of discrete actions."""

    data: ClassVar[Section]
    num_envs: Count = 8
    """Environments stepped together."""
    warmup: Whole = 400
    epsilon: Share = 0.05
    """Share of random actions in the end."""
    epsilon_steps: Count = 3000
    """Environment steps over which that share falls, from 1."""
    clip_rewards: bool = False
    """Learn from rewards clipped to [-1, 1], as is usual for Atari; returns are told unclipped."""
    buffer_size: Count = 5000
    """Transitions kept for replay; few, as long returns of old policies mislead."""
    batch_size: Count = 64
    n_step: Count = 10
    """Steps of reward before the bootstrap."""
    prioritized: bool = True
    """Replay rows with large errors more often."""
    exponents: tuple[float, float] = (0.6, 0.4)
    """Of the priorities, and of the weights that make up for them."""

    networks: ClassVar[Section]
    hidden: tuple[Count, ...] = (128, 128, 128)
    """Widths of the state's layers and, last, of the head."""
    layer_norm: bool = True
    """LayerNorm in state layers and head: keeps CartPole from collapsing."""
    dueling: bool = False
    """Separate streams for the state's value and the actions' advantages."""

    algorithm: ClassVar[Section]
    updates: Count = 4
    lr: NonNegative = 1e-3
    lr_schedule: LRSchedule = "linear"
    """How it falls over the run; linearly to nearly 0, as the warm-up counts."""
    tau: float = 0.005
    average: Share = 0.996
    """Share of the past in the average of networks that is evaluated and kept; 0: the last one."""
    double: bool = False
    """The online network chooses the target's action."""


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(ReplayConfig):
    """What every recipe can be told that learns continuous actions from replayed transitions."""

    warmup: Whole = 250
    buffer_size: Count = 1_000_000
    """Real transitions kept."""
    batch_size: Count = 256
    hidden: tuple[Count, ...] = (64, 64)
    """Widths of the hidden layers of actor and critics."""
    updates: Count = 1
    """Updates for each environment step."""
    lr: NonNegative = 2e-3
    """Learning rate of actor, critics and temperature."""
    tau: float = 0.02

    algorithm: ClassVar[Section]
    target_entropy: float | None = None
    """Entropy that the temperature is tuned to; minus the number of actions by default."""


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(RunConfig):
    """What every recipe can be told that learns by PPO from what the policy has just done."""

    data: ClassVar[Section]
    num_envs: Count = 8
    """Environments stepped together."""
    rollout: Count = 1024
    """Environment steps between two updates of the policy, over all environments."""
    batch_size: Count = 128
    """Steps in a minibatch."""

    networks: ClassVar[Section]
    hidden: tuple[Count, ...] = (64, 64)
    """Widths of the hidden layers of all networks."""

    algorithm: ClassVar[Section]
    ppo_epochs: Count = 10
    """Passes of PPO over a rollout."""
    lr: NonNegative = 1e-3
    """Learning rate of policy and value."""
    lr_schedule: LRSchedule = "linear"
    """How that falls over the run."""
    gamma: Share = 0.99
    """Discount."""
    gae_lambda: Share = 0.95
    """Between 0 (advantages of one step) and 1 (of the whole return)."""
    clip: float = 0.2
    """PPO's clip of the probability ratio."""
    value_clip: float | None = None
    """Clip the change of the value estimates, too."""
    entropy_coeff: NonNegative = 0.01
    """Weight of the policy's entropy bonus."""
    max_grad_norm: Positive | None = 0.5
    """Clip gradients of policy and value to this global norm."""

    @property
    def minibatches(self) -> int:
        """How many there are in the whole run."""
        of_rollout = math.ceil(self.rollout / self.batch_size)
        return math.ceil(self.steps / self.rollout) * self.ppo_epochs * of_rollout


@dataclass(frozen=True, kw_only=True)
class WorldModelConfig(RunConfig):
    """What every recipe can be told that learns a world model from sequences, and acts in it."""

    data: ClassVar[Section]
    num_envs: Count = 16
    """Environments stepped together."""
    warmup: Whole = 2000
    """Environment steps at the start that act at random and train nothing."""
    buffer_size: Count = 100_000
    """Records kept for replay."""
    batch_size: Count = 16
    """Sequences in a batch."""
    length: Count = 16
    """Records of a sequence; one more in front of them warms the memory up."""

    networks: ClassVar[Section]
    size: Literal["debug", "small", "medium"] = "debug"
    """Of all networks; at 64 x 64 pixels 0.2, 1.6 and 3 million parameters."""

    algorithm: ClassVar[Section]
    train_ratio: Positive = 32.0
    """Records replayed for each environment step."""
    lr: NonNegative = 5e-4
    """Learning rate of actor and critic."""
    model_lr: NonNegative = 3e-3
    """Learning rate of the world model."""
    lr_schedule: LRSchedule = "constant"
    """How both fall over the run."""
    max_grad_norm: Positive = 100.0
    """Clip gradients to this global norm."""
    tau: float = 0.02
    """Share of the critic that enters its moving average at each update."""
    gamma: Share = 1 - 1 / 333
    """Discount."""
