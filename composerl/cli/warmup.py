"""``composerl warmup``: compile once what ``--compile`` would compile in each run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from composerl.catalog import find_recipe, load_recipe
from composerl.catalog import recipes as catalogue
from composerl.config import RunConfig, WorldModelConfig, parse

__all__ = ["warmup"]


def warmup(name: Positional[str | None] = None) -> Callable[[list[str]], None]:
    """Fill the compiler's cache for NAME with these flags, or for all recipes as they are.

    Once per machine and version: --compile auto then counts with what a compiled run costs from
    the cache.

    Args:
        name: A packaged recipe (see composerl recipes) or the path of a recipe file.
    """

    def start(flags: list[str]) -> None:
        from composerl.bookkeeping.compiling import mark_warm

        for each in [name] if name else [*catalogue()]:
            module = load_recipe(each)
            if name is None and issubclass(module.Config, WorldModelConfig):
                continue  # its dozen graphs gain least, and take longest to compile
            config = parse(module.Config, flags, prog=f"composerl warmup {each}")
            recipe = find_recipe(each).stem
            with tempfile.TemporaryDirectory() as place:
                module.main(replace(config, **shortest(config, Path(place, "run"))))
            print(f"{recipe}: warm, {mark_warm(config, recipe)}")

    return start


def shortest(config: RunConfig, out: Path) -> dict[str, Any]:
    """What makes a run as short as can be that still does every kind of update."""
    by = getattr(config, "rollout", getattr(config, "num_envs", 1))
    steps = getattr(config, "warmup", 0) + by
    changes = {"out": out, "steps": steps, "compile": "on", "wandb": "disabled", "video": False}
    changes |= {"eval_every": steps, "eval_episodes": 1, "save_every": steps, "stop_at": None}
    offline = {"epochs": None, "online_steps": 0}  # of which cloning has no second phase
    return changes | {name: value for name, value in offline.items() if hasattr(config, name)}
