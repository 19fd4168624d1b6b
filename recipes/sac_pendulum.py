"""SAC, soft actor-critic (Haarnoja et al. 2018): online, continuous actions.

Twin critics learn the value of replayed actions, and the policy climbs the smaller of the two,
with a bonus for its entropy whose weight is tuned to a target.

The defaults suit Pendulum; for other tasks: --config hopper or halfcheetah.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from composerl import data, envs, losses, modules, optim
from composerl.config import Count, OffPolicyConfig, cli

if TYPE_CHECKING:
    from composerl import Policy


@dataclass(frozen=True, kw_only=True)
class Config(OffPolicyConfig):
    env: str = "Pendulum-v1"
    steps: Count = 5000
    eval_every: Count = 500


def main(cfg: Config) -> Policy:
    from torchrl.data import TensorDictReplayBuffer

    from composerl import Run, Update

    run = Run(cfg)
    env = envs.make_env(cfg.env, cfg.num_envs, **cfg.env_kwargs)
    actor = modules.tanh_gaussian_actor(env, cfg.hidden)
    critics = modules.twin_q(env, cfg.hidden, layer_norm=cfg.layer_norm)
    loss = losses.SACLoss(actor, critics, **cfg.sac_options())
    update = Update(
        loss.to(cfg.device),
        lr=cfg.rates(),
        schedule=optim.lr_schedule(cfg.lr_schedule, cfg.steps * cfg.updates),
        tau=cfg.tau,
        max_grad_norm=cfg.max_grad_norm,
        compile=run.compiles(sac=cfg.steps * cfg.updates),
    )
    buffer = TensorDictReplayBuffer(
        storage=data.PackedStorage(cfg.buffer_size, device=cfg.device), batch_size=cfg.batch_size
    )
    collector = data.VectorCollector(
        env,
        actor,
        frames_per_batch=cfg.num_envs,
        init_random_frames=cfg.warmup,
        seed=cfg.seed,
        workers=cfg.workers,
        collect=cfg.collect,
    )

    run.track(update=update, buffer=buffer, collector=collector)
    run.evaluate(actor)
    for step in run.steps(cfg.steps, by=cfg.num_envs):
        buffer.extend(collector.next().reshape(-1))
        for _ in range(cfg.updates * cfg.num_envs if step >= cfg.warmup else 0):
            run.log(update(buffer.sample()))
        run.log(collector.metrics() | {"buffer": len(buffer)})
        run.evaluate(actor)
    return run.finish(actor)


if __name__ == "__main__":
    cli(Config, main)
