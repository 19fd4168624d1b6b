"""Dreamer, version 3 (Hafner et al. 2023): online, images, discrete actions.

A world model learns what the environment does, from replayed sequences; actor and critic learn in
what it imagines. In images/ of the run directory one can see what that is: strips of what
happened, what the model expects, and the difference.

The defaults suit Catch, a ball that bounces faster than the paddle can follow (random play
scores 0.32, the best possible is 1). For Atari see dreamer_breakout.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

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
    env: str = "composerl/Catch-v0"
    steps: Count = 20_000
    eval_every: Count = 2000
    eval_episodes: Count = 50

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
    horizon: Count = 10
    """Steps imagined from each replayed record."""
    lmbda: Share = 0.95
    """1 trusts imagined rewards to the horizon, 0 the critic after a step."""
    entropy_coeff: NonNegative = 3e-4
    """Larger keeps the actor more random."""
    dynamics_scale: NonNegative = 1.0
    """Larger makes imagination follow the data sooner."""
    representation_scale: NonNegative = 0.1
    """Larger makes states easier to predict and less informative."""
    free_nats: NonNegative = 1.0
    """Nats of surprise at a step that are not worth avoiding."""
    replay_scale: NonNegative = 0.3
    """Weight of the critic's loss on replayed, not imagined, returns."""


def main(cfg: Config) -> Policy:
    from composerl import Run, Update
    from composerl.analysis.pictures import open_loop
    from composerl.bookkeeping.console import say
    from composerl.data import RecordCollector, SequenceReplay
    from composerl.envs import make_env
    from composerl.losses import DreamerLoss
    from composerl.modules import dreamer_actor, dreamer_critic
    from composerl.optim import lr_schedule

    run = Run(cfg)
    spaces = run.spaces.require_discrete("Dreamer")
    actor = dreamer_actor(spaces, cfg.size)
    loss = DreamerLoss(
        actor.world_network, actor.actor_network, dreamer_critic(spaces, cfg.size),
        horizon=cfg.horizon, lmbda=cfg.lmbda, gamma=cfg.gamma, entropy_coeff=cfg.entropy_coeff,
        dynamics_scale=cfg.dynamics_scale, representation_scale=cfg.representation_scale,
        free_nats=cfg.free_nats, replay_scale=cfg.replay_scale,
    ).to(cfg.device)  # fmt: skip
    start = max(cfg.warmup, (1 + cfg.length) * cfg.num_envs)
    updates_per_step = cfg.train_ratio / (cfg.batch_size * cfg.length)
    schedule = lr_schedule(cfg.lr_schedule, int((cfg.steps - start) * updates_per_step))
    update = Update(
        loss, lr={"world_network": cfg.model_lr, "default": cfg.lr},
        schedule=schedule, tau=cfg.tau, max_grad_norm=cfg.max_grad_norm, compile=cfg.compile,
    )  # fmt: skip
    buffer = SequenceReplay(
        cfg.buffer_size, cfg.batch_size, cfg.length,
        latents=actor.world_network.latent_types, device=cfg.device,
    )  # fmt: skip
    collector = RecordCollector(
        make_env(cfg.env, cfg.num_envs, **cfg.env_kwargs),
        actor,
        init_random_frames=cfg.warmup,
        seed=cfg.seed,
    )
    say(f"{sum(p.numel() for p in loss.parameters()):,} parameters")

    metrics = {}
    run.track(update=update, buffer=buffer, collector=collector)
    for step in run.steps(cfg.steps, by=cfg.num_envs):
        buffer.extend(collector.next())
        while update.updates < int((step - start) * updates_per_step):
            batch = buffer.sample()
            metrics = update(batch)
            buffer.write_latents(batch)
        run.log(metrics)
        run.log(collector.metrics() | {"buffer": len(buffer)})
        run.evaluate(actor)
        if step >= start:
            run.image("open_loop", lambda: open_loop(actor.world_network, buffer.sample()))
    return run.finish(actor)


if __name__ == "__main__":
    cli(Config, main)
