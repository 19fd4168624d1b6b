"""The evaluations of a run: the latest, the best, and whether it is time to stop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from composerl.bookkeeping.evaluation import Evaluation

__all__ = ["EPISODE_COLUMNS", "Score"]

#: What is kept of each episode.
EPISODE_COLUMNS = ("step", "episode", "return", "length")


@dataclass
class Score:
    """Remembers evaluations; its state is part of a checkpoint.

    Attributes:
        latest: step, return, standard deviation and episodes of the last evaluation.
        best: the same of the best one.
        episodes: a row of :data:`EPISODE_COLUMNS` for each episode of all evaluations.
        stopped: why the run should stop, or None.
    """

    latest: dict[str, Any] | None = None
    best: dict[str, Any] | None = None
    episodes: list[list[float]] = field(default_factory=list)
    stopped: str | None = None
    _since_best: int = 0

    def add(
        self, step: int, result: Evaluation, stop_at: float | None, patience: int | None
    ) -> bool:
        """Take an evaluation in; returns whether it is the best so far."""
        self.latest = {
            "step": step,
            "return": result.mean,
            "std": result.std,
            "episodes": len(result.returns),
            "returns": list(result.returns),
        }
        played = enumerate(zip(result.returns, result.lengths, strict=True))
        self.episodes += [[step, number, *episode] for number, episode in played]
        is_best = self.best is None or result.mean > self.best["return"]
        if is_best:
            self.best = self.latest
        self._since_best = 0 if is_best else self._since_best + 1
        if stop_at is not None and result.mean >= stop_at:
            self.stopped = f"return {result.mean:.1f} reached stop_at {stop_at:g}"
        elif patience is not None and self._since_best >= patience:
            self.stopped = f"no better evaluation in {patience} (patience)"
        return is_best
