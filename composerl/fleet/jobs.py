"""What a fleet is made of: jobs, the workers that do them, and how an attempt ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from composerl.analysis.runs import read_run
from composerl.bookkeeping.rundir import settled
from composerl.catalog import load_recipe
from composerl.config import config_to_dict, parse

__all__ = ["Ended", "Job", "Workers"]


@dataclass(frozen=True)
class Job:
    """One run to be made."""

    name: str
    recipe: str
    """A packaged recipe's name, or a path; the name may stand for another path on another node."""
    directory: Path
    flags: tuple[str, ...]
    """Those of the recipe, but for ``--out`` and ``--resume``."""
    cores: int = 1
    helpers: int = 0
    """Further cores, for its own processes on the same cluster (``--workers``)."""

    @classmethod
    def of(cls, name: str, recipe: str, directory: Path, flags: tuple[str, ...]) -> Job:
        """A job with the cores that its flags ask for; a mistake in them is a ValueError."""
        config = parse(load_recipe(recipe).Config, flags)
        helpers = getattr(config, "workers", 0)
        return cls(name, recipe, directory, flags, config.threads, helpers)

    @property
    def log(self) -> Path:
        """The file with what the run prints."""
        return self.directory.with_name(f"{self.directory.name}.log")

    @property
    def started(self) -> bool:
        """Whether there is something to resume."""
        return (self.directory / "config.yaml").is_file()

    def command(self) -> list[str]:
        """The flags of the next attempt, which goes on with what the directory holds."""
        return [*self.flags, "--out", str(self.directory), *(["--resume"] if self.started else [])]

    def finished(self) -> bool:
        """Whether the run is over and these flags ask for nothing more, such as further steps."""
        if not self.started or (past := read_run(self.directory)).summary is None:
            return False
        now = settled(parse(load_recipe(self.recipe).Config, self.command()))
        return config_to_dict(now) == past.config


@dataclass(frozen=True)
class Ended:
    """How an attempt at a job ended."""

    how: Literal["done", "failed", "stopped", "died"]
    """``failed`` by an error of the run itself; ``died`` with its process, its machine, or both."""
    why: str = ""
    tries: int = 10
    """How often one may die like this, one after the other without a new checkpoint."""

    @classmethod
    def by_code(cls, job: Job, code: int) -> Ended:
        """What the exit code of a run's process means."""
        if code == 0:
            return cls("done")
        if code == 130:
            return cls("stopped")
        if code < 0:
            hint = " (as the system does when memory runs out)" if code == -9 else ""
            return cls("died", f"killed by signal {-code}{hint}")
        lines = job.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        said = lines[-1] if lines else "it said nothing"
        return cls("failed", f"failed with exit code {code}: {said}")


class Workers(Protocol):
    """Where runs are made; a handle stands for an attempt."""

    def slots(self, job: Job) -> int:
        """How many such runs can go on at a time."""

    def have(self) -> str:
        """What there is to run on, in words."""

    def start(self, job: Job, environ: Mapping[str, str]) -> Any:
        """Begin an attempt, with these environment variables; gives its handle."""

    def ended(self, handle: Any) -> Ended | None:
        """How the attempt ended; None while it goes on."""

    def stop(self, handle: Any) -> None:
        """Ask it to save a checkpoint and end."""

    def close(self) -> None:
        """End whatever still goes on, at once."""
