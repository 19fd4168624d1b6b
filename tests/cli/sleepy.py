"""A recipe that learns nothing and takes its time: whoever wants to kill it, can."""

import time
from dataclasses import dataclass

from composerl.config import RunConfig, cli


class Walk:
    """A random walk, as something with a state."""

    def __init__(self, actor):
        self.actor = actor

    def __call__(self):
        import torch

        with torch.no_grad():
            for parameter in self.actor.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        return {"size": sum(float(p.norm()) for p in self.actor.parameters())}

    def state_dict(self):
        return self.actor.state_dict()

    def load_state_dict(self, state):
        self.actor.load_state_dict(state)


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    env: str = "CartPole-v1"
    steps: int = 150
    log_every: int = 5
    eval_every: int = 50
    eval_episodes: int = 2
    save_every: int = 10
    wandb: str = "disabled"
    pause: float = 0.03
    """Seconds of a step."""


def main(cfg):
    from composerl import Run, envs, modules

    run = Run(cfg)
    actor = modules.q_network(envs.make_env(cfg.env), (8,))
    walk = Walk(actor)
    run.track(walk=walk)
    for _ in run.steps(cfg.steps):
        time.sleep(cfg.pause)
        run.log(walk())
        run.evaluate(actor)
    return run.finish(actor)


if __name__ == "__main__":
    cli(Config, main)
