"""Run directories, read: what plots, reports and comparisons look at. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from composerl.bookkeeping.metrics import read_metrics

__all__ = ["Record", "find_runs", "read_run"]


@dataclass(frozen=True)
class Record:
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

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl."""
        return read_metrics(self.directory / "metrics.jsonl")

    def series(self, key: str, x: str = "step") -> tuple[list[float], list[float]]:
        """The values of ``key`` that are numbers, and those of ``x`` in the same rows."""
        rows = [row for row in self.metrics if _number(row.get(key)) and _number(row.get(x))]
        if not rows:
            keys = sorted({k for row in self.metrics for k in row} - {"step"})
            known = ", ".join(keys) or "nothing yet"
            wrong = key if not any(key in row for row in self.metrics) else x
            raise ValueError(f"{self.directory} has no metric {wrong!r}; it has {known}")
        return [row[x] for row in rows], [row[key] for row in rows]

    def final(self) -> dict[str, Any]:
        """The final evaluation; a run that has not finished is refused in a sentence."""
        final = (self.summary or {}).get("final")
        if not isinstance(final, dict) or not _number(final.get("return")):
            raise ValueError(
                f"{self.directory} has no final evaluation (summary.json): the run has not "
                "finished; go on with it by --resume, or use `composerl evaluate`"
            )
        return final


def read_run(directory: str | Path) -> Record:
    """Read one run directory; what is no run is refused in a sentence."""
    path = Path(directory)
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such run")
    if not path.is_dir():
        raise NotADirectoryError(f"{path} is a file, expected a run directory")
    if not (path / "config.yaml").is_file():
        raise FileNotFoundError(f"{path} is no run directory: it has no config.yaml")
    import yaml

    try:
        config = yaml.safe_load((path / "config.yaml").read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path / 'config.yaml'} is not valid YAML: {reason}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path / 'config.yaml'} must hold 'key: value' lines")
    metadata = _read_json(path / "metadata.json") or {}
    return Record(path, config, metadata, _read_json(path / "summary.json"))


def find_runs(paths: Iterable[str | Path]) -> list[Record]:
    """The runs at these places: run directories, or directories with runs somewhere below."""
    found: dict[Path, Record] = {}
    for path in map(Path, paths):
        if not path.is_dir() or (path / "config.yaml").exists():
            places = [path]
        else:
            places = sorted(file.parent for file in path.glob("**/config.yaml"))
            # What W&B recorded of a run is also called config.yaml.
            places = [place for place in places if "wandb" not in place.relative_to(path).parts]
            if not places:
                raise FileNotFoundError(f"{path} holds no run: there is no config.yaml in it")
        for place in places:
            found.setdefault(place.resolve(), read_run(place))
    return list(found.values())


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(values).__name__}")
    return values


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
