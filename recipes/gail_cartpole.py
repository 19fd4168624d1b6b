"""GAIL, generative adversarial imitation (Ho & Ermon 2016): online, from demonstrations.

A discriminator learns to tell the expert's state-action pairs from the policy's, and PPO trains
the policy to deceive it. The environment's own reward is logged and never learned from.

The defaults suit CartPole. For Pendulum:
--env Pendulum-v1 --demonstrations 20 --steps 150000 --rollout 2048 --gamma 0.95.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from composerl.config import RunConfig, cli

if TYPE_CHECKING:
    from composerl import Policy


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    env: str = "CartPole-v1"
    steps: int = 25_000
    expert: str = "scripted"
    """Behaviour (scripted, random), a file (npz, HDF5, Minari) or a run directory of composerl."""
    demonstrations: int = 10
    """Episodes of the expert."""
    expert_seed: int = 0
    """Seed of the episodes that the expert plays."""
    subsample: int = 1
    """Keep every so many-th step of a demonstration; the paper has 20."""
    bc_steps: int = 0
    """Updates of behaviour cloning before the first step; its return is logged."""
    num_envs: int = 8
    """Environments stepped together."""
    rollout: int = 1024
    """Environment steps between two updates of the policy, over all environments."""
    reward: Literal["softplus", "log_d", "airl"] = "softplus"
    """Form of the imitation reward: -log(1 - D), log D or the logits."""
    absorbing: bool = True
    """Judge the end of an episode, too; without, softplus pays for living and log_d for ending."""
    discriminator_updates: int = 8
    """Updates of the discriminator for each rollout."""
    discriminator_batch: int = 256
    """Pairs of each side in its batches."""
    discriminator_lr: float = 1e-3
    """Its learning rate."""
    gradient_penalty: float = 0.0
    """Weight of its gradient penalty; 10 is usual."""
    spectral_norm: bool = False
    """Bound its slope by the spectral norm of its layers."""
    label_smoothing: float = 0.0
    """Its labels are 1 and 0 less this."""
    discriminator_entropy: float = 0.0
    """Bonus for an undecided discriminator."""
    epochs: int = 10
    """Passes of PPO over a rollout."""
    batch_size: int = 64
    """Steps in a minibatch of PPO."""
    lr: float = 1e-3
    """Learning rate of policy and value; falls linearly to 0 over the run."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    gamma: float = 0.99
    """Discount."""
    gae_lambda: float = 0.95
    """Between 0 (advantages of one step) and 1 (of the whole return)."""
    clip: float = 0.2
    """PPO's clip of the probability ratio."""
    value_clip: float | None = None
    """Clip the change of the value estimates, too."""
    value_coeff: float = 0.5
    """Weight of the value loss."""
    entropy_coeff: float = 0.01
    """Weight of the policy's entropy bonus."""
    max_grad_norm: float | None = 0.5
    """Clip gradients to this global norm."""


def main(cfg: Config) -> Policy:
    import torch
    from torchrl.objectives import BCLoss
    from torchrl.objectives.value import GAE

    from composerl import Policy, Run, Update
    from composerl.data import VectorCollector, load_experts
    from composerl.envs import make_env
    from composerl.losses import ClipPPOLoss, GAILLoss, GAILReward
    from composerl.modules import categorical_actor, discriminator, gaussian_actor, value
    from composerl.spaces import Spaces
    from composerl.update import linear

    run = Run(cfg)
    spaces = Spaces.of(cfg.env)
    experts = load_experts(
        cfg.expert, cfg.env, episodes=cfg.demonstrations, subsample=cfg.subsample,
        seed=cfg.expert_seed, batch_size=cfg.discriminator_batch, device=cfg.device,
    )  # fmt: skip

    make_actor = categorical_actor if spaces.discrete else gaussian_actor
    actor = make_actor(spaces, cfg.hidden, activation="tanh", init="orthogonal")
    critic = value(spaces, cfg.hidden, activation="tanh", init="orthogonal")
    ppo = ClipPPOLoss(
        actor, critic, clip_epsilon=cfg.clip, clip_value=cfg.value_clip,
        critic_coeff=cfg.value_coeff, entropy_coeff=cfg.entropy_coeff,
    ).to(cfg.device)  # fmt: skip
    judge = discriminator(spaces, cfg.hidden, spectral_norm=cfg.spectral_norm)
    gail = GAILLoss(
        judge, num_actions=spaces.num_actions, gp_lambda=cfg.gradient_penalty,
        entropy_coeff=cfg.discriminator_entropy, label_smoothing=cfg.label_smoothing,
    ).to(cfg.device)  # fmt: skip
    rounds, minibatches = -(-cfg.steps // cfg.rollout), -(-cfg.rollout // cfg.batch_size)
    update_policy = Update(
        ppo, lr=cfg.lr, schedule=linear(rounds * cfg.epochs * minibatches),
        max_grad_norm=cfg.max_grad_norm, compile=cfg.compile,
    )  # fmt: skip
    update_judge = Update(gail, lr=cfg.discriminator_lr, compile=cfg.compile)
    ends = experts.terminated if cfg.absorbing else None
    reward = GAILReward(judge, cfg.reward, gamma=cfg.gamma, expert_terminated=ends)
    advantage = GAE(gamma=cfg.gamma, lmbda=cfg.gae_lambda, value_network=critic, average_gae=True)
    env = make_env(cfg.env, cfg.num_envs)
    collector = VectorCollector(env, actor, frames_per_batch=cfg.rollout, seed=cfg.seed)

    info = {"expert/return": experts.mean_return}
    if cfg.bc_steps:
        clone = Update(BCLoss(actor), lr=cfg.lr)
        for _ in range(cfg.bc_steps):
            clone(experts.sample())
        info["bc/return"] = Policy(actor, cfg.env).evaluate(cfg.eval_episodes).mean

    run.track(policy=update_policy, judge=update_judge, experts=experts, collector=collector)
    for _ in run.steps(cfg.steps, by=cfg.rollout):
        batch = collector.next().to(cfg.device)
        pairs = batch.select("observation", "action").reshape(-1)
        judge.observe(pairs["observation"], experts.sample(len(pairs))["observation"])
        for _ in range(cfg.discriminator_updates):
            mine = pairs[torch.randint(len(pairs), (cfg.discriminator_batch,))]
            metrics = update_judge(mine.set("expert", experts.sample()))
            run.log({f"judge/{key}": number for key, number in metrics.items()})
        rows = advantage(reward(ppo.annotate(batch))).reshape(-1)
        for _ in range(cfg.epochs):
            for minibatch in rows[torch.randperm(len(rows))].split(cfg.batch_size):
                run.log(update_policy(minibatch))
        run.log(collector.metrics() | info)
        run.evaluate(actor)
    return run.finish(actor)


if __name__ == "__main__":
    cli(Config, main)
