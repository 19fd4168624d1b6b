"""CQL, conservative Q-learning (Kumar et al. 2020): offline, continuous actions.

SAC on a fixed dataset whose critics are pushed down at actions that the data do not have, so
that the policy cannot profit from values nobody has ever seen.

The defaults suit Pendulum. The paper's for locomotion (--env HalfCheetah-v5 --dataset file.npz):
--hidden 256 256 --lr 3e-4 --actor-lr 1e-4
--tau 0.005 --alpha 5 --reward-scale 1 --normalize.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from composerl.config import Count, NonNegative, OfflineConfig, Section, Whole, cli

if TYPE_CHECKING:
    from composerl import Policy


@dataclass(frozen=True, kw_only=True)
class Config(OfflineConfig):
    env: str = "Pendulum-v1"
    steps: Count = 3000

    networks: ClassVar[Section]
    hidden: tuple[Count, ...] = (64, 64)

    algorithm: ClassVar[Section]
    lr: NonNegative = 1e-3
    """Learning rate of the critics and of the temperatures."""
    actor_lr: NonNegative = 1e-3
    """Learning rate of the actor."""
    alpha: float = 1.0
    """Weight of the penalty: 0 is plain SAC, larger is more conservative."""
    num_random: Count = 10
    """Actions of each origin (uniform, policy, policy at the next state) in the penalty."""
    temperature: float = 1.0
    """Of the penalty's logsumexp."""
    lagrange: float | None = None
    """Tune the weight so that the penalty stays at this gap, instead of a fixed alpha."""
    max_q_backup: bool = False
    """The target takes the best of several actions instead of one."""
    calibrated: bool = False
    """Cal-QL: policy actions count at least as much as the data's Monte Carlo return (up to a time
    limit, if one cuts episodes). Online steps do so in any case; this is for the offline ones."""
    entropy_backup: bool = False
    """The target has SAC's entropy bonus."""
    target_entropy: float | None = None
    """Entropy that SAC's temperature is tuned to; minus the number of actions by default."""
    bc_steps: Whole = 0
    """Steps at the start in which the actor clones the data."""


def main(cfg: Config) -> Policy:
    from composerl import Run, Update
    from composerl.data import MixedBuffer, load_dataset
    from composerl.losses import CQLLoss
    from composerl.modules import tanh_gaussian_actor, twin_q
    from composerl.optim import lr_schedule

    run = Run(cfg)
    spaces = run.spaces.require_box("CQL")
    offline = load_dataset(
        cfg.dataset, cfg.env, batch_size=cfg.batch_size,
        size=cfg.dataset_size, seed=cfg.dataset_seed,
        reward_scale=cfg.reward_scale, reward_shift=cfg.reward_shift, device=cfg.device,
        mc_gamma=cfg.gamma,
    )  # fmt: skip
    steps = cfg.gradient_steps(len(offline))
    buffer = MixedBuffer(offline, cfg.env, offline_fraction=cfg.offline_fraction, seed=cfg.seed)

    stats = offline.stats if cfg.normalize else False
    actor = tanh_gaussian_actor(spaces, cfg.hidden, normalize=stats)
    loss = CQLLoss(
        actor,
        twin_q(spaces, cfg.hidden, normalize=stats),
        min_q_weight=cfg.alpha,
        num_random=cfg.num_random,
        temperature=cfg.temperature,
        with_lagrange=cfg.lagrange is not None,
        lagrange_thresh=1.0 if cfg.lagrange is None else cfg.lagrange,
        max_q_backup=cfg.max_q_backup,
        deterministic_backup=not cfg.entropy_backup,
        target_entropy=cfg.target_entropy,
        gamma=cfg.gamma,
    ).to(cfg.device)
    update = Update(
        loss,
        lr={"actor_network": cfg.actor_lr, "default": cfg.lr},
        schedule=lr_schedule(cfg.lr_schedule, steps, cfg.online_steps),
        tau=cfg.tau,
        max_grad_norm=cfg.max_grad_norm,
        compile=cfg.compile,
    )

    run.track(update=update, buffer=buffer)
    for step in run.steps(steps + cfg.online_steps):
        loss.imitate = step <= cfg.bc_steps
        loss.calibrated = cfg.calibrated or step > steps
        if step > steps:
            run.log(buffer.collect(actor))
        run.log(update(buffer.sample()))
        run.evaluate(actor)
    return run.finish(actor)


if __name__ == "__main__":
    cli(Config, main)
