"""Dreamer, version 3 (Hafner et al. 2023), on Atari's Breakout (extra atari).

The algorithm is that of dreamer_catch.py; the defaults are for Atari: 64 x 64 pixels in colour,
each action for 4 frames, sticky actions, and a lost life ends what the model imagines but not the
game, which is cut after 2500 steps. They fit one CPU core, where 100,000 steps take hours; on a
GPU use --device cuda --size medium --batch-size 16 --length 64.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from composerl.catalog import load_recipe
from composerl.config import Count, NonNegative, Positive, SizeName, Whole, cli

catch = load_recipe("dreamer_catch")
main = catch.main


@dataclass(frozen=True, kw_only=True)
class Config(catch.Config):  # type: ignore[name-defined]  # a recipe is loaded by its file
    env: str = "ALE/Breakout-v5"
    env_kwargs: dict[str, Any] = field(
        default_factory=lambda: {
            "size": 64,
            "stack": 1,
            "colour": True,
            "life_loss": True,
            "limit": 2500,
        }
    )
    steps: Count = 100_000
    eval_every: Count = 5000
    eval_episodes: Count = 5
    num_envs: Count = 1
    warmup: Whole = 500
    train_ratio: Positive = 64.0
    batch_size: Count = 8
    length: Count = 32
    size: SizeName = "small"
    lr: NonNegative = 1e-4
    lr_warmup: Whole = 1000
    horizon: Count = 15


if __name__ == "__main__":
    cli(Config, main)
