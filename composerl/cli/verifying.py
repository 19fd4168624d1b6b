"""``composerl verify`` and ``bisect``: whether runs are what they say, and where two part."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from composerl.catalog import load_recipe, recipes
from composerl.catalog import train as train_recipe
from composerl.cli.loading import load_policy, print_json
from composerl.config import check_run, runs_at

if TYPE_CHECKING:
    from composerl.analysis.replaying import Train
    from composerl.analysis.runs import PastRun
    from composerl.policy import Policy

__all__ = ["bisect", "verify"]

Recipe = Annotated[Path | None, arg(help="The recipe's file, if it is none of the packaged ones.")]
Env = Annotated[str | None, arg(help="The run's environment, module:Id, to import the module.")]


def verify(
    runs: Positional[tuple[Path, ...]],
    *,
    replay: bool = False,
    replay_from: str | None = None,
    recipe: Recipe = None,
    env: Env = None,
    json: bool = False,
) -> None:
    """Check that runs are what they say: files by manifest.json, returns by playing again.

    Every claim is verified, differs, or cannot be checked here for a reason that is told. The exit
    code is 0 if all are verified, 1 if one differs, else 3. Files of W&B are not looked at.

    Args:
        runs: Run directories, or directories with runs in them.
        replay: Also train again from the start, and compare metrics and policy bit for bit.
        replay_from: Instead train again only from a kept checkpoint to the next one, which is
            compared bit for bit: the checkpoint's step, or last for the last two.
        json: Print a line of JSON for each run instead of a table.
    """
    from composerl.analysis.verification import verify_run
    from composerl.bookkeeping.console import print_table

    if not runs:
        raise ValueError("give one run directory or more")
    since = None if replay_from is None else _step(replay_from)
    if replay and since is not None:
        raise ValueError("--replay is from the start: it cannot be given with --replay-from")
    runs = _require_directories([run for place in runs for run in runs_at(place)])
    own = recipe if recipe is not None and hasattr(load_recipe(recipe), "actor") else None
    train = _trainer(recipe, env) if replay or since is not None else None

    def load(file: Path) -> Policy:
        return load_policy(file, "final", env, own)

    verdicts = set()
    for run in runs:
        claims = list(verify_run(run, load, train=train, since=since, env=env))
        verdicts |= {claim.verdict for claim in claims}
        if json:
            print_json({"run": str(run), "claims": [asdict(claim) for claim in claims]})
        else:
            # To be noted down: below the table, in one piece whatever the terminal's width.
            heads = [claim.why for claim in claims if claim.why.startswith("head ")]
            whys = ["" if claim.why in heads else claim.why for claim in claims]
            rows = [(c.what, c.verdict, why) for c, why in zip(claims, whys, strict=True)]
            print_table(str(run), ("claim", "verdict", "why"), rows, align="left")
            print("\n".join(heads))
    if verdicts != {"verified"}:
        sys.exit(1 if "differs" in verdicts else 3)


def bisect(
    a: Positional[Path],
    b: Positional[Path],
    *,
    replay: bool = False,
    recipe: Recipe = None,
    env: Env = None,
    json: bool = False,
) -> None:
    """Where two runs part: the first step, metric and tensor that differ, and by how much.

    Compares rows of metrics, the checkpoints that both have kept, and policies, to the bit and but
    for times; what the runs were told otherwise is said first. The exit code is 0 if all are equal,
    1 if they differ.

    Args:
        a: Run directory.
        b: The same.
        replay: Also train again between the last equal checkpoint and the first other one: the
            step at which runs of other settings part, or which of two alike comes out so here.
        json: Print JSON instead of a table.
    """
    from composerl.analysis.bisection import bisect_runs, settings_apart
    from composerl.analysis.runs import read_run
    from composerl.bookkeeping.console import print_table

    a, b = _require_directories([check_run(a), check_run(b)])
    runs = read_run(a), read_run(b)
    settings = settings_apart(*runs)
    found = list(bisect_runs(*runs, _trainer(recipe, env) if replay else None, env))
    if json:
        print_json({"settings": settings, "partings": [asdict(parting) for parting in found]})
    else:
        if settings:
            print_table("settings", ("setting", "A and B"), settings.items(), align="left")
        rows = [(parting.what, parting.where, parting.how or "equal") for parting in found]
        print_table(f"A {a}, B {b}", ("compared", "first at", "difference"), rows, align="left")
    if any(parting.how for parting in found):
        sys.exit(1)


def _require_directories(runs: Sequence[Path]) -> tuple[Path, ...]:
    if files := [run for run in runs if not run.is_dir()]:
        raise NotADirectoryError(f"{files[0]} is a file, expected a run directory")
    return tuple(runs)


def _step(text: str) -> int | str:
    if text != "last" and not (text.isdecimal() and len(text) <= 12):
        raise ValueError(f"--replay-from must be the step of a checkpoint, or last, got {text!r}")
    return text if text == "last" else int(text)


def _trainer(recipe: Path | None, env: str | None) -> Train:
    """What trains a run again, or goes on with a copy of it."""

    def train(run: PastRun, out: Path, resume: bool) -> object:
        if recipe is None and run.recipe not in recipes():  # a file that a run names is not run
            raise ValueError(f"{run.recipe} is none of the packaged recipes: name it by --recipe")
        quiet = {"wandb": "disabled", "wandb_artifacts": False, "video": False}
        flags = quiet | {"tensorboard": False} | ({"env": env} if env else {})
        start = {"resume": True} if resume else {"config": run.directory / "config.yaml"}
        return train_recipe(recipe or run.recipe, out=out, **start, **flags)

    return train
