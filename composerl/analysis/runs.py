"""Run directories, read: what plots, reports and comparisons look at. Imports no torch."""

import math
import os
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from composerl._files import below, read_json, read_yaml
from composerl._schema import Kinds, number, typed
from composerl.bookkeeping.metrics import metric_rows
from composerl.bookkeeping.rundir import METADATA

__all__ = ["PastRun", "find_runs", "read_run"]

CONFIG: Kinds = {"env": str, "seed": int}
SUMMARY: Kinds = {"final": dict, "best": dict, "steps": int, "stopped": str,
                  "time/cpu_seconds": float}  # fmt: skip
EVALUATION: Kinds = {"return": float, "std": float, "step": int, "episodes": int, "returns": list}


@dataclass(frozen=True)
class PastRun:
    """One run, finished or not, as its directory tells it."""

    directory: Path
    config: dict[str, Any]
    metadata: dict[str, Any]
    summary: dict[str, Any] | None
    """None while the run has not finished."""

    @property
    def recipe(self) -> str:
        """Name of the recipe."""
        return str(self.metadata.get("recipe") or self.directory.parent.name)

    @property
    def seed(self) -> Any:
        """The seed it was started with."""
        return self.config.get("seed")

    @property
    def env(self) -> Any:
        """The environment's id."""
        return self.config.get("env")

    @property
    def unit(self) -> str:
        """What its steps are: ``updates``, ``environment steps``; if not told, ``steps``."""
        return str(self.metadata.get("step_unit") or "steps")

    @cached_property
    def columns(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """The numbers in metrics.jsonl by name: in which rows there are any, and which."""
        rows: dict[str, array] = {}
        values: dict[str, array] = {}
        for count, row in enumerate(metric_rows(self.directory / "metrics.jsonl")):
            for key, value in row.items():
                if number(value):
                    rows.setdefault(key, array("q")).append(count)
                    values.setdefault(key, array("d")).append(value)
        return {key: (np.array(rows[key]), np.array(values[key])) for key in rows}

    @property
    def last_step(self) -> int:
        """The step of the last row of metrics."""
        return int(self.columns["step"][1][-1]) if "step" in self.columns else 0

    def series(self, key: str, x: str = "step") -> tuple[np.ndarray, np.ndarray]:
        """The values of ``key`` that are numbers, and before them those of ``x`` in these rows."""
        none = (np.empty(0, np.int64), np.empty(0))
        (rows, values), (x_rows, x_values) = (self.columns.get(name, none) for name in (key, x))
        _, here, there = np.intersect1d(rows, x_rows, assume_unique=True, return_indices=True)
        if not len(here):
            known = ", ".join(sorted({*self.columns} - {"step"})) or "nothing yet"
            wrong = x if key in self.columns else key
            raise ValueError(f"{self.directory} has no metric {wrong!r}; it has {known}")
        return x_values[there], values[here]

    def final(self) -> dict[str, Any]:
        """The final evaluation; one that is no number, or not there, is refused in a sentence."""
        final = (self.summary or {}).get("final")
        if not isinstance(final, dict) or not number(final.get("return")):
            raise ValueError(
                f"{self.directory} has no final evaluation (summary.json): the run has not "
                "finished; go on with it by --resume, or use `composerl evaluate`"
            )
        if not math.isfinite(final["return"]):
            raise ValueError(f"{self.directory} has {final['return']} as its final return")
        return final


def read_run(directory: str | Path) -> PastRun:
    """Read one run directory; what is no run is refused in a sentence."""
    path = Path(directory)
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such run")
    if not path.is_dir():
        raise NotADirectoryError(f"{path} is a file, expected a run directory")
    if not (path / "config.yaml").is_file():
        raise FileNotFoundError(f"{path} is no run directory: it has no config.yaml")
    config = typed(read_yaml(path / "config.yaml"), CONFIG, f"{path / 'config.yaml'}")
    metadata, summary = _read(path / "metadata.json", METADATA), _read_summary(path)
    return PastRun(path, config, metadata or {}, summary)


def _read(path: Path, kinds: Kinds) -> dict[str, Any] | None:
    return typed(read_json(path), kinds, str(path)) if os.path.lexists(path) else None


def _read_summary(directory: Path) -> dict[str, Any] | None:
    path = directory / "summary.json"
    summary = _read(path, SUMMARY)
    for name in ("final", "best"):
        played = typed((summary or {}).get(name) or {}, EVALUATION, f"{path}: {name}")
        if not all(map(number, played.get("returns") or ())):
            raise ValueError(f"{path}: {name}: each of returns must be a number")
    return summary


def find_runs(paths: Iterable[str | Path]) -> list[PastRun]:
    """The runs at these places: run directories, or directories with runs somewhere below."""
    found: dict[Path, PastRun] = {}
    for path in map(Path, paths):
        if not path.is_dir() or (path / "config.yaml").exists():
            places = [path]
        else:
            places = sorted(file.parent for file in below(path) if file.name == "config.yaml")
            # What W&B recorded of a run is also called config.yaml.
            places = [place for place in places if "wandb" not in place.relative_to(path).parts]
            if not places:
                raise FileNotFoundError(f"{path} holds no run: there is no config.yaml in it")
        for place in places:
            found.setdefault(place.resolve(), read_run(place))
    return list(found.values())
