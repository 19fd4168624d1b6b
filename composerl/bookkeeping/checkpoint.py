"""The resume points of a run: which there are, the newest that can be read, a new one."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from composerl._files import inside
from composerl._schema import Kinds, typed
from composerl.bookkeeping.console import say
from composerl.bookkeeping.trees import block_files, blocks_of, load_tree, save_tree

__all__ = ["best_path", "checkpoints", "load_checkpoint", "load_newest", "mend", "save_checkpoint",
           "versions"]  # fmt: skip

KEPT = 2  # of a run, unless it is told otherwise
#: What a checkpoint holds, as far as its type tells.
_KINDS: Kinds = {"step": int, "recipe": str, "config": dict, "run_id": str, "metrics": int,
                 "metrics_digest": str, "goal": list, "score": dict, "row": dict, "seconds": list,
                 "tracked": dict, "rng": dict}  # fmt: skip
_NAME = re.compile(r"step-[0-9]{12}")


def checkpoints(run: Path) -> list[Path]:
    """The resume points of a run, newest first."""
    found = inside(run, "checkpoints").glob("step-*.safetensors")
    return sorted((path for path in found if _NAME.fullmatch(path.stem)), reverse=True)


def versions(run: Path) -> dict[Path, tuple[int, int]]:
    """Its resume points, and what tells whether one of them was written anew."""
    stats = {path: path.lstat() for path in checkpoints(run)}
    return {path: (about.st_ino, about.st_mtime_ns) for path, about in stats.items()}


def best_path(run: Path) -> Path:
    """Where the best evaluated policy belongs."""
    return inside(run, "checkpoints", "best.safetensors")


def load_checkpoint(path: Path) -> dict[str, Any]:
    """What a resume point holds; one that is damaged, or none, is refused in a sentence."""
    state = typed(load_tree(path, "checkpoint"), _KINDS, str(path))
    if _NAME.fullmatch(path.stem) and state.get("step") != _step(path):
        raise ValueError(f"{path} is damaged: it holds step {state.get('step')}")
    return state


def load_newest(
    run: Path, check: Callable[[dict[str, Any]], object] | None = None
) -> dict[str, Any] | None:
    """The newest resume point of a run that can be read; None if it has none. Changes nothing.

    ``check`` may refuse one by a ValueError, too.
    """
    unread: list[Path] = []
    for path in checkpoints(run):
        try:
            state = load_checkpoint(path)
            if check is not None:
                check(state)
        except (ValueError, OSError) as error:
            problem = error
            unread.append(path)
            say(str(error))
            continue
        if unread:
            say(f"instead of it {path} is used")
        return state
    if unread:
        raise ValueError(
            f"{problem}; no checkpoint of {run} can be read: to train all {_step(unread[0])} steps "
            f"again from the start delete {unread[0].parent}"
        ) from problem
    return None


def mend(run: Path, step: int) -> None:
    """Make the resume point of this step the newest: those after it could not be read.

    They get another name, and blocks that are damaged are removed: who goes on writes both anew.
    """
    found = checkpoints(run)
    unread = [path for path in found if _step(path) > step]
    if unread:
        # Resuming is exact, so an older checkpoint costs time and nothing else.
        say(f"going on from step {step}: {_step(unread[0]) - step} steps are trained again")
    for damaged in unread:
        os.replace(damaged, _unused(damaged))
    for path in found:
        if _step(path) == step:
            blocks_of(path).mend(block_files(path))


def _step(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))


def _unused(path: Path) -> Path:
    """A name for what cannot be read, which may be anything: a link, a directory."""
    names = (path.with_name(f"{path.name}.damaged{number or ''}") for number in range(1000))
    return next(name for name in names if not os.path.lexists(name))


def save_checkpoint(
    run: Path, step: int, tree: Any, check: Callable[[], None] | None = None, keep: int = KEPT
) -> Path:
    """Write the resume point of a step; remove older ones, their blocks, and what came of them.

    The newest ``keep`` of them stay. ``check`` may raise, before anything is published or removed.
    """
    path = inside(run, "checkpoints") / f"step-{step:012d}.safetensors"
    save_tree(path, "checkpoint", tree, check)
    found = checkpoints(run)
    used: set[Path] = set()
    for kept in found[:keep]:
        try:
            used.update(block_files(kept))
        except (ValueError, OSError) as error:
            say(f"{error}; nothing can be resumed from it")
    unused = found[keep:] + blocks_of(path).others(used)
    unused += [run / "summary.json", run / "policy.safetensors"]  # of a run that went on
    unused = [old for old in unused if old.is_file()]
    if check is not None:
        check()  # after the list was made: nothing on it is a later owner's
    for old in unused:
        old.unlink(missing_ok=True)
    return path
