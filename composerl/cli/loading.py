"""What several commands share: a run's policy, and how results are printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from composerl._schema import imported
from composerl.catalog import load_recipe
from composerl.config import check_run, config_from_yaml

if TYPE_CHECKING:
    from composerl.policy import Policy

__all__ = ["Env", "Module", "Recipe", "Which", "interval", "load_policy", "print_json"]

Which = Literal["final", "best"]
Env = Annotated[str | None, arg(help="To play in another environment, or one of yours: module:Id.")]
Module = Annotated[str | None, arg(help="Its environment, module:Id, where --recipe needs it.")]
Recipe = Annotated[Path | None, arg(help="Its actor(cfg) makes a policy of modules of your own.")]


def load_policy(run: Path, which: str, env: str | None, recipe: Path | None) -> Policy:
    """The policy of a run directory or file; torch then computes as in training."""
    run = check_run(run)
    import torch

    from composerl.policy import load

    actor = None
    if recipe is not None:
        module = load_recipe(recipe)
        if not hasattr(module, "actor"):
            raise ValueError(f"--recipe {recipe} has no function actor(cfg) that makes the module")
        places = [place / "config.yaml" for place in (run, *run.absolute().parents[:2])]
        config = config_from_yaml(module.Config, next(filter(Path.is_file, places), places[0]))
        if not imported(config.env if env is None else "", *config.env_kwargs.values()):
            raise ValueError(f"{run} names a module to import for its environment: say it by --env")
        actor = module.actor(config if env is None else replace(config, env=env))
    policy = load(run, which=which, actor=actor, env=env)
    torch.set_num_threads(1)  # as in training: small networks are fastest so
    return policy


def print_json(values: Any) -> None:
    """One line of JSON on stdout, at once."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def interval(ends: Sequence[float] | None) -> str:
    """An interval in words."""
    return f"{ends[0]:.2f} to {ends[1]:.2f}" if ends else "none"
