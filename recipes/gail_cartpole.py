"""GAIL, generative adversarial imitation (Ho & Ermon 2016): online, from demonstrations.

A discriminator learns to tell the expert's state-action pairs from the policy's, and PPO trains
the policy to deceive it. The environment's own reward is logged and never learned from.

The defaults suit CartPole. For Pendulum:
--env Pendulum-v1 --demonstrations 20 --steps 100000 --rollout 2048 --gamma 0.9 --entropy-coeff 0
--judge-updates 32 --judge-lr 1e-3 --gradient-penalty 1.
"""

from __future__ import annotations

import math
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


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    env: str = "CartPole-v1"
    steps: Count = 25_000

    data: ClassVar[Section]
    expert: str = "scripted"
    """Behaviour (scripted, random), a file (npz, HDF5, Minari) or a run directory of composerl."""
    demonstrations: Count = 10
    """Episodes of the expert."""
    subsample: Count = 1
    """Keep every so many-th step of a demonstration; the paper has 20."""
    num_envs: Count = 8
    """Environments stepped together."""
    rollout: Count = 1024
    """Environment steps between two updates of the policy, over all environments."""
    batch_size: Count = 128
    """Steps in a minibatch of PPO; pairs of each side in one of the discriminator."""

    networks: ClassVar[Section]
    hidden: tuple[Count, ...] = (64, 64)
    """Widths of the hidden layers of all three networks."""
    spectral_norm: bool = False
    """Bound the discriminator's slope by the spectral norm of its layers."""

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
    ppo_epochs: Count = 10
    """Passes of PPO over a rollout."""
    lr: NonNegative = 1e-3
    """Learning rate of policy and value."""
    lr_schedule: LRSchedule = "linear"
    """How that falls over the run."""
    gamma: Share = 0.99
    """Discount."""
    gae_lambda: Share = 0.95
    """Between 0 (advantages of one step) and 1 (of the whole return)."""
    clip: float = 0.2
    """PPO's clip of the probability ratio."""
    value_clip: float | None = None
    """Clip the change of the value estimates, too."""
    entropy_coeff: NonNegative = 0.01
    """Weight of the policy's entropy bonus."""
    max_grad_norm: Positive | None = 0.5
    """Clip gradients of policy and value to this global norm."""


def main(cfg: Config) -> Policy:
    import torch
    from torchrl.objectives.value import GAE

    from composerl import Policy, Run, Update, load
    from composerl.data import VectorCollector, load_experts
    from composerl.envs import make_env
    from composerl.losses import BCLoss, ClipPPOLoss, GAILLoss, GAILReward
    from composerl.modules import categorical_actor, discriminator, tanh_gaussian_actor, value
    from composerl.optim import lr_schedule
    from composerl.policy import holds_policy

    run = Run(cfg)
    spaces = run.spaces
    expert = load(cfg.expert) if holds_policy(cfg.expert) else cfg.expert
    experts = load_experts(expert, cfg.env, episodes=cfg.demonstrations, device=cfg.device,
                           subsample=cfg.subsample, batch_size=cfg.batch_size)  # fmt: skip
    make_actor = categorical_actor if spaces.discrete else tanh_gaussian_actor
    actor = make_actor(spaces, cfg.hidden, activation="tanh", init="orthogonal")
    critic = value(spaces, cfg.hidden, activation="tanh", init="orthogonal")
    ppo = ClipPPOLoss(actor, critic, clip_epsilon=cfg.clip, clip_value=cfg.value_clip,
                      entropy_coeff=cfg.entropy_coeff).to(cfg.device)  # fmt: skip
    minibatches = math.ceil(cfg.rollout / cfg.batch_size)
    updates = math.ceil(cfg.steps / cfg.rollout) * cfg.ppo_epochs * minibatches
    update = Update(ppo, lr=cfg.lr, schedule=lr_schedule(cfg.lr_schedule, updates),
                    max_grad_norm=cfg.max_grad_norm, compile=cfg.compile)  # fmt: skip
    judge = discriminator(spaces, cfg.hidden, spectral_norm=cfg.spectral_norm)
    gail = GAILLoss(judge, num_actions=spaces.num_actions, gp_lambda=cfg.gradient_penalty)
    update_judge = Update(gail.to(cfg.device), lr=cfg.judge_lr, compile=cfg.compile)
    ends = experts.terminated if cfg.absorbing else None
    reward = GAILReward(judge, cfg.reward, gamma=cfg.gamma, expert_terminated=ends)
    gae = GAE(gamma=cfg.gamma, lmbda=cfg.gae_lambda, value_network=critic, average_gae=True)
    collector = VectorCollector(make_env(cfg.env, cfg.num_envs, **cfg.env_kwargs), actor,
                                frames_per_batch=cfg.rollout, seed=cfg.seed)  # fmt: skip
    baselines = {"expert/return": experts.mean_return}
    if cfg.bc_steps:
        clone = Update(BCLoss(actor), lr=cfg.lr)
        for _ in range(cfg.bc_steps):
            clone(experts.sample())
        baselines["bc/return"] = (
            Policy(actor, cfg.env, env_kwargs=cfg.env_kwargs).evaluate(cfg.eval_episodes).mean
        )

    run.track(update=update, update_judge=update_judge, experts=experts, collector=collector)
    for _ in run.steps(cfg.steps, by=cfg.rollout):
        batch = collector.next().to(cfg.device)
        pairs = batch.select("observation", "action").reshape(-1)
        judge.observe(pairs["observation"], experts.sample(len(pairs))["observation"])
        for _ in range(cfg.judge_updates):
            mine = pairs[torch.randint(len(pairs), (cfg.batch_size,))]
            metrics = update_judge(mine.set("expert", experts.sample()))
            run.log({f"judge/{name}": number for name, number in metrics.items()})
        rows = gae(reward(ppo.annotate(batch))).select(*ppo.in_keys).reshape(-1)
        for _ in range(cfg.ppo_epochs):
            for minibatch in rows[torch.randperm(len(rows))].split(cfg.batch_size):
                run.log(update(minibatch))
        run.log(collector.metrics() | baselines)
        run.evaluate(actor)
    return run.finish(actor)


if __name__ == "__main__":
    cli(Config, main)
