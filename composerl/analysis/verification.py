"""Whether a run is what it says: its files, its evaluations and, trained again, its bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from composerl._files import inside
from composerl._schema import number
from composerl.analysis.differences import first_difference
from composerl.analysis.replaying import Train, kept, numbers, replayed, rows, unrepeatable
from composerl.analysis.runs import PastRun, read_run
from composerl.bookkeeping import manifest
from composerl.bookkeeping.checkpoint import best_path
from composerl.bookkeeping.metrics import read_metrics
from composerl.bookkeeping.trees import load_tree
from composerl.policy import Policy
from composerl.run import EVALUATION_SEED

__all__ = ["Claim", "verify_run"]


@dataclass(frozen=True)
class Claim:
    """Something that a run says of itself, and what came out."""

    what: str
    verdict: Literal["verified", "differs", "cannot be checked"]
    why: str = ""


def verify_run(
    directory: Path,
    load: Callable[[Path], Policy],
    *,
    train: Train | None = None,
    since: int | str | None = None,
    env: str | None = None,
) -> Iterator[Claim]:
    """Check a run's claims one after the other.

    Args:
        directory: of the run.
        load: makes the policy of a file of the run.
        train: trains again what this run says; None if that is not asked.
        since: the step of the checkpoint to train again from, to the next one; ``"last"`` is the
            last but one; None is from the start to the end.
        env: the run's environment, if a module is to be imported for it.
    """
    try:
        told = manifest.read_manifest(directory)
    except FileNotFoundError:
        why = "there is none: the run has not finished, or is of an earlier version"
        yield Claim(manifest.MANIFEST, "cannot be checked", why)
        return
    except (ValueError, OSError) as error:
        yield Claim(manifest.MANIFEST, "differs", str(error))
        return
    yield from _files(directory, told)
    yield from _inputs(told["made_with"])
    try:
        run = read_run(directory)
    except (ValueError, OSError) as error:
        yield Claim("evaluations", "cannot be checked", str(error))
        return
    if env is not None and env != run.env:
        raise ValueError(f"--env is {env}, but that of {directory} is {run.env}")
    here = _elsewhere(told["made_with"], "cpu")
    yield _evaluation(run, "final", load, here)
    yield _evaluation(run, "best", load, here)
    if train is not None:
        here = _elsewhere(told["made_with"], run.config.get("device"))
        if since is None:
            yield from _replay(run, train, env, here)
        else:
            yield from _replay_part(run, since, train, env, here)


def _files(directory: Path, told: dict[str, Any]) -> Iterator[Claim]:
    try:
        found, expected = manifest.contents(directory), told["files"]
    except (ValueError, OSError) as error:
        yield Claim("files", "differs", str(error))
        return
    wrong = [
        Claim(name, "differs", why)
        for name in {**expected, **found}
        if (why := _file(found.get(name), expected.get(name)))
    ]
    yield from wrong
    if not wrong:
        yield Claim(f"{len(expected)} files", "verified", f"head {told['head']}")


def _file(path: Path | None, told: dict[str, Any] | None) -> str:
    """What is wrong with a file, in words; empty if nothing is."""
    if path is None:
        return "the file is gone"
    if told is None:
        return "the manifest does not know it"
    try:
        if (size := path.lstat().st_size) != told["bytes"]:
            return f"it has {size} bytes, not {told['bytes']}"
        same = manifest.digest(path) == told["sha256"]
    except (ValueError, OSError) as error:
        return str(error)
    return "" if same else "its content is not that of the end of the run"


def _inputs(made: dict[str, Any]) -> Iterator[Claim]:
    for named, digest in (made.get("inputs") or {}).items():
        file = manifest.input_file(named)
        try:
            here = None if file is None else manifest.digest(file)
        except OSError as error:
            yield Claim(named, "cannot be checked", str(error))
            continue
        if here is None:
            yield Claim(named, "cannot be checked", "the run learned from it, and it is not here")
        elif here != digest:
            yield Claim(named, "differs", "it is not what the run learned from")
        else:
            yield Claim(named, "verified", "the run learned from it")


def _elsewhere(made: dict[str, Any], device: Any) -> str:
    """How this machine differs from that of the run, in words; empty if it does not."""
    was, now = (
        {**(about.get("versions") or {}), **{k: about.get(k) for k in ("python", "cpu", "device")}}
        for about in (made, manifest.made_here(device))
    )
    return ", ".join(f"{k} was {was.get(k)}, is {now[k]}" for k in now if was.get(k) != now[k])


def _judge(what: str, difference: str | None, here: str, why: str = "") -> Claim:
    if difference is None:
        return Claim(what, "verified", why)
    if here:
        return Claim(what, "cannot be checked", f"{difference}; but {here}")
    return Claim(what, "differs", difference)


def _evaluation(run: PastRun, which: str, load: Callable[[Path], Policy], here: str) -> Claim:
    what = f"returns of the {which} policy"
    told = (run.summary or {}).get(which) or {}
    returns = told.get("returns")
    if not returns:
        return Claim(what, "cannot be checked", "summary.json does not tell them")
    try:
        best = which == "best"
        file = best_path(run.directory) if best else inside(run.directory, "policy.safetensors")
        policy, rows = load(file), read_metrics(inside(run.directory, "metrics.jsonl"))
        torch.set_num_threads(_threads(run))
        result = policy.evaluate(len(returns), EVALUATION_SEED)
    except (ValueError, OSError) as error:
        return Claim(what, "cannot be checked", str(error))
    at = [row["eval/return"] for row in rows
          if "eval/return" in row and row["step"] == told.get("step")]  # fmt: skip
    said = {f"episode {k} in summary.json": pair
            for k, pair in enumerate(zip(returns, result.returns, strict=True))}  # fmt: skip
    said["the mean in summary.json"] = told.get("return"), result.mean
    said["the mean in metrics.jsonl"] = at[-1] if at else None, result.mean
    wrong = (f"{name} is {a!r}, played again {b!r}" for name, (a, b) in said.items()
             if not _same(a, b))  # fmt: skip
    return _judge(what, next(wrong, None), here, f"{len(returns)} episodes")


def _same(a: Any, b: float) -> bool:
    return a == b or (number(a) and math.isnan(a) and math.isnan(b))


def _threads(run: PastRun) -> int:
    threads = run.config.get("threads")
    return threads if isinstance(threads, int) and 1 <= threads <= 1024 else 1


def _replay(run: PastRun, train: Train, env: str | None, here: str) -> Iterator[Claim]:
    what = "trained again: "
    if why := unrepeatable(run, env):
        yield Claim(f"{what}metrics, policy", "cannot be checked", why)
        return
    reads: dict[str, Callable[[Path], Any]] = {
        "metrics": rows,
        "policy": lambda place: load_tree(inside(place, "policy.safetensors"), "policy"),
    }
    try:
        with replayed(run, train) as again:
            pairs = {kind: (read(run.directory), read(again)) for kind, read in reads.items()}
    except (ValueError, OSError, RuntimeError) as error:
        yield Claim(f"{what}metrics, policy", "cannot be checked", str(error))
        return
    for kind, pair in pairs.items():
        yield _judge(f"{what}{kind}", first_difference(*pair), here)


def _replay_part(
    run: PastRun, since: int | str, train: Train, env: str | None, here: str
) -> Iterator[Claim]:
    """From a kept checkpoint to the next one."""
    steps = [*kept(run.directory)]
    if len(steps) < 2:
        told = f"{len(steps)} checkpoint is kept, and it takes two: train with --keep-checkpoints 2"
        yield Claim("trained again from a checkpoint", "cannot be checked", told)
        return
    start = steps[-2] if since == "last" else since
    if start not in steps[:-1]:
        there = ", ".join(map(str, steps[:-1]))
        raise ValueError(
            f"{run.directory} has no checkpoint of step {since} to go on from: {there}"
        )
    end = steps[steps.index(start) + 1]
    what = f"trained again from step {start} to {end}: "
    if why := unrepeatable(run, env, int(start)):
        yield Claim(f"{what}metrics, checkpoint", "cannot be checked", why)
        return
    try:
        with replayed(run, train, int(start), end) as again:
            pairs = {
                "metrics": [
                    {name: row for name, row in rows(place).items() if row["step"] <= end}
                    for place in (run.directory, again)
                ],
                "checkpoint": [numbers(kept(place)[end]) for place in (run.directory, again)],
            }
    except (ValueError, OSError, RuntimeError, KeyError) as error:
        yield Claim(f"{what}metrics, checkpoint", "cannot be checked", str(error))
        return
    for kind, pair in pairs.items():
        yield _judge(f"{what}{kind}", first_difference(*pair), here)
