"""A policy as files hold it: found, read and checked, before any network is made of it."""

from pathlib import Path
from typing import Any

from torch import Tensor

from composerl._files import inside
from composerl._schema import typed
from composerl.bookkeeping.checkpoint import best_path, checkpoints
from composerl.bookkeeping.console import say
from composerl.bookkeeping.trees import kind_of, load_tree
from composerl.config import check_run
from composerl.envs.spaces import Spaces

__all__ = ["read_policy"]

_KINDS = {"env": str, "env_kwargs": dict, "spaces": dict, "description": dict, "class": str,
          "state": dict}  # fmt: skip


def read_policy(path: Path, which: str) -> tuple[Path, dict[str, Any]]:
    """What a run directory, or a policy or checkpoint file, holds of a policy, and in which file.

    Of a run directory, if the file meant is damaged: what the newest checkpoint has that is not.
    """
    path = check_run(path)
    if path.is_dir():
        file, tree = _of_run(path, which)
    else:
        file = path.resolve()  # whoever names a file may name it by a link
        if kind_of(file) == "checkpoint":
            tree = load_tree(file, "checkpoint", part="policy")
        else:
            tree = load_tree(file, "policy")
    if tree is None:
        raise ValueError(f"{file} holds no policy: the run had not evaluated one yet")
    return file, _checked(tree, str(file))


def _of_run(run: Path, which: str) -> tuple[Path, Any]:
    """What a run directory holds of a policy, and the file that it is in."""
    if which not in ("final", "best"):
        raise ValueError(f"which must be 'final' or 'best', got {which!r}")
    best = which == "best"
    first = best_path(run) if best else inside(run, "policy.safetensors")
    problem: Exception | None = None
    for file in (first, *checkpoints(run)):
        try:
            if file == first:
                tree = load_tree(file, "policy")
            else:
                tree = load_tree(file, "checkpoint", part="best_policy" if best else "policy")
        except FileNotFoundError:  # of a run that has not finished
            continue
        except (ValueError, OSError) as error:
            problem = problem or error
            continue
        if problem is not None:
            say(f"{problem}; instead of it {file} is used")
        return file, tree
    if problem is not None:
        raise problem
    raise FileNotFoundError(
        f"{run} holds no policy: it has neither {first.relative_to(run)} nor checkpoints"
    )


def _checked(tree: Any, file: str) -> dict[str, Any]:
    """The tree with all that belongs to it, each of its type, and its spaces as such."""
    tree = dict.fromkeys(_KINDS) | typed(tree, _KINDS, file)
    tree["state"] = tree["state"] or {}
    if not all(isinstance(value, Tensor) for value in tree["state"].values()):
        raise ValueError(f"{file}: each of state must be a tensor")
    tree["spaces"] = _spaces(tree, file)
    description = tree["description"]
    if description is not None:
        typed(description, {"spaces": dict, "arguments": dict}, f"{file}: description")
        if _spaces(description, file) != tree["spaces"]:
            raise ValueError(f"{file}: the network's description has other spaces than the policy")
    return tree


def _spaces(values: dict[str, Any], file: str) -> Spaces:
    try:
        return Spaces(**(values.get("spaces") or {}))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file}: spaces cannot be read: {error}") from error
