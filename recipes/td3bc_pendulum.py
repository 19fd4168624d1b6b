"""TD3+BC (Fujimoto & Gu 2021): offline, continuous actions.

TD3 on a fixed dataset, whose policy climbs the critic's value and stays near the data's actions:
the only change is a square in the policy's loss.

The defaults suit Pendulum; for other tasks: --config halfcheetah, hopper or walker2d.

Most of the actions in the defaults' data are random ones; where all are good, --alpha 0.5 suits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from composerl import data, envs, losses, modules, optim
from composerl.config import Count, NonNegative, OfflineConfig, Section, cli

if TYPE_CHECKING:
    from composerl import Policy


@dataclass(frozen=True, kw_only=True)
class Config(OfflineConfig):
    env: str = "Pendulum-v1"
    steps: Count = 5000

    algorithm: ClassVar[Section]
    alpha: NonNegative | None = 10.0
    """Weight of the critic's value against imitation: smaller clones more, None is plain TD3."""
    policy_delay: Count = 2
    """Updates of the critics for each of the policy and of the targets."""
    policy_noise: NonNegative = 0.2
    """Noise on the target's actions, as a share of half their range."""
    noise_clip: NonNegative = 0.5
    """How far that noise may reach."""


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
    actor = modules.deterministic_actor(env, cfg.hidden, normalize=stats)
    loss = losses.TD3BCLoss(
        actor,
        modules.twin_q(env, cfg.hidden, normalize=stats),
        alpha=cfg.alpha,
        policy_noise=cfg.policy_noise,
        noise_clip=cfg.noise_clip,
        gamma=cfg.gamma,
    ).to(cfg.device)
    update = Update(
        loss,
        lr=cfg.lr,
        schedule=optim.lr_schedule(cfg.lr_schedule, steps, cfg.online_steps),
        tau=cfg.tau,
        every={"actor_network": cfg.policy_delay, "target_": cfg.policy_delay},
        max_grad_norm=cfg.max_grad_norm,
        compile=run.compiles(td3bc=steps + cfg.online_steps),
    )

    offline = TensorDictReplayBuffer(storage=data.DatasetStorage(dataset, device=cfg.device))
    online = TensorDictReplayBuffer(
        storage=data.PackedStorage(1_000_000, device=cfg.device),
        transform=data.WholeEpisodes(),
    )
    buffer = data.MixedReplayBuffer(
        offline, online, offline_fraction=cfg.offline_fraction, batch_size=cfg.batch_size
    )
    collector = data.VectorCollector(env, actor, frames_per_batch=1, seed=cfg.seed)

    run.track(update=update, buffer=buffer, collector=collector)
    run.evaluate(actor)
    for step in run.steps(steps + cfg.online_steps):
        if step > steps:
            buffer.extend(collector.next())
            run.log(collector.metrics() | {"collect/steps": step - steps})
        run.log(update(buffer.sample()))
        run.evaluate(actor)
    return run.finish(actor)


if __name__ == "__main__":
    cli(Config, main)
