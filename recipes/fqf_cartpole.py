"""FQF, fully parameterized quantile functions (Yang et al. 2019): online, discrete actions.

IQN whose fractions are not drawn at random: a second network, with an optimizer of its own,
proposes those that describe the return's distribution best.

The defaults suit CartPole; for others: --config minatar_breakout and its like, atari_breakout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from composerl import data, envs, losses, modules, optim
from composerl.config import Count, NonNegative, Positive, Section, ValueConfig, cli

if TYPE_CHECKING:
    from composerl import Policy


@dataclass(frozen=True, kw_only=True)
class Config(ValueConfig):
    env: str = "CartPole-v1"
    steps: Count = 14_000

    networks: ClassVar[Section]
    embedding_dim: Count = 64
    """Cosines that describe a fraction."""

    algorithm: ClassVar[Section]
    num_quantiles: Count = 8
    """Fractions that are proposed for a state."""
    fraction_lr: NonNegative = 1e-6
    """Learning rate of the proposal; orders below the other."""
    entropy_coeff: NonNegative = 1e-3
    """Keeps the fractions apart: larger is more uniform."""
    reuse_fractions: bool = False
    """Use the fractions of the state in the target too, as the authors' code does."""
    kappa: Positive = 1.0
    """Where the Huber loss turns linear."""


def main(cfg: Config) -> Policy:
    from torch.optim import RMSprop
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
    from torchrl.data import RandomSampler, TensorDictReplayBuffer
    from torchrl.envs import RewardClipping

    from composerl import Run, Update

    run = Run(cfg)
    clipping = [RewardClipping(-1, 1)] if cfg.clip_rewards else []
    env = envs.make_env(cfg.env, cfg.num_envs, transforms=clipping, **cfg.env_kwargs)
    actor = modules.fqf_network(
        env,
        cfg.hidden,
        embedding_dim=cfg.embedding_dim,
        num_quantiles=cfg.num_quantiles,
        layer_norm=cfg.layer_norm,
        dueling=cfg.dueling,
    )
    loss = losses.FQFLoss(
        actor.value_network,
        actor.fraction_network,
        entropy_coeff=cfg.entropy_coeff,
        reuse_fractions=cfg.reuse_fractions,
        double_dqn=cfg.double,
        kappa=cfg.kappa,
        gamma=cfg.gamma,
    ).to(cfg.device)
    update = Update(
        loss,
        optimizer=[
            optim.FusedAdam(loss.value_network.parameters(), lr=cfg.lr),
            RMSprop(loss.fraction_network.parameters(), lr=cfg.fraction_lr),
        ],
        schedule=optim.lr_schedule(cfg.lr_schedule, cfg.steps // cfg.num_envs * cfg.updates),
        tau=cfg.tau,
        max_grad_norm=cfg.max_grad_norm,
        compile=run.compiles(fqf=cfg.steps // cfg.num_envs * cfg.updates),
    )

    prioritized = data.PrioritizedSampler(cfg.buffer_size, *cfg.exponents)
    buffer = TensorDictReplayBuffer(
        storage=data.PackedStorage(cfg.buffer_size, device=cfg.device),
        sampler=prioritized if cfg.prioritized else RandomSampler(),
        sample_unit=data.NStep(cfg.n_step, cfg.gamma, cfg.num_envs),
        batch_size=cfg.batch_size,
    )
    collector = data.VectorCollector(
        env,
        actor,
        frames_per_batch=cfg.num_envs,
        init_random_frames=cfg.warmup,
        seed=cfg.seed,
        workers=cfg.workers,
        collect=cfg.collect,
    )
    average = AveragedModel(actor, multi_avg_fn=get_ema_multi_avg_fn(cfg.average))

    run.track(update=update, buffer=buffer, collector=collector, average=average)
    run.evaluate(average.module)
    for step in run.steps(cfg.steps, by=cfg.num_envs):
        actor.epsilon = optim.linear(cfg.epsilon_steps, cfg.epsilon)(step)
        prioritized.beta = cfg.beta(step)
        buffer.extend(collector.next().reshape(-1))
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
