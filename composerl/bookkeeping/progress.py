"""How far a run has come: what its checkpoints save, and where a resumed run goes on from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from composerl._files import inside
from composerl.bookkeeping import checkpoint, machine, rundir
from composerl.bookkeeping.console import say
from composerl.bookkeeping.evaluation import Score
from composerl.bookkeeping.metrics import require_rows
from composerl.bookkeeping.rows import Rows
from composerl.config import RunConfig, config_to_dict, require_recipe

__all__ = ["Progress"]

#: What of a checkpoint is needed to go on.
REQUIRED = ("step", "config", "metrics", "goal", "score", "row", "seconds", "tracked", "rng")


class Progress:
    """All of a run that changes while it trains, so that exactly this is saved and restored.

    Args:
        directory: of the run.
        name: of its recipe.

    Attributes:
        step: the latest one; a turn of the loop takes ``by`` of them, up to ``total``.
        goal: what ends the run: ``total``, ``stop_at``, ``patience``.
        tracked: the objects that the recipe named.
        score: the evaluations so far.
        best_policy: that of the best of them, as a policy file holds it.
        rows: what was logged since the last row of metrics.
        clock: how long it has taken.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.directory, self.name = directory, name
        self.step, self.total, self.by = 0, 0, 1
        self.goal: list[Any] = []
        self.tracked: dict[str, Any] = {}
        self.score = Score()
        self.best_policy: dict[str, Any] | None = None
        self.rows = Rows()
        self.clock = machine.Clock()

    def track(self, objects: Mapping[str, Any]) -> None:
        """Save and restore these, too."""
        for name, thing in objects.items():
            if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
                kind = type(thing).__name__
                raise TypeError(
                    f"run.track({name}=...) needs state_dict and load_state_dict, got {kind}"
                )
        self.tracked.update(objects)

    def due(self, every: int) -> bool:
        """Whether this turn reaches a multiple of ``every``, or the end."""
        return self.step % every < self.by or self.step >= self.total

    def updates(self) -> float:
        """Of the tracked one that counts the most of them."""
        return float(
            max((getattr(thing, "updates", 0) for thing in self.tracked.values()), default=0)
        )

    def state_dict(self, config: RunConfig) -> dict[str, Any]:
        """What :meth:`go_on` needs; the offset and digest of the metrics' rows are to be added."""
        return {
            "step": self.step,
            "recipe": self.name,
            "config": config_to_dict(config),
            "goal": self.goal,
            "score": vars(self.score),
            "row": self.rows.state_dict(),
            "best_policy": self.best_policy,
            "seconds": list(self.clock.elapsed()),
            "tracked": {name: thing.state_dict() for name, thing in self.tracked.items()},
            "rng": machine.rng_state(),
        }

    def go_on(self, config: RunConfig) -> dict[str, Any] | None:
        """Be where the newest checkpoint that can be read was saved; returns it, if there is one.

        One of another run is refused, and one that is further than this run is to come.
        """
        if not config.resume:
            return None
        state = checkpoint.load_newest(self.directory, self._check)
        if state is not None:
            self._restore(state, config)
            if self.step - self.by >= self.total:
                done = f"the run in {self.directory} has done {self.step} already"
                raise ValueError(f"--steps {self.total}: {done}")
        return state

    def _check(self, state: dict[str, Any]) -> None:
        """Refuse a checkpoint that lacks something, or whose rows of metrics are gone or others."""
        if missing := [key for key in REQUIRED if state.get(key) is None]:
            raise ValueError(f"a checkpoint in {self.directory} has no {missing[0]}")
        file = inside(self.directory, "metrics.jsonl")
        require_rows(file, state["metrics"], state.get("metrics_digest"))

    def _restore(self, state: dict[str, Any], config: RunConfig) -> None:
        require_recipe(state.get("recipe", self.name), self.name, self.directory)
        rundir.compare(state["config"], config, f"the checkpoint in {self.directory}")
        if (was := state["config"].get("threads", 1)) != (now := config.threads):
            say(f"--threads was {was} and is {now} now: the numbers may differ from one run's")
        if set(state["tracked"]) != set(self.tracked):
            raise ValueError(
                f"the checkpoint in {self.directory} holds {sorted(state['tracked'])}, "
                f"but this recipe tracks {sorted(self.tracked)}"
            )
        try:
            for name, thing in self.tracked.items():
                thing.load_state_dict(state["tracked"][name])
            self.score = Score(**state["score"])
            self.rows.load_state_dict(state["row"])
            self.clock.start(*state["seconds"], step=state["step"])
            machine.restore_rng(state["rng"])
        except Exception as error:  # of any kind: the objects are the recipe's, the file anybody's
            why = " ".join(f"{error}".split())
            raise ValueError(f"the checkpoint in {self.directory} does not fit: {why}") from error
        self.step = state["step"]
        if state["goal"] != self.goal:
            self.score.stopped = None
        self.best_policy = state.get("best_policy")
