"""GAIL, generative adversarial imitation (Ho & Ermon 2016): online, from demonstrations.

A discriminator learns to tell the expert's state-action pairs from the policy's, and PPO trains
the policy to deceive it. The environment's own reward is logged and never learned from.

The defaults suit CartPole; for Pendulum: --config pendulum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from composerl import data, envs, losses, modules, optim
from composerl.config import Count, NonNegative, OnPolicyConfig, Section, Whole, cli

if TYPE_CHECKING:
    from composerl import Policy


@dataclass(frozen=True, kw_only=True)
class Config(OnPolicyConfig):
    env: str = "CartPole-v1"
    steps: Count = 25_000

    data: ClassVar[Section]
    expert: str = "scripted"
    """Behaviour (scripted, random), a file (npz, HDF5, Minari) or a run directory of composerl."""
    demonstrations: Count = 10
    """Episodes of the expert."""
    subsample: Count = 1
    """Keep every so many-th step of a demonstration; the paper has 20."""

    algorithm: ClassVar[Section]
    bc_steps: Whole = 0
    """Updates of behaviour cloning before the first step; its return is logged."""
    reward: Literal["softplus", "log_d", "airl"] = "softplus"
    """Form of the imitation reward: -log(1 - D), log D or the logits."""
    absorbing: bool = True
    """Judge the ends of episodes, too; else softplus pays for living and log_d for ending."""
    judge_updates: Count = 8
    """Updates of the discriminator for each rollout."""
    judge_lr: NonNegative = 3e-4
    """Its learning rate."""
    gradient_penalty: NonNegative = 0.0
    """Weight of its gradient penalty; larger is smoother."""
    spectral_norm: bool = False
    """Bound its slope by the spectral norm of its layers."""


def main(cfg: Config) -> Policy:
    import torch
    from torchrl.data import TensorDictReplayBuffer
    from torchrl.objectives.value import GAE

    from composerl import Run, Update, load
    from composerl.policy import holds_policy

    run = Run(cfg)
    env = envs.make_env(cfg.env, cfg.num_envs, **cfg.env_kwargs)
    experts = data.load_experts(
        load(cfg.expert) if holds_policy(cfg.expert) else cfg.expert,
        cfg.env,
        episodes=cfg.demonstrations,
        subsample=cfg.subsample,
        env_kwargs=cfg.env_kwargs,
        spaces=env,
    )
    demos = TensorDictReplayBuffer(storage=data.DatasetStorage(experts.dataset, device=cfg.device))
    number = envs.Spaces.of(env).num_actions
    make_actor = modules.categorical_actor if number else modules.tanh_gaussian_actor
    actor = make_actor(env, cfg.hidden, activation="tanh", init="orthogonal")
    critic = modules.value(env, cfg.hidden, activation="tanh", init="orthogonal")
    ppo = losses.ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=cfg.clip,
        clip_value=cfg.value_clip,
        entropy_coeff=cfg.entropy_coeff,
    ).to(cfg.device)
    schedule = optim.lr_schedule(cfg.lr_schedule, cfg.minibatches)
    on = run.compiles(ppo=cfg.minibatches, gail=cfg.steps // cfg.rollout * cfg.judge_updates)
    update = Update(ppo, cfg.lr, schedule=schedule, max_grad_norm=cfg.max_grad_norm, compile=on)
    gae = GAE(gamma=cfg.gamma, lmbda=cfg.gae_lambda, value_network=critic, average_gae=True)
    judge = modules.discriminator(env, cfg.hidden, spectral_norm=cfg.spectral_norm)
    gail = losses.GAILLoss(judge, num_actions=number, gp_lambda=cfg.gradient_penalty)
    update_judge = Update(gail.to(cfg.device), lr=cfg.judge_lr, compile=on)
    ends = experts.terminated if cfg.absorbing else None
    reward = losses.GAILReward(judge, cfg.reward, gamma=cfg.gamma, expert_terminated=ends)
    collector = data.VectorCollector(
        env, actor, frames_per_batch=cfg.rollout, seed=cfg.seed, workers=cfg.workers
    )
    baselines = {"expert/return": experts.mean_return}
    if cfg.bc_steps:
        clone = Update(losses.BCLoss(actor), lr=cfg.lr)
        for _ in range(cfg.bc_steps):
            clone(demos.sample(cfg.batch_size))
        baselines["bc/return"] = run.play(actor).mean
    run.track(update=update, judge=update_judge, demos=demos, collector=collector)
    run.evaluate(actor)
    for _ in run.steps(cfg.steps, by=cfg.rollout):
        batch = collector.next().to(cfg.device)
        pairs = batch.select("observation", "action").reshape(-1)
        judge.observe(pairs["observation"], demos.sample(len(pairs))["observation"])
        for _ in range(cfg.judge_updates):
            mine = pairs[torch.randint(len(pairs), (cfg.batch_size,))]
            metrics = update_judge(mine.set("expert", demos.sample(cfg.batch_size)))
            run.log({f"judge/{name}": number for name, number in metrics.items()})
        rows = gae(reward(ppo.annotate(batch))).select(*ppo.in_keys).exclude("next").reshape(-1)
        for _ in range(cfg.ppo_epochs):
            for minibatch in rows[torch.randperm(len(rows))].split(cfg.batch_size):
                run.log(update(minibatch))
        run.log(collector.metrics() | baselines)
        run.evaluate(actor)
    return run.finish(actor)


if __name__ == "__main__":
    cli(Config, main)
