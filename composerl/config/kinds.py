"""What recipes of one kind share that act: by value, by policy with or without replay, by model."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from composerl.config.fields import MAY_CHANGE, Section
from composerl.config.learning import LearnConfig
from composerl.config.rules import Count, Finite, NonNegative, Positive, Share, Whole, Widths
from composerl.config.settings import LRSchedule

__all__ = ["OffPolicyConfig", "OnPolicyConfig", "SizeName",
           "ValueConfig", "WorldModelConfig"]  # fmt: skip

#: The names that :data:`composerl.modules.SIZES` has.
SizeName = Literal["debug", "small", "medium", "1m", "12m", "25m", "50m", "100m", "200m"]


@dataclass(frozen=True, kw_only=True)
class ActingConfig(LearnConfig):
    """What is the same wherever a policy acts from the start."""

    step_unit: ClassVar[str] = "environment steps"

    run: ClassVar[Section]
    steps: Annotated[Count, MAY_CHANGE]
    """Length of the run, in environment steps, those of all environments together."""

    data: ClassVar[Section]
    num_envs: Count = 8
    """Environments stepped together."""
    workers: Annotated[Whole, MAY_CHANGE] = 0
    """Processes of Ray (extra ray) that step them, at RAY_ADDRESS or here; 0: this process. The
    numbers are the same with any number of them, on CPUs of one kind. They divide the environments'
    cost, and not that of asking the policy: they pay where a step takes longer than that."""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(ActingConfig):
    """What is the same wherever a policy acts and learns from replay."""

    data: ClassVar[Section]
    collect: Literal["sync", "async"] = "sync"
    """Async: workers act while the learner updates, by weights one update old, and divide the cost
    of the policy too. Faster, and no longer the numbers of one process: those of so many workers,
    and of when checkpoints are."""
    warmup: Whole
    """Environment steps at the start that act at random and train nothing."""
    buffer_size: Count
    """Transitions kept for replay."""
    batch_size: Count = 256
    """Transitions in a batch."""

    algorithm: ClassVar[Section]
    tau: Share = 0.02
    """Share of a network that enters its target at each update."""


@dataclass(frozen=True, kw_only=True)
class ValueConfig(ReplayConfig):
    """What every recipe can be told that acts by the values of discrete actions."""

    data: ClassVar[Section]
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
    exponents: tuple[NonNegative, NonNegative] = (0.6, 0.4)
    """Of the priorities, and of the weights that make up for them."""
    beta_end: Share | None = None
    """What the latter has grown to, along a line, at the end of the run; it stays by default."""

    networks: ClassVar[Section]
    hidden: Widths = (128, 128, 128)
    """Widths of the state's layers and, last, of the head."""
    layer_norm: bool = True
    """LayerNorm in state layers and head: keeps CartPole from collapsing."""
    dueling: bool = False
    """Separate streams for the state's value and the actions' advantages."""

    algorithm: ClassVar[Section]
    updates: Count = 4
    """Updates for each step of all environments together."""
    lr_schedule: LRSchedule = "linear"
    """How it falls over the run; linearly to nearly 0, as the warm-up counts."""
    tau: Share = 0.005
    average: Share = 0.996
    """Share of the past in the average of networks that is evaluated and kept; 0: the last one."""
    double: bool = False
    """The online network chooses the target's action."""

    def beta(self, step: int) -> float:
        """The weights' exponent at an environment step."""
        start = self.exponents[1]
        if self.beta_end is None:
            return start
        return start + (self.beta_end - start) * min(1.0, step / self.steps)


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(ReplayConfig):
    """What every recipe can be told that learns continuous actions from replayed transitions."""

    data: ClassVar[Section]
    num_envs: Count = 1
    warmup: Whole = 250
    buffer_size: Count = 1_000_000
    """Real transitions kept."""

    networks: ClassVar[Section]
    hidden: Widths = (64, 64)
    """Widths of the hidden layers of actor and critics."""
    layer_norm: bool = False
    """LayerNorm in the critics: keeps values in bounds where there are many updates for a step."""

    algorithm: ClassVar[Section]
    updates: Count = 1
    """Updates for each environment step."""
    lr: NonNegative = 2e-3
    """Learning rate of actor and critics."""
    target_entropy: Finite | None = None
    """Entropy that the temperature is tuned to; minus the number of actions by default."""
    alpha_init: Positive = 1.0
    """Temperature at the start."""
    alpha_lr: NonNegative | None = None
    """Learning rate of the temperature; that of --lr by default."""

    def sac_options(self) -> dict[str, Any]:
        """Keyword arguments of ``SACLoss``."""
        return {
            "alpha_init": self.alpha_init,
            "target_entropy": self.target_entropy,
            "gamma": self.gamma,
        }

    def rates(self) -> dict[str, float]:
        """The learning rates by the names of parameters, for ``Update``."""
        return {
            "log_alpha": self.lr if self.alpha_lr is None else self.alpha_lr,
            "default": self.lr,
        }


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(ActingConfig):
    """What every recipe can be told that learns by PPO from what the policy has just done."""

    run: ClassVar[Section]
    # 20 episodes of CartPole take as long as learning from 800 steps of it.
    eval_every: Annotated[Count, MAY_CHANGE] = 5000

    data: ClassVar[Section]
    rollout: Count = 1024
    """Environment steps between two updates of the policy, over all environments."""
    batch_size: Count = 128
    """Steps in a minibatch."""

    networks: ClassVar[Section]
    hidden: Widths = (64, 64)
    """Widths of the hidden layers of all networks."""

    algorithm: ClassVar[Section]
    ppo_epochs: Count = 10
    """Passes of PPO over a rollout."""
    lr: NonNegative = 1e-3
    """Learning rate of policy and value."""
    lr_schedule: LRSchedule = "linear"
    gae_lambda: Share = 0.95
    """Between 0 (advantages of one step) and 1 (of the whole return)."""
    clip: Positive = 0.2
    """PPO's clip of the probability ratio."""
    value_clip: Positive | None = None
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
class WorldModelConfig(ReplayConfig):
    """What every recipe can be told that learns a world model from sequences, and acts in it."""

    data: ClassVar[Section]
    num_envs: Count = 16
    warmup: Whole = 2000
    buffer_size: Count = 100_000
    """Records kept for replay."""
    batch_size: Count = 16
    """Sequences in a batch."""
    length: Count = 16
    """Records of a sequence; one more in front of them warms the memory up."""

    networks: ClassVar[Section]
    size: SizeName = "debug"
    """Of all networks: ours for a laptop (at 64 x 64 pixels 0.25, 1.5 and 3 million parameters), or
    the authors' by their millions, with their convolutions."""

    algorithm: ClassVar[Section]
    train_ratio: Positive = 32.0
    """Records replayed for each environment step."""
    sampled: bool = False
    """Draw actions in evaluations, too, as the authors do, in place of the likeliest."""
    lr: NonNegative = 2e-3
    """Learning rate of all networks; the authors have 4e-5 for every size."""
    lr_warmup: Whole = 100
    """Updates over which it rises, from 0; the authors have 1000."""
    clip: Positive | None = 0.3
    """Largest norm of a tensor's gradient, in units of the tensor's own."""
    gamma: Share = 1 - 1 / 333
