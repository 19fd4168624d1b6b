"""``composerl verify``: whether runs are what they say."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from composerl.catalog import load_recipe, recipes
from composerl.catalog import train as train_recipe
from composerl.cli.loading import load_policy, print_json
from composerl.config import check_run

if TYPE_CHECKING:
    from composerl.analysis.runs import PastRun
    from composerl.policy import Policy

__all__ = ["verify"]

Recipe = Annotated[Path | None, arg(help="The recipe's file, if it is none of the packaged ones.")]
Env = Annotated[str | None, arg(help="The run's environment, module:Id, to import the module.")]


def verify(
    runs: Positional[tuple[Path, ...]],
    *,
    replay: bool = False,
    recipe: Recipe = None,
    env: Env = None,
    json: bool = False,
) -> None:
    """Check that runs are what they say: files by manifest.json, returns by playing again.

    Every claim is verified, differs, or cannot be checked here for a reason that is told. The exit
    code is 0 if all are verified, 1 if one differs, else 3. Files of W&B are not looked at.

    Args:
        runs: Run directories.
        replay: Also train again from the start, and compare metrics and policy bit for bit.
        json: Print a line of JSON for each run instead of a table.
    """
    from composerl.analysis.verification import verify_run
    from composerl.bookkeeping.console import print_table

    if not runs:
        raise ValueError("give one run directory or more")
    for run in runs:
        check_run(run)
        if not run.is_dir():
            raise NotADirectoryError(f"{run} is a file, expected a run directory")
    own = recipe if recipe is not None and hasattr(load_recipe(recipe), "actor") else None

    def load(file: Path) -> Policy:
        return load_policy(file, "final", env, own)

    def train(run: PastRun, out: Path) -> object:
        if recipe is None and run.recipe not in recipes():  # a file that a run names is not run
            raise ValueError(f"{run.recipe} is none of the packaged recipes: name it by --recipe")
        quiet = {"wandb": "disabled", "wandb_artifacts": False, "video": False}
        flags = quiet | {"tensorboard": False} | ({"env": env} if env else {})
        config = run.directory / "config.yaml"
        return train_recipe(recipe or run.recipe, config=config, out=out, **flags)

    verdicts = set()
    for run in runs:
        claims = list(verify_run(run, load, train=train if replay else None, env=env))
        verdicts |= {claim.verdict for claim in claims}
        if json:
            print_json({"run": str(run), "claims": [asdict(claim) for claim in claims]})
        else:
            rows = [(claim.what, claim.verdict, claim.why) for claim in claims]
            print_table(str(run), ("claim", "verdict", "why"), rows, align="left")
    if verdicts != {"verified"}:
        sys.exit(1 if "differs" in verdicts else 3)
