"""CQL for discrete actions (Kumar et al. 2020): offline.

A double DQN on a fixed dataset whose values are pushed down at actions that the data do not have,
so that the policy cannot profit from values nobody has ever seen.

The defaults suit CartPole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from composerl import data, envs, losses, modules, optim
from composerl.config import Count, NonNegative, OfflineConfig, Positive, Section, Share, cli

if TYPE_CHECKING:
    from composerl import Policy


@dataclass(frozen=True, kw_only=True)
class Config(OfflineConfig):
    env: str = "CartPole-v1"
    steps: Count = 3000

    algorithm: ClassVar[Section]
    alpha: NonNegative = 1.0
    """Weight of the penalty: 0 is plain double DQN, larger is more conservative."""
    temperature: Positive = 1.0
    """Of the penalty's logsumexp."""
    double: bool = True
    """The online network chooses the target's action."""

    online: ClassVar[Section]
    epsilon: Share = 0.05
    """Share of random actions."""


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
    actor = modules.q_network(env, cfg.hidden, normalize=stats)
    actor.epsilon = cfg.epsilon
    loss = losses.DiscreteCQLLoss(
        actor.value_network,
        min_q_weight=cfg.alpha,
        temperature=cfg.temperature,
        double_dqn=cfg.double,
        gamma=cfg.gamma,
    ).to(cfg.device)
    update = Update(
        loss,
        lr=cfg.lr,
        schedule=optim.lr_schedule(cfg.lr_schedule, steps, cfg.online_steps),
        tau=cfg.tau,
        max_grad_norm=cfg.max_grad_norm,
        compile=run.compiles(discrete_cql=steps + cfg.online_steps),
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
