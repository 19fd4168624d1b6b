"""CQL, conservative Q-learning (Kumar et al. 2020): offline, continuous actions.

SAC on a fixed dataset whose critics are pushed down at actions that the data do not have, so
that the policy cannot profit from values nobody has ever seen. The defaults suit Pendulum; for
other tasks: --config halfcheetah, hopper or walker2d.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from composerl import data, envs, losses, modules, optim
from composerl.config import Count, NonNegative, OfflineConfig, Positive, Section, Share, Whole, cli
from composerl.config.rules import Finite

if TYPE_CHECKING:
    from composerl import Policy


@dataclass(frozen=True, kw_only=True)
class Config(OfflineConfig):
    env: str = "Pendulum-v1"
    steps: Count = 8000
    normalize: bool = True  # cloning takes fewer updates
    reward_scale: Finite | Literal["returns"] = 1.0  # smaller ones drown in the penalty
    hidden: tuple[Count, ...] = (64, 64)

    algorithm: ClassVar[Section]
    lr_schedule: Literal["constant", "linear", "cosine", "step"] = "cosine"
    gamma: Share = 0.95
    actor_lr: NonNegative = 1e-3
    """Learning rate of the actor; --lr is that of the critics."""
    alpha_lr: NonNegative | None = None
    """Of SAC's temperature and of the Lagrange multiplier; that of --lr by default."""
    alpha_init: Positive = 0.1
    """SAC's temperature at the start."""
    alpha: NonNegative = 5.0
    """Weight of the penalty: 0 is plain SAC, larger is more conservative."""
    num_random: Count = 4
    """Actions of each origin (uniform, policy, policy at the next state) in the penalty."""
    temperature: Positive = 1.0
    """Of the penalty's logsumexp."""
    lagrange: NonNegative | None = None
    """Tune the weight so that the penalty stays at this gap, instead of a fixed alpha."""
    max_q_backup: bool = False
    """The target takes the best of several actions instead of one."""
    calibrated: bool = False
    """Cal-QL: policy actions count at least the data's Monte Carlo return; online in any case."""
    entropy_backup: bool = False
    """The target has SAC's entropy bonus."""
    target_entropy: float | None = None
    """Entropy that SAC's temperature is tuned to; minus the number of actions by default."""
    bc_steps: Whole = 4000
    """Steps at the start in which the actor clones the data by maximum likelihood."""


def main(cfg: Config) -> Policy:
    from torchrl.data import TensorDictReplayBuffer
    from torchrl.envs import RewardScaling

    from composerl import Run, Update

    run = Run(cfg)
    dataset = data.load_dataset(cfg.dataset, cfg.env, spaces=run.spaces, **cfg.loading())
    scaling = RewardScaling(loc=cfg.reward_shift, scale=dataset.reward_scale)
    env = envs.make_env(cfg.env, transforms=scaling, **cfg.env_kwargs)
    steps = cfg.gradient_steps(len(dataset))

    stats = data.observation_stats(dataset) if cfg.normalize else False
    actor = modules.tanh_gaussian_actor(env, cfg.hidden, normalize=stats)
    loss = losses.CQLLoss(
        actor,
        modules.twin_q(env, cfg.hidden, normalize=stats),
        min_q_weight=cfg.alpha,
        num_random=cfg.num_random,
        temperature=cfg.temperature,
        with_lagrange=cfg.lagrange is not None,
        lagrange_thresh=1.0 if cfg.lagrange is None else cfg.lagrange,
        max_q_backup=cfg.max_q_backup,
        deterministic_backup=not cfg.entropy_backup,
        alpha_init=cfg.alpha_init,
        target_entropy=cfg.target_entropy,
        gamma=cfg.gamma,
    ).to(cfg.device)
    alpha_lr = cfg.lr if cfg.alpha_lr is None else cfg.alpha_lr
    update = Update(
        loss,
        lr={"actor_network": cfg.actor_lr, "log_alpha": alpha_lr, "default": cfg.lr},
        schedule=optim.lr_schedule(cfg.lr_schedule, steps, cfg.online_steps),
        tau=cfg.tau,
        max_grad_norm=cfg.max_grad_norm,
        compile=run.compiles(cql=steps + cfg.online_steps),
    )
    storage = data.DatasetStorage(dataset, mc_gamma=cfg.gamma, device=cfg.device)
    offline = TensorDictReplayBuffer(storage=storage)
    own = data.PackedStorage(1_000_000, device=cfg.device)
    whole = data.WholeEpisodes(cfg.gamma, worst=float(dataset.rewards.min()))
    online = TensorDictReplayBuffer(storage=own, transform=whole)
    buffer = data.MixedReplayBuffer(
        offline, online, offline_fraction=cfg.offline_fraction, batch_size=cfg.batch_size
    )
    collector = data.VectorCollector(env, actor, frames_per_batch=1, seed=cfg.seed)

    run.track(update=update, buffer=buffer, collector=collector)
    run.evaluate(actor)
    for step in run.steps(steps + cfg.online_steps):
        loss.imitate = step <= cfg.bc_steps
        loss.calibrated = cfg.calibrated or step > steps
        if step > steps:
            buffer.extend(collector.next())
            run.log(collector.metrics() | {"collect/steps": step - steps})
        run.log(update(buffer.sample()))
        run.evaluate(actor)
    return run.finish(actor)


if __name__ == "__main__":
    cli(Config, main)
