"""Run directories, read: what plots, reports and comparisons look at. Imports no torch."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from composerl._files import read_json, read_yaml
from composerl.bookkeeping.metrics import read_metrics

__all__ = ["PastRun", "find_runs", "read_run"]


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
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl."""
        return read_metrics(self.directory / "metrics.jsonl")

    @property
    def last_step(self) -> int:
        """The step of the last row of metrics."""
        return int(self.metrics[-1].get("step", 0)) if self.metrics else 0

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
        """The final evaluation; one that is no number, or not there, is refused in a sentence."""
        final = (self.summary or {}).get("final")
        if not isinstance(final, dict) or not _number(final.get("return")):
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
    metadata, summary = (
        read_json(file) if (file := path / name).exists() else None
        for name in ("metadata.json", "summary.json")
    )
    return PastRun(path, read_yaml(path / "config.yaml"), metadata or {}, summary)


def find_runs(paths: Iterable[str | Path]) -> list[PastRun]:
    """The runs at these places: run directories, or directories with runs somewhere below."""
    found: dict[Path, PastRun] = {}
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


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
