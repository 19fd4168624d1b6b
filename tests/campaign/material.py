"""What is attacked: small runs, finished and half done, and datasets; and whether two are equal."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from composerl.analysis.differences import first_difference
from composerl.bookkeeping import manifest
from composerl.bookkeeping.checkpoint import best_path, checkpoints
from composerl.bookkeeping.metrics import read_metrics
from composerl.bookkeeping.trees import load_tree
from composerl.cli import main
from composerl.config import config_to_dict
from tests.recipes.harness import RECIPES, load_recipe, small_config

from .child import Ended, Watch, allowed, forked

#: Of the others there are some tries too: one in ten.
CHEAP = ("iql_pendulum", "iqn_cartpole", "gail_cartpole", "bc_pendulum")
_SLOW = ("dreamer_breakout", "dreamer_crafter")  # a try of which takes longer than a hang
OTHERS = tuple(p.stem for p in RECIPES if p.stem not in (*CHEAP, *_SLOW))
SIZES = {"steps": 40, "log_every": 10, "eval_every": 20, "eval_episodes": 1, "save_every": 10,
         "compile": "off"}  # fmt: skip
PATIENCE = 600.0  # seconds for what is attacked, and is no try; the machine may be busy
#: What of a checkpoint tells time, or a run from its twin.
_OWN = ("seconds", "run_id", "metrics", "metrics_digest")


@dataclass
class Material:
    """Runs and datasets, made when they are first asked for, in a directory."""

    place: Path
    changes: dict[str, int] = field(default_factory=dict)
    """How often the uninterrupted run of a recipe changes something in its directory."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long it takes."""

    def pick(self, rng: random.Random) -> str:
        """The recipe of a try."""
        return rng.choice(CHEAP if rng.random() < 0.9 else OTHERS)

    def words(self, recipe: str, out: Path) -> list[str]:
        """The command line that begins a run, or goes on with it."""
        begun = (out / "config.yaml").is_file()
        how = ["--resume"] if begun else ["--config", str(self.config(recipe))]
        return ["run", recipe, "--out", str(out), *how]

    def whole(self, recipe: str, *flags: str) -> Path:
        """An uninterrupted run."""
        out = self.place / "whole" / "-".join([recipe, *flags]).replace("/", "")
        if not out.exists():
            began = time.monotonic()
            ended, changes = self._train(recipe, out, flags)
            if ended.how != "fine":
                raise RuntimeError(f"{recipe} does not run: {ended}")
            self.changes[recipe], self.seconds[recipe] = changes, time.monotonic() - began
        return out

    def half(self, recipe: str, *flags: str) -> Path:
        """A run that was killed when it had two checkpoints and more."""
        out = self.place / "half" / self.whole(recipe, *flags).name
        changes = self.changes[recipe]
        for kill_at in range(changes * 3 // 5, changes, 5):
            if out.exists():
                break
            ended, _ = self._train(recipe, out, flags, kill_at)
            if ended.code != -signal.SIGKILL:
                raise RuntimeError(f"{recipe} was not killed: {ended}")
            if len(checkpoints(out)) < 2:
                shutil.rmtree(out)
        return out

    def learned(self, kind: str) -> tuple[Path, Path]:
        """A run that learned from a file, whole and half."""
        flags = ("--dataset", str(self.dataset(kind)))
        return self.whole("bc_pendulum", *flags), self.half("bc_pendulum", *flags)

    def _train(
        self, recipe: str, out: Path, flags: Sequence[str], kill_at: int | None = None
    ) -> tuple[Ended, int]:
        words = [*self.words(recipe, out), *flags]
        watch = Watch(allowed(self.place), out, kill_at)
        return forked(partial(main, words), watch, seconds=PATIENCE)

    def dataset(self, kind: str) -> Path:
        """A file that datasets are read from: npz, h5 or Minari's hdf5."""
        name = {"npz": "data.npz", "h5": "data.h5", "minari": "data"}[kind]
        path = self.place / name
        if not path.exists():
            words = ["data", "make", "Pendulum-v1", "--behaviour", "noisy", "--size", "400"]
            ended, _ = forked(partial(main, [*words, "-o", str(path)]))
            if ended.how != "fine":
                raise RuntimeError(f"there is no dataset: {ended}")
        return path / "data" / "main_data.hdf5" if kind == "minari" else path

    def config(self, recipe: str) -> Path:
        """The settings of a recipe's small run."""
        path = self.place / f"{recipe}.yaml"
        if not path.exists():
            file = next(p for p in RECIPES if p.stem == recipe)
            config = small_config(load_recipe(file), Path("x"), **SIZES)
            path.write_text(yaml.safe_dump(config_to_dict(config)))
        return path


def copy(run: Path, place: Path) -> Path:
    """A copy of a run inside of the place of a try."""
    return Path(shutil.copytree(run, place / "run", symlinks=True))


def difference(run: Path, whole: Path) -> str | None:
    """How a finished run differs from an uninterrupted one in anything but time; None if not."""
    here, there = (_numbers(place) for place in (run, whole))
    if found := first_difference(there, here):
        return found
    if left := [str(path) for path in run.rglob(".*.tmp")]:
        return f"left behind: {left}"
    told = manifest.read_manifest(run)["files"]
    held = {name: manifest.digest(path) for name, path in manifest.contents(run).items()}
    if held != {name: entry["sha256"] for name, entry in told.items()}:
        return "manifest.json does not tell the files that there are"
    return None


def _numbers(run: Path) -> dict[str, Any]:
    rows = read_metrics(run / "metrics.jsonl")
    summary = json.loads((run / "summary.json").read_text())
    newest = checkpoints(run)[0]
    state = load_tree(newest, "checkpoint")
    return {
        "metrics": [_timeless(row) for row in rows],
        "summary": _timeless(summary),
        "policy": load_tree(run / "policy.safetensors", "policy"),
        "best": load_tree(best_path(run), "policy"),
        newest.name: {key: value for key, value in state.items() if key not in _OWN},
        "config": (run / "config.yaml").read_text(),
        "images": sorted(path.name for path in run.glob("images/*")),
    }


def _timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not key.startswith("time/")}


def files(run: Path) -> list[Path]:
    """The files of a run that have content."""
    found = [path for path in sorted(run.rglob("*")) if path.is_file() and not path.is_symlink()]
    return [path for path in found if path.stat().st_size]


def snapshot(place: Path) -> dict[str, Any]:
    """What lies in a directory: names, contents, modes and where links lead."""
    held: dict[str, Any] = {}
    for path in sorted(place.rglob("*")):
        about = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()
        held[str(path.relative_to(place))] = (about.st_mode, content)
    return held
