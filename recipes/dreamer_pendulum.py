"""Dreamer, version 3 (Hafner et al. 2023), from vectors and with continuous actions.

The algorithm is that of dreamer_catch.py; the defaults are for Pendulum-v1, whose best policies
have a return of about -150.
"""

from __future__ import annotations

from dataclasses import dataclass

from composerl.catalog import load_recipe
from composerl.config import Count, NonNegative, Positive, Share, Whole, cli

catch = load_recipe("dreamer_catch")
main = catch.main


@dataclass(frozen=True, kw_only=True)
class Config(catch.Config):  # type: ignore[name-defined]  # a recipe is loaded by its file
    env: str = "Pendulum-v1"
    steps: Count = 20_000
    eval_every: Count = 2000
    eval_episodes: Count = 20
    num_envs: Count = 4
    warmup: Whole = 1000
    train_ratio: Positive = 64.0
    batch_size: Count = 16
    length: Count = 32
    lr: NonNegative = 1e-3
    horizon: Count = 15
    gamma: Share = 0.99


if __name__ == "__main__":
    cli(Config, main)
