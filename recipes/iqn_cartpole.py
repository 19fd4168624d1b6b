"""IQN, implicit quantile networks (Dabney et al. 2018): online, discrete actions.

A DQN that learns the distribution of the return: the network is asked for quantiles at random
fractions, and acts by their mean.

The defaults suit CartPole. For MinAtar (--env MinAtar/Breakout-v1, extra minatar): --steps 300000
--hidden 128 128 --buffer-size 100000 --warmup 5000 --lr 3e-4 --n-step 3 --updates 2 --epsilon 0.02
--epsilon-steps 50000. For Atari (--env ALE/Breakout-v5, extra atari; its usual preparation is
done): the same with --hidden 512 --num-quantiles 32 --num-target-quantiles 32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from composerl.config import (
    Count,
    LRSchedule,
    NonNegative,
    Positive,
    RunConfig,
    Section,
    Share,
    Whole,
    cli,
)

if TYPE_CHECKING:
    from composerl import Policy


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    env: str = "CartPole-v1"
    steps: Count = 14_000

    data: ClassVar[Section]
    num_envs: Count = 8
    """Environments stepped together."""
    warmup: Whole = 400
    """Environment steps at the start that act at random and train nothing."""
    epsilon: Share = 0.05
    """Share of random actions in the end."""
    epsilon_steps: Count = 3000
    """Environment steps over which that share falls, from 1."""
    buffer_size: Count = 5000
    """Transitions kept for replay; few, as long returns of old policies mislead."""
    batch_size: Count = 64
    """Transitions in a batch."""
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
    embedding_dim: Count = 64
    """Cosines that describe a fraction."""

    algorithm: ClassVar[Section]
    updates: Count = 4
    """Updates for each step of all environments together."""
    lr: NonNegative = 1e-3
    """Learning rate."""
    lr_schedule: LRSchedule = "linear"
    """How it falls over the run; linearly to nearly 0, as the warm-up counts."""
    gamma: Share = 0.99
    """Discount."""
    tau: float = 0.005
    """Share of the network that enters its target at each update."""
    average: Share = 0.996
    """Share of the past in the average of networks that is evaluated and kept; 0: the last one."""
    num_quantiles: Count = 8
    """Fractions at which the network is trained, per transition."""
    num_target_quantiles: Count = 8
    """Samples of the target, per transition."""
    num_acting_quantiles: Count = 32
    """Quantiles whose mean ranks the actions."""
    kappa: float = 1.0
    """Where the Huber loss turns linear."""
    double: bool = False
    """The online network chooses the target's action."""
    max_grad_norm: Positive | None = None
    """Clip gradients to this global norm."""


def main(cfg: Config) -> Policy:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    from composerl import Run, Update
    from composerl.data import ReplayBuffer, VectorCollector
    from composerl.envs import make_env
    from composerl.losses import IQNLoss
    from composerl.modules import iqn_network
    from composerl.optim import linear, lr_schedule

    run = Run(cfg)
    spaces = run.spaces.require_discrete("IQN")
    actor = iqn_network(
        spaces, cfg.hidden, embedding_dim=cfg.embedding_dim,
        num_acting_quantiles=cfg.num_acting_quantiles,
        layer_norm=cfg.layer_norm, dueling=cfg.dueling,
    )  # fmt: skip
    loss = IQNLoss(
        actor.value_network, num_quantiles=cfg.num_quantiles,
        num_target_quantiles=cfg.num_target_quantiles,
        num_acting_quantiles=cfg.num_acting_quantiles,
        double_dqn=cfg.double, kappa=cfg.kappa, gamma=cfg.gamma,
    ).to(cfg.device)  # fmt: skip
    schedule = lr_schedule(cfg.lr_schedule, cfg.steps // cfg.num_envs * cfg.updates)
    update = Update(loss, lr=cfg.lr, schedule=schedule, tau=cfg.tau,
                    max_grad_norm=cfg.max_grad_norm, compile=cfg.compile)  # fmt: skip
    buffer = ReplayBuffer(cfg.buffer_size, cfg.batch_size, n_step=cfg.n_step, gamma=cfg.gamma,
                          prioritized=cfg.prioritized, alpha=cfg.exponents[0],
                          beta=cfg.exponents[1], device=cfg.device)  # fmt: skip
    envs = make_env(cfg.env, cfg.num_envs, **cfg.env_kwargs)
    collector = VectorCollector(envs, actor, frames_per_batch=cfg.num_envs,
                                init_random_frames=cfg.warmup, seed=cfg.seed)  # fmt: skip
    average = AveragedModel(actor, multi_avg_fn=get_ema_multi_avg_fn(cfg.average))

    run.track(update=update, buffer=buffer, collector=collector, average=average)
    for step in run.steps(cfg.steps, by=cfg.num_envs):
        actor.epsilon = linear(cfg.epsilon_steps, cfg.epsilon)(step)
        buffer.extend(collector.next())
        for _ in range(cfg.updates if step > cfg.warmup else 0):
            batch = buffer.sample()
            run.log(update(batch))
            buffer.update_tensordict_priority(batch)
        run.log(collector.metrics() | {"epsilon": actor.epsilon, "buffer": len(buffer)})
        average.update_parameters(actor)
        run.evaluate(average.module)
    return run.finish(average.module)


if __name__ == "__main__":
    cli(Config, main)
