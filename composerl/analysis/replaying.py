"""Training again, from the start or from a kept checkpoint, up to some step: what comes of it."""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from composerl._files import inside, open_plain
from composerl._schema import imported
from composerl.analysis.runs import PastRun
from composerl.bookkeeping.checkpoint import checkpoints, load_checkpoint
from composerl.bookkeeping.metrics import read_metrics
from composerl.bookkeeping.signals import Left, leaving_after
from composerl.bookkeeping.trees import block_files

__all__ = ["Train", "kept", "numbers", "replayed", "rows", "unrepeatable"]

#: Trains what a run says, into a directory: a new one, or the copy of a run to go on with.
Train = Callable[[PastRun, Path, bool], object]
#: What of a checkpoint tells time, or a run from its twin; settings are compared by themselves.
_OWN = ("seconds", "run_id", "metrics", "metrics_digest", "config", "goal")
_NEEDED = ("config.yaml", "metadata.json", "metrics.jsonl")


def kept(directory: Path) -> dict[int, Path]:
    """The checkpoints of a run by their step, in the order of training."""
    found = reversed(checkpoints(directory))
    return {int(path.stem.removeprefix("step-")): path for path in found}


def numbers(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint holds but for times and names; tensors first, of which the rest comes."""
    state = load_checkpoint(checkpoint)
    told = {key: value for key, value in state.items() if key not in _OWN}
    return {"tracked": told.pop("tracked", None), **told}


def rows(directory: Path) -> dict[str, Any]:
    """The rows of metrics by step, without times."""
    found: dict[str, Any] = {}
    for count, row in enumerate(read_metrics(inside(directory, "metrics.jsonl")), 1):
        told = {key: value for key, value in row.items() if not key.startswith("time/")}
        found[f"row {count}, step {row['step']}"] = told
    return found


def unrepeatable(run: PastRun, env: str | None, since: int = 0) -> str:
    """Why a run cannot be trained again from a step on, in words; empty if it can."""
    kwargs = run.config.get("env_kwargs")
    values = kwargs.values() if isinstance(kwargs, dict) else ()
    if not imported("" if env else run.env, *values):
        return f"a module is to be imported for {run.env}: say so by --env"
    if run.config.get("collect") == "async":
        return "it collected while it learned (--collect async), which never comes out twice"
    at = run.metadata.get("changed_at")
    if at is not None and at > since:
        return f"it went on from step {at} with other settings, so config.yaml is half the story"
    return ""


@contextmanager
def replayed(
    run: PastRun, train: Train, since: int = 0, until: int | None = None
) -> Iterator[Path]:
    """The directory of the run trained again, for as long as the context lasts.

    Args:
        run: which.
        train: trains it.
        since: the step of a kept checkpoint to go on from; 0 is the start.
        until: the step after which to stop, with a checkpoint; None is the end.
    """
    with tempfile.TemporaryDirectory() as place:
        again = Path(place) / "run"
        if since:
            _copy(run.directory, kept(run.directory)[since], again)
        with redirect_stdout(io.StringIO()):  # it tells of a directory that will be gone
            if until is None:
                train(run, again, bool(since))
            else:
                # It leaves as asked, or ends by itself at that step.
                with suppress(Left), leaving_after(until):
                    train(run, again, bool(since))
        yield again


def _copy(directory: Path, checkpoint: Path, target: Path) -> None:
    """What of a run is needed to go on from a checkpoint, and nothing through links."""
    named = [Path(name) for name in _NEEDED if (directory / name).exists()]
    named += [path.relative_to(directory) for path in (checkpoint, *block_files(checkpoint))]
    for name in named:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_plain(inside(directory, *name.parts)) as source, open(path, "wb") as copy:
            shutil.copyfileobj(source, copy)
