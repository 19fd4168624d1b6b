"""BC, behaviour cloning (Pomerleau 1989): offline, continuous or discrete actions.

Imitates all of a dataset's actions by maximum likelihood. Continuous ones by a Gaussian whose
deviation is the same in all states: its mean averages the behaviour's noise away. That of SAC, a
Gaussian squashed by tanh, has no bound on the density of actions at the ends of their range, where
many of Pendulum's are, and a few of them can outweigh all others.

The defaults suit Pendulum, and CartPole with --env CartPole-v1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from composerl import data, envs, losses, modules, optim
from composerl.config import Count, DatasetConfig, cli

if TYPE_CHECKING:
    from composerl import Policy


@dataclass(frozen=True, kw_only=True)
class Config(DatasetConfig):
    env: str = "Pendulum-v1"
    steps: Count = 3000
    dataset: str = "noisy"


def main(cfg: Config) -> Policy:
    from torchrl.data import TensorDictReplayBuffer

    from composerl import Run, Update

    run = Run(cfg)
    env = envs.make_env(cfg.env, **cfg.env_kwargs)
    dataset = data.load_dataset(
        cfg.dataset,
        cfg.env,
        size=cfg.dataset_size,
        seed=cfg.dataset_seed,
        env_kwargs=cfg.env_kwargs,
        spaces=env,
    )
    steps = cfg.gradient_steps(len(dataset))

    stats = data.observation_stats(dataset) if cfg.normalize else False
    number = envs.Spaces.of(env).num_actions
    make_actor = modules.categorical_actor if number else modules.gaussian_actor
    actor = make_actor(env, cfg.hidden, normalize=stats)
    loss = losses.BCLoss(actor).to(cfg.device)
    update = Update(
        loss,
        lr=cfg.lr,
        schedule=optim.lr_schedule(cfg.lr_schedule, steps),
        max_grad_norm=cfg.max_grad_norm,
        compile=run.compiles(bc=steps),
    )

    demos = TensorDictReplayBuffer(storage=data.DatasetStorage(dataset, device=cfg.device))

    run.track(update=update, demos=demos)
    for _ in run.steps(steps):
        run.log(update(demos.sample(cfg.batch_size)))
        run.evaluate(actor)
    return run.finish(actor)


if __name__ == "__main__":
    cli(Config, main)
