"""XQL, extreme Q-learning (Garg et al. 2023): offline, continuous actions.

Learns from a fixed dataset without ever evaluating an action outside of it: V is a soft maximum
of Q over the data's actions, by Gumbel regression; the policy imitates those that beat it.

The defaults suit Pendulum; for other tasks: --config halfcheetah, hopper or walker2d.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from composerl import data, envs, losses, modules, optim
from composerl.config import Count, LRSchedule, NonNegative, OfflineConfig, Section, Whole, cli

if TYPE_CHECKING:
    from composerl import Policy


@dataclass(frozen=True, kw_only=True)
class Config(OfflineConfig):
    env: str = "Pendulum-v1"
    steps: Count = 5000

    networks: ClassVar[Section]
    actor: Literal["gaussian", "tanh"] = "gaussian"
    """A plain Gaussian, its mean within the bounds, or SAC's, squashed by tanh."""
    layer_norm: bool = True
    """LayerNorm in V."""

    algorithm: ClassVar[Section]
    lr_schedule: LRSchedule = "cosine"
    """How the actor's learning rate falls, offline and once more online."""
    loss_temperature: NonNegative = 1.0
    """Of the Gumbel regression: small is near the best action's value, large near the mean."""
    max_value_diff_exp: NonNegative = 7.0
    """Upper clip of the regression's exponent."""
    max_advantage_weight: float = 100.0
    """Upper bound of the weights of the imitated actions."""
    sample_random_times: Whole = 0
    """Uniform actions per state that also enter V's loss."""
    action_noise: NonNegative = 0.0
    """Noise on the data's actions in V's loss, as a share of half their range."""
    vanilla_value_loss: bool = False
    """Use IQL's expectile in place of the Gumbel regression."""
    value_updates: Count = 1
    """Updates of V, each on a batch of its own, for each of the critics and of the policy."""
    expectile: NonNegative = 0.9
    """For --vanilla-value-loss."""
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
    loss = losses.XQLLoss(
        actor,
        modules.twin_q(env, cfg.hidden, normalize=stats),
        modules.value(env, cfg.hidden, normalize=stats, layer_norm=cfg.layer_norm),
        loss_temperature=cfg.loss_temperature,
        max_value_diff_exp=cfg.max_value_diff_exp,
        max_advantage_weight=cfg.max_advantage_weight,
        sample_random_times=cfg.sample_random_times,
        action_noise=cfg.action_noise,
        vanilla_value_loss=cfg.vanilla_value_loss,
        expectile=cfg.expectile,
        temperature=cfg.beta,
        gamma=cfg.gamma,
    ).to(cfg.device)
    times = cfg.value_updates
    phases = times * steps, times * cfg.online_steps
    update = Update(
        loss,
        lr=cfg.lr,
        schedule={"actor_network": optim.lr_schedule(cfg.lr_schedule, *phases)},
        every={"actor_network": times, "qvalue_network": times, "target_": times},
        tau=cfg.tau,
        max_grad_norm=cfg.max_grad_norm,
        compile=run.compiles(xql=sum(phases)),
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
        for _ in range(times):
            run.log(update(buffer.sample()))
        run.evaluate(actor)
    return run.finish(actor)


if __name__ == "__main__":
    cli(Config, main)
