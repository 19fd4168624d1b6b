"""``composerl predict`` and ``export``: what a trained policy is for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from composerl._files import parse_json
from composerl.cli.loading import Module, Recipe, Which, load_policy, print_json

if TYPE_CHECKING:
    from composerl.policy import Policy

__all__ = ["export", "predict"]


def predict(
    run: Positional[Path],
    *,
    obs: str | None = None,
    npz: Path | None = None,
    which: Which = "final",
    env: Module = None,
    recipe: Recipe = None,
) -> None:
    """The policy's deterministic actions, as JSON lines.

    Without --obs or --npz, reads JSON lines from stdin and answers each with one line: an array
    (one observation, or a batch of them) or {"observation": array} with {"action": ...}, and
    {"reset": true} (a new episode, for policies with a memory) with itself. An observation of
    several arrays can be given as the object of them: {"a": array, "b": array}. A policy of masked
    actions needs {"observation": array, "action_mask": array}. What cannot be answered is answered
    with {"error": ...}; the exit code tells in the end that there was any.

    Args:
        run: Run directory, or a policy or checkpoint file in it.
        obs: An observation, or a batch, as JSON.
        npz: A file with observations (its key observations, or the only array); one line each. To
            a policy with a memory they are one after the other, a new episode where its key first
            is true.
        which: The final policy, or the best evaluated one.
    """
    if obs is not None and npz is not None:
        raise ValueError("--obs and --npz cannot be given together")
    if obs is not None:
        given = parse_json(obs, "--obs")
        print_json({"action": _act(load_policy(run, which, env, recipe), given, "--obs")})
    elif npz is not None:
        rows, first = _read_observations(npz)
        policy = load_policy(run, which, env, recipe)
        if policy.recurrent:
            actions = _follow(policy, rows, first, str(npz))
        else:
            actions = _act(policy, rows, str(npz))
        for action in actions:
            print_json({"action": action})
    else:
        _serve(load_policy(run, which, env, recipe))


def export(
    run: Positional[Path],
    *,
    out: Annotated[Path, arg(aliases=["-o"])],
    format: Literal["onnx", "pt2"] | None = None,
    which: Which = "final",
    env: Module = None,
    recipe: Recipe = None,
) -> None:
    """Write a policy as one self-contained file, normalisation included.

    Its input is observation (batch, ...), its output action; a policy with a memory has its state
    as inputs and outputs, too. It is compared with predict before it is written.

    Args:
        run: Run directory, or a policy or checkpoint file in it.
        out: File to write.
        format: onnx (for onnxruntime) or pt2 (for torch.export.load). Default: as the file ends.
        which: The final policy, or the best evaluated one.
    """
    kind = format or out.suffix.removeprefix(".")
    if kind not in ("onnx", "pt2"):
        raise ValueError(f"--out {out} ends in neither .onnx nor .pt2: say which by --format")
    print(load_policy(run, which, env, recipe).export(out, kind))


def _serve(policy: Policy) -> None:
    """Answer JSON lines until stdin ends; each answer leaves at once, somebody may wait for it."""
    if sys.stdin.isatty():
        sys.stderr.write("one observation a line, as JSON; Ctrl-D ends\n")
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="replace")  # what is no text ends no service
    failed = number = 0
    for number, line in enumerate(sys.stdin, start=1):
        if not line.strip():
            continue
        try:
            print_json(_answer(policy, line, f"line {number}"))
        except ValueError as error:
            failed += 1
            print_json({"error": str(error)})
    if failed:
        raise ValueError(f"{failed} of {number} lines were answered by an error")


def _answer(policy: Policy, line: str, where: str) -> dict[str, Any]:
    request = parse_json(line, where)
    if isinstance(request, dict) and request.get("reset") is True:
        policy.reset()
        return {"reset": True}
    return {"action": _act(policy, request, where)}


def _act(policy: Policy, given: Any, where: str) -> Any:
    observation, mask = _seen(given, policy.spaces.part_names, where)
    try:
        if policy.spaces.obs_dtype == "uint8":
            observation = _pixels(observation)
        return policy.predict(observation, mask=mask).tolist()
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{where}: {error}") from error


def _seen(given: Any, parts: tuple[str, ...], where: str) -> tuple[Any, Any]:
    """The observation and the mask of a request, which may be an observation of parts itself."""
    if not isinstance(given, dict):
        return given, None
    mask = given.get("action_mask")
    outer = {part.partition("/")[0]: None for part in parts}
    if outer and outer.keys() <= given.keys():  # one of them may be called observation, too
        return {key: part for key, part in given.items() if key != "action_mask"}, mask
    if "observation" not in given:
        lacks = (
            f'neither "observation" nor all of {", ".join(outer)}' if outer else 'no "observation"'
        )
        raise ValueError(f"{where} has {lacks}, it has {', '.join(given)}")
    return given["observation"], mask


def _pixels(observation: Any) -> Any:
    """JSON has no uint8: whole numbers from 0 to 255 are pixels; the rest predict refuses."""
    import numpy as np

    if isinstance(observation, dict):
        return {key: _pixels(part) for key, part in observation.items()}
    array = np.asarray(observation)
    if array.dtype.kind in "iu" and np.isin(array, np.arange(256)).all():
        return array.astype(np.uint8)
    return array


def _follow(policy: Policy, rows: Any, first: Any, where: str) -> list[Any]:
    """The actions of a policy with a memory, one observation after the other."""
    if len(first) != len(rows):
        raise ValueError(f"{where}: {len(first)} flags in first, but {len(rows)} observations")
    actions = []
    for row, starts in zip(rows, first, strict=True):
        if starts:
            policy.reset()
        actions.append(_act(policy, row, where))
    return actions


def _read_observations(path: Path) -> tuple[Any, Any]:
    """Observations, and which of them are an episode's first: none, if the file does not say."""
    import numpy as np

    from composerl.data.offline.formats import read_npz

    if not path.is_file():
        raise FileNotFoundError(f"--npz {path}: there is no such file")
    names = list(read_npz(path, ()))
    key = names[0] if len(names) == 1 else "observations"
    if key not in names:
        there = ", ".join(sorted(names)) or "nothing"
        raise ValueError(f"--npz {path} has no key observations; it has {there}")
    found = read_npz(path, (key, "first"))
    rows = found[key]
    first = found["first"] if "first" in names else np.zeros(rows.shape[:1], bool)
    return rows, first
