"""Dreamer, version 3 (Hafner et al. 2023): online, from images or vectors, any actions.

A world model learns what the environment does, from replayed sequences; actor and critic learn in
what it imagines. In images/ of the run directory one can see what that is: strips of what
happened, what the model expects, and the difference.

The defaults suit Catch, a ball that bounces faster than the paddle can follow (random play
scores 0.32, the best possible is 1). For Atari see dreamer_breakout.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from composerl import data, envs, losses, modules, optim
from composerl.config import Count, NonNegative, Section, Share, WorldModelConfig, cli

if TYPE_CHECKING:
    from composerl import Policy


@dataclass(frozen=True, kw_only=True)
class Config(WorldModelConfig):
    env: str = "composerl/Catch-v0"
    steps: Count = 20_000
    eval_every: Count = 2000
    eval_episodes: Count = 50

    algorithm: ClassVar[Section]
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
    replay_grad: bool = False
    """Let that loss shape the world model, too, as the authors do."""


def main(cfg: Config) -> Policy:
    from torchrl.data import TensorDictReplayBuffer

    from composerl import Run, Update
    from composerl.analysis import open_loop

    run = Run(cfg)
    env = envs.make_env(cfg.env, cfg.num_envs, **cfg.env_kwargs)
    actor = modules.dreamer_actor(env, cfg.size, cfg.sampled)
    loss = losses.DreamerLoss(
        actor.world_network,
        actor.actor_network,
        modules.dreamer_critic(env, cfg.size),
        horizon=cfg.horizon,
        lmbda=cfg.lmbda,
        gamma=cfg.gamma,
        entropy_coeff=cfg.entropy_coeff,
        dynamics_scale=cfg.dynamics_scale,
        representation_scale=cfg.representation_scale,
        free_nats=cfg.free_nats,
        replay_scale=cfg.replay_scale,
        replay_grad=cfg.replay_grad,
    ).to(cfg.device)
    start = max(cfg.warmup, (1 + cfg.length) * cfg.num_envs)
    updates_per_step = cfg.train_ratio / (cfg.batch_size * cfg.length)
    updates = int((cfg.steps - start) * updates_per_step)
    falls = optim.lr_schedule(cfg.lr_schedule, max(1, updates - cfg.lr_warmup))
    update = Update(
        loss,
        optimizer=optim.LaProp(loss.parameters(), cfg.lr, clip=cfg.clip),
        schedule=optim.warm_up(cfg.lr_warmup, then=falls),
        tau=cfg.tau,
        max_grad_norm=cfg.max_grad_norm,
        compile=run.compiles(dreamer=updates),
    )
    latents = data.Latents(actor.world_network.latent_types)
    buffer = TensorDictReplayBuffer(
        storage=data.PackedStorage(cfg.buffer_size),
        sampler=data.SequenceSampler(cfg.length, cfg.num_envs),
        transform=latents,
        batch_size=cfg.batch_size,
    )
    collector = data.RecordCollector(
        env,
        actor,
        latents=actor.world_network.latent_types,
        init_random_frames=cfg.warmup,
        seed=cfg.seed,
        workers=cfg.workers,
        collect=cfg.collect,
    )

    metrics: Mapping[str, Any] = {}
    run.track(update=update, buffer=buffer, collector=collector)
    run.evaluate(actor)
    for step in run.steps(cfg.steps, by=cfg.num_envs):
        buffer.extend(collector.next().reshape(-1))
        while update.updates < int((step - start) * updates_per_step):
            batch = buffer.sample().to(cfg.device)
            metrics = update(batch)
            latents.write(buffer, batch)
        run.log(metrics)
        run.log(collector.metrics() | {"buffer": len(buffer)})
        run.evaluate(actor)
        if step >= start:
            run.image("open_loop", lambda: open_loop(actor.world_network, buffer.sample()))
    return run.finish(actor)


if __name__ == "__main__":
    cli(Config, main)
