"""IQL, implicit Q-learning (Kostrikov et al. 2021): offline, continuous actions.

Learns from a fixed dataset without ever evaluating an action outside of it: V is an upper
expectile of Q over the data's actions, the policy imitates those that do better than V.

The defaults suit Pendulum; for other tasks: --config halfcheetah, hopper or walker2d.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from composerl import data, envs, losses, modules, optim
from composerl.config import Count, LRSchedule, NonNegative, OfflineConfig, Section, Share, cli

if TYPE_CHECKING:
    from composerl import Policy


@dataclass(frozen=True, kw_only=True)
class Config(OfflineConfig):
    env: str = "Pendulum-v1"
    steps: Count = 5000

    networks: ClassVar[Section]
    actor: Literal["gaussian", "tanh"] = "gaussian"
    """A plain Gaussian, its mean within the bounds, or SAC's, squashed by tanh."""

    algorithm: ClassVar[Section]
    lr_schedule: LRSchedule = "cosine"
    """How the actor's learning rate falls, offline and once more online."""
    expectile: Share = 0.7
    """Between 0.5 (value of the behaviour) and 1 (value of its best action)."""
    beta: NonNegative = 3.0
    """Multiplies the advantage: 0 clones the data, larger imitates only its best actions."""


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
    make_actor = {"gaussian": modules.gaussian_actor, "tanh": modules.tanh_gaussian_actor}
    actor = make_actor[cfg.actor](env, cfg.hidden, normalize=stats)
    loss = losses.IQLLoss(
        actor,
        modules.twin_q(env, cfg.hidden, normalize=stats),
        modules.value(env, cfg.hidden, normalize=stats),
        expectile=cfg.expectile,
        temperature=cfg.beta,
        gamma=cfg.gamma,
    ).to(cfg.device)
    update = Update(
        loss,
        lr=cfg.lr,
        schedule={"actor_network": optim.lr_schedule(cfg.lr_schedule, steps, cfg.online_steps)},
        tau=cfg.tau,
        max_grad_norm=cfg.max_grad_norm,
        compile=run.compiles(iql=steps + cfg.online_steps),
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
