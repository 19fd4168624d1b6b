"""MBPO, model-based policy optimisation (Janner et al. 2019): online, continuous actions.

SAC, mostly on imagined data: an ensemble learns how the environment behaves, and short rollouts
in it, branched off real states, give many updates for each real step. --model off is plain SAC.
The defaults suit Pendulum; for other tasks: --config hopper or halfcheetah.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from composerl import data, envs, losses, modules, optim
from composerl.config import Count, NonNegative, OffPolicyConfig, Section, Share, cli

if TYPE_CHECKING:
    from composerl import Policy

Ending = Literal["learned", "none", "inverted_pendulum", "hopper", "walker", "ant"]


@dataclass(frozen=True, kw_only=True)
class Config(OffPolicyConfig):
    env: str = "Pendulum-v1"
    steps: Count = 2500
    eval_every: Count = 250
    updates: Count = 6

    data: ClassVar[Section]
    real_share: Share = 0.05
    """Share of real transitions in each batch."""

    networks: ClassVar[Section]
    model_hidden: tuple[Count, ...] = (64, 64, 64)
    """Widths of the hidden layers of each model."""
    members: Count = 7
    """Models in the ensemble."""
    elites: Count = 5
    """Models that imagine: the best on data held out."""

    algorithm: ClassVar[Section]
    model: Literal["on", "off"] = "on"
    """Off: plain SAC on real transitions."""
    fit_every: Count = 250
    """Environment steps between fits of the model, each followed by a round of rollouts."""
    model_lr: NonNegative = 3e-3
    """Learning rate of the models."""
    model_batch_size: Count = 32
    """Transitions in a batch of each model."""
    model_patience: Count = 5
    """Epochs without a gain of 1 % after which a fit ends."""
    rollouts: Count = 20_000
    """Real states that a round of rollouts starts from."""
    rollout_length: tuple[int, int, int, int] = (1, 1, 0, 0)
    """Steps of a rollout: first, last, and the environment steps between which they grow."""
    termination: Ending = "learned"
    """When imagined episodes are over: as real ones taught the model, never, or by a known rule."""
    keep: Count = 2
    """Rounds of rollouts kept."""


def main(cfg: Config) -> Policy:
    from torchrl.data import TensorDictReplayBuffer

    from composerl import Run, Update

    run = Run(cfg)
    env = envs.make_env(cfg.env, cfg.num_envs, **cfg.env_kwargs)
    actor = modules.tanh_gaussian_actor(env, cfg.hidden)
    critics = modules.twin_q(env, cfg.hidden, layer_norm=cfg.layer_norm)
    loss = losses.SACLoss(actor, critics, **cfg.sac_options())
    fits = cfg.model_patience * cfg.steps**2 // (2 * cfg.fit_every * cfg.model_batch_size)
    on = run.compiles(sac=cfg.steps * cfg.updates, dynamics=fits if cfg.model == "on" else 0)
    update = Update(
        loss.to(cfg.device),
        lr=cfg.rates(),
        schedule=optim.lr_schedule(cfg.lr_schedule, cfg.steps * cfg.updates),
        tau=cfg.tau,
        max_grad_norm=cfg.max_grad_norm,
        compile=on,
    )
    several = {"members": cfg.members, "elites": cfg.elites}
    learned = cfg.termination == "learned"
    dynamics = modules.ensemble(env, cfg.model_hidden, terminates=learned, **several)
    model_loss = losses.DynamicsLoss(dynamics, per_member=True).to(cfg.device)
    adam = optim.FusedAdam(model_loss.parameter_groups(cfg.model_lr))
    fitted = Update(model_loss, optimizer=adam, compile=on)
    fit = optim.DynamicsFit(fitted, batch_size=cfg.model_batch_size, patience=cfg.model_patience)
    length, ending = data.length_schedule(*cfg.rollout_length), data.ENDINGS.get(cfg.termination)
    real = TensorDictReplayBuffer(storage=data.PackedStorage(cfg.buffer_size, device=cfg.device))
    imagined = TensorDictReplayBuffer(storage=data.LatestStorage(cfg.keep, device=cfg.device))
    buffer = data.MixedReplayBuffer(
        real, imagined, offline_fraction=cfg.real_share, batch_size=cfg.batch_size
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
    run.track(update=update, fit=fit, buffer=buffer, collector=collector)
    run.evaluate(actor)
    for step in run.steps(cfg.steps, by=cfg.num_envs):
        real.extend(collector.next().reshape(-1))
        if cfg.model == "on" and step >= cfg.warmup and step % cfg.fit_every < cfg.num_envs:
            fit(real[:])
            start, k = real.sample(cfg.rollouts)["observation"], length(step)
            imagined.extend(data.branched_rollouts(dynamics, actor, start, k, termination=ending))
        for _ in range(cfg.updates * cfg.num_envs if step >= cfg.warmup else 0):
            run.log(update(buffer.sample()))
        run.log(collector.metrics() | fit.metrics | {"real": len(real), "imagined": len(imagined)})
        run.evaluate(actor)
    return run.finish(actor)


if __name__ == "__main__":
    cli(Config, main)
