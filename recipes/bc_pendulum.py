"""BC, behaviour cloning (Pomerleau 1989): offline, continuous or discrete actions.

Imitates all of a dataset's actions by maximum likelihood. Continuous ones by a Gaussian whose
deviation is the same in all states: its mean averages the behaviour's noise away. The density of
SAC's (--actor tanh) has no bound at the ends of an action's range, and a few actions there can
outweigh all others.

The defaults suit Pendulum, and CartPole with --env CartPole-v1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from composerl import data, envs, losses, modules, optim
from composerl.config import Count, DatasetConfig, Section, cli

if TYPE_CHECKING:
    from composerl import Policy


@dataclass(frozen=True, kw_only=True)
class Config(DatasetConfig):
    env: str = "Pendulum-v1"
    steps: Count = 3000
    dataset: str = "noisy"

    networks: ClassVar[Section]
    actor: Literal["gaussian", "tanh"] = "gaussian"
    """A plain Gaussian, its mean within the bounds, or SAC's, squashed by tanh."""


def main(cfg: Config) -> Policy:
    from torchrl.data import TensorDictReplayBuffer

    from composerl import Run, Update

    run = Run(cfg)
    env = envs.make_env(cfg.env, **cfg.env_kwargs)
    dataset = data.load_dataset(cfg.dataset, cfg.env, spaces=run.spaces, **cfg.loading())
    steps = cfg.gradient_steps(len(dataset))

    stats = data.observation_stats(dataset) if cfg.normalize else False
    make_actor = {"gaussian": modules.gaussian_actor, "tanh": modules.tanh_gaussian_actor}
    if envs.Spaces.of(env).num_actions:
        actor = modules.categorical_actor(env, cfg.hidden, normalize=stats)
    else:
        actor = make_actor[cfg.actor](env, cfg.hidden, normalize=stats)
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
    run.evaluate(actor)
    for _ in run.steps(steps):
        run.log(update(demos.sample(cfg.batch_size)))
        run.evaluate(actor)
    return run.finish(actor)


if __name__ == "__main__":
    cli(Config, main)
