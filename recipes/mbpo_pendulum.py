"""MBPO, model-based policy optimisation (Janner et al. 2019): online, continuous actions.

SAC, mostly on imagined data: an ensemble learns how the environment behaves, and short rollouts
in it, branched off real states, give many updates for each real step. --model off is plain SAC.

The defaults suit Pendulum. The paper's, for --env Hopper-v5 --termination hopper: --steps 125000
--warmup 5000 --updates 20 --hidden 256 256 --lr 3e-4 --tau 0.005 --model-hidden 200 200 200 200
--model-lr 1e-3 --model-batch-size 256 --rollouts 100000 --keep 4 --target-entropy -1
--rollout-length 1 15 20000 100000.
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

#: Observations in which an episode goes on; NaN is in none.
HEALTHY = {
    "inverted_pendulum": lambda s: s[:, 1].abs() <= 0.2,
    "hopper": lambda s: (s[:, 0] > 0.7) & (s[:, 1].abs() < 0.2) & (s[:, 1:].abs() < 100).all(1),
    "walker": lambda s: (s[:, 0] > 0.8) & (s[:, 0] < 2) & (s[:, 1].abs() < 1),
    "ant": lambda s: (s[:, 0] >= 0.2) & (s[:, 0] <= 1),
}


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    env: str = "Pendulum-v1"
    steps: Count = 2500
    eval_every: Count = 250

    data: ClassVar[Section]
    warmup: Whole = 250
    """Environment steps at the start that act at random and train nothing."""
    buffer_size: Count = 1_000_000
    """Real transitions kept."""
    batch_size: Count = 256
    """Transitions in a batch."""
    real_share: Share = 0.05
    """Share of real transitions in each batch."""

    networks: ClassVar[Section]
    hidden: tuple[Count, ...] = (64, 64)
    """Widths of the hidden layers of actor and critics."""
    model_hidden: tuple[Count, ...] = (64, 64, 64)
    """Widths of the hidden layers of each model."""
    members: Count = 7
    """Models in the ensemble."""
    elites: Count = 5
    """Models that imagine: the best on data held out."""

    algorithm: ClassVar[Section]
    updates: Count = 6
    """SAC updates for each environment step."""
    lr: NonNegative = 2e-3
    """Learning rate of actor, critics and temperature."""
    lr_schedule: LRSchedule = "constant"
    """How that falls over the run."""
    gamma: Share = 0.99
    """Discount."""
    tau: float = 0.02
    """Share of the critics that enters their targets at each update."""
    target_entropy: float | None = None
    """Entropy that the temperature is tuned to; minus the number of actions by default."""
    max_grad_norm: Positive | None = None
    """Clip gradients of actor and critics to this global norm."""
    model: Literal["on", "off"] = "on"
    """Off: plain SAC on real transitions."""
    termination: Literal["none", "learned", "inverted_pendulum", "hopper", "walker", "ant"] = "none"
    """When imagined episodes are over: never, when the model says so, or by a known rule."""
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
    keep: Count = 2
    """Rounds of rollouts kept."""


def main(cfg: Config) -> Policy:
    from composerl import Run, Update
    from composerl.data import ModelBuffer, ReplayBuffer, VectorCollector
    from composerl.data import branched_rollouts, length_schedule  # isort: skip
    from composerl.envs import make_env
    from composerl.losses import DynamicsLoss, SACLoss
    from composerl.modules import ensemble, tanh_gaussian_actor, twin_q
    from composerl.optim import DynamicsFit, FusedAdam, lr_schedule

    run = Run(cfg)
    spaces = run.spaces.require_box("MBPO")
    actor = tanh_gaussian_actor(spaces, cfg.hidden)
    loss = SACLoss(actor, twin_q(spaces, cfg.hidden), gamma=cfg.gamma,
                   target_entropy=cfg.target_entropy).to(cfg.device)  # fmt: skip
    schedule = lr_schedule(cfg.lr_schedule, cfg.steps * cfg.updates)
    update = Update(loss, cfg.lr, schedule=schedule, tau=cfg.tau,
                    max_grad_norm=cfg.max_grad_norm, compile=cfg.compile)  # fmt: skip
    healthy = HEALTHY.get(cfg.termination)
    termination = healthy and (lambda s, a, following: ~healthy(following))
    dynamics = ensemble(spaces, cfg.model_hidden, members=cfg.members, elites=cfg.elites,
                        terminates=cfg.termination == "learned")  # fmt: skip
    model_loss = DynamicsLoss(dynamics, per_member=True).to(cfg.device)
    optimizer = FusedAdam(model_loss.parameter_groups(cfg.model_lr))
    fit = DynamicsFit(Update(model_loss, optimizer=optimizer),
                      batch_size=cfg.model_batch_size, patience=cfg.model_patience)  # fmt: skip
    length = length_schedule(*cfg.rollout_length)
    real = ReplayBuffer(cfg.buffer_size, cfg.batch_size, device=cfg.device)
    buffer = ModelBuffer(real, batch_size=cfg.batch_size, real_share=cfg.real_share, keep=cfg.keep)
    collector = VectorCollector(make_env(cfg.env, **cfg.env_kwargs), actor, frames_per_batch=1,
                                init_random_frames=cfg.warmup, seed=cfg.seed)  # fmt: skip

    run.track(update=update, fit=fit, real=real, buffer=buffer, collector=collector)
    for step in run.steps(cfg.steps):
        real.extend(collector.next())
        if cfg.model == "on" and step >= cfg.warmup and step % cfg.fit_every == 0:
            fit(real[:])
            start, k = real.sample(cfg.rollouts)["observation"], length(step)
            buffer.extend(branched_rollouts(dynamics, actor, start, k, termination=termination))
        for _ in range(cfg.updates if step >= cfg.warmup else 0):
            run.log(update(buffer.sample()))
        run.log(collector.metrics() | fit.metrics | {"real": len(real), "imagined": len(buffer)})
        run.evaluate(actor)
    return run.finish(actor)


if __name__ == "__main__":
    cli(Config, main)
