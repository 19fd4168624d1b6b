"""Dreamer, version 3 (Hafner et al. 2023), on Crafter (extra crafter).

The algorithm is that of dreamer_catch.py; the defaults fit one CPU core for 50,000 steps. The
metrics have the share of episodes in which each achievement was reached, and Crafter's score.
Random play has a return of 2.1; the authors have 11.7 after a million steps of a large model.
"""

from __future__ import annotations

from dataclasses import dataclass

from composerl.catalog import load_recipe
from composerl.config import Count, NonNegative, Positive, SizeName, Whole, cli

catch = load_recipe("dreamer_catch")
main = catch.main


@dataclass(frozen=True, kw_only=True)
class Config(catch.Config):  # type: ignore[name-defined]  # a recipe is loaded by its file
    env: str = "Crafter/Reward-v1"
    steps: Count = 50_000
    eval_every: Count = 5000
    eval_episodes: Count = 5
    num_envs: Count = 1
    warmup: Whole = 500
    train_ratio: Positive = 64.0
    batch_size: Count = 8
    length: Count = 32
    size: SizeName = "small"
    lr: NonNegative = 3e-4
    lr_warmup: Whole = 500
    horizon: Count = 15


if __name__ == "__main__":
    cli(Config, main)
