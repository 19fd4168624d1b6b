"""PPO, proximal policy optimisation (Schulman et al. 2017): online, discrete or continuous actions.

Improves the policy on the advantages of what it has just done, in several passes, but not far from
the policy that acted.

The defaults suit CartPole; for Pendulum: --config pendulum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from composerl import data, envs, losses, modules, optim
from composerl.config import Count, OnPolicyConfig, cli

if TYPE_CHECKING:
    from composerl import Policy


@dataclass(frozen=True, kw_only=True)
class Config(OnPolicyConfig):
    env: str = "CartPole-v1"
    steps: Count = 40_000


def main(cfg: Config) -> Policy:
    import torch
    from torchrl.objectives.value import GAE

    from composerl import Run, Update

    run = Run(cfg)
    env = envs.make_env(cfg.env, cfg.num_envs, **cfg.env_kwargs)
    number = envs.Spaces.of(env).num_actions
    make_actor = modules.categorical_actor if number else modules.tanh_gaussian_actor
    actor = make_actor(env, cfg.hidden, activation="tanh", init="orthogonal")
    critic = modules.value(env, cfg.hidden, activation="tanh", init="orthogonal")
    loss = losses.ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=cfg.clip,
        clip_value=cfg.value_clip,
        entropy_coeff=cfg.entropy_coeff,
    ).to(cfg.device)
    schedule = optim.lr_schedule(cfg.lr_schedule, cfg.minibatches)
    on = run.compiles(ppo=cfg.minibatches)
    update = Update(loss, cfg.lr, schedule=schedule, max_grad_norm=cfg.max_grad_norm, compile=on)
    gae = GAE(gamma=cfg.gamma, lmbda=cfg.gae_lambda, value_network=critic, average_gae=True)
    collector = data.VectorCollector(
        env, actor, frames_per_batch=cfg.rollout, seed=cfg.seed, workers=cfg.workers
    )

    run.track(update=update, collector=collector)
    run.evaluate(actor)
    for _ in run.steps(cfg.steps, by=cfg.rollout):
        batch = collector.next().to(cfg.device)
        rows = gae(loss.annotate(batch)).select(*loss.in_keys).exclude("next").reshape(-1)
        for _ in range(cfg.ppo_epochs):
            for minibatch in rows[torch.randperm(len(rows))].split(cfg.batch_size):
                run.log(update(minibatch))
        run.log(collector.metrics())
        run.evaluate(actor)
    return run.finish(actor)


if __name__ == "__main__":
    cli(Config, main)
