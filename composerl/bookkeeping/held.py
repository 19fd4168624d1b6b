"""The directory of a run that is under way: taken, written into, given back.

Whatever a run writes goes through here, so that one place asks whether the directory is still ours.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from composerl._files import write_json
from composerl.bookkeeping import checkpoint, machine, rundir, trees
from composerl.bookkeeping.console import say, summary_table
from composerl.bookkeeping.evaluation import Evaluator, Player
from composerl.bookkeeping.images import film_episode, write_png
from composerl.bookkeeping.manifest import MANIFEST, write_manifest
from composerl.bookkeeping.owner import Owner
from composerl.bookkeeping.progress import Progress
from composerl.bookkeeping.tracking import Tracker
from composerl.config import RunConfig, config_to_dict

__all__ = ["HeldDirectory"]

CHOSEN = ("entity", "group", "name")  # of W&B, by flags

#: Those that this process holds, by their directory.
_HELD: weakref.WeakValueDictionary[Path, HeldDirectory] = weakref.WeakValueDictionary()


class HeldDirectory:
    """A run directory that no other run of this machine may write into, until it is closed.

    Args:
        directory: which is made if there is none.
        evaluator: to be closed with it.

    Attributes:
        looping: whether the run is in its loop, and not ended, or waiting for its end.
        tracker: where metrics go, once it is :meth:`open`.
    """

    looping: bool
    tracker: Tracker

    def __init__(self, directory: Path, evaluator: Evaluator) -> None:
        if earlier := _HELD.get(place := directory.resolve()):
            if earlier.looping:
                raise ValueError(f"this process is in the loop of a run in {place} already")
            earlier.close(1)  # an error ended it, and its traceback keeps it alive
        self.directory, self._evaluator = directory, evaluator
        self._owner = Owner(directory)
        # A run that an error ended may die before the next one looks for it, and leave its lock.
        weakref.finalize(self, self._owner.release)
        self._end: weakref.finalize[..., Any] | None = None
        self.looping, _HELD[place] = True, self

    def open(self, progress: Progress, config: RunConfig, mode: str) -> None:
        """Own it, go on from its checkpoint if it is to be, and write what describes the run.

        A checkpoint is refused before anything is written. ``mode`` is that of W&B.
        """
        self._config, drawn = config, machine.rng_state()
        state = self._take(progress)
        self._track(progress.name, mode, state)
        # The id for a resume before the first checkpoint, the total for who watches.
        known = {"run_id": self.tracker.run_id, "total": progress.total}
        if state and (other := rundir.changed(state["config"], config)):
            known["changed_at"] = progress.step
            say(f"goes on with other settings: {other}")
        rundir.note(self.directory, self._owner.check, **known)
        self.tracker.metrics.truncate(state["metrics"] if state else 0)
        self.save_best(progress)
        progress.clock.start(*(state["seconds"] if state else ()), step=progress.step)
        verb = f"resumed at step {progress.step} of" if progress.step else "started,"
        steps = f"{progress.total} {config.step_unit}"
        say(f"{progress.name} {verb} {steps}, in {self.directory}")
        if mode == "online":
            say(f"W&B: {self.tracker.where()[0]}")
        # Last: W&B or a restored object may have drawn numbers, and must not change the training.
        machine.restore_rng(state["rng"] if state else drawn)

    def _take(self, progress: Progress) -> dict[str, Any] | None:
        """Own it; returns the checkpoint that it goes on from."""
        directory, name, config = self.directory, progress.name, self._config
        rundir.check(directory, name, config)  # again, now that nobody else here can
        found, state = checkpoint.versions(directory), progress.go_on(config)
        self._owner.take()
        rundir.check(directory, name, config)
        if checkpoint.versions(directory) != found:  # by who was the owner until now
            state = progress.go_on(config)
        if state is not None:
            checkpoint.mend(directory, progress.step)
        if (old := directory / MANIFEST).exists():  # of an earlier end of the run
            self._owner.check()
            old.unlink()
        rundir.create(directory, name, config, self._owner.check)
        return state

    def _track(self, name: str, mode: str, state: dict[str, Any] | None) -> None:
        config = self._config
        self.tracker = Tracker(
            self.directory,
            config=rundir.public(self.directory, config) | {"recipe": name},
            mode=mode,
            run_id=state.get("run_id") if state else rundir.run_id(self.directory),
            project=config.wandb_project,
            group=name,
            tags=(name, config.env[:64], *config.wandb_tags),
            name=f"{name}-seed{config.seed}",
            chosen={key: getattr(config, f"wandb_{key}") for key in CHOSEN},
            system=config.wandb_system,
            tensorboard=config.tensorboard,
        )
        # If an error in the loop's body ends the run, W&B shall know that it failed.
        self._end = weakref.finalize(self, self.tracker.close, 1)
        # Its traceback may keep the run to the end of the process, where finalizers come after
        # W&B has left, and what is registered now comes before.
        self._end.atexit = False
        atexit.register(self._end)

    def write_row(self, progress: Progress, row: Mapping[str, Any]) -> None:
        """Write a row of metrics, with its step and the time it was written at."""
        self._owner.check()
        time = {**progress.clock.row(), **progress.clock.rate(progress.step)}
        self.tracker.log({"step": progress.step, **row, **time})

    def image(self, name: str, step: int, draw: Callable[[], np.ndarray]) -> Path:
        """Write what is drawn as a PNG; random numbers of the training are left untouched."""
        self._owner.check()
        with machine.untouched_rng():
            path = rundir.image_path(self.directory, name, step, ".png")
            write_png(path, draw())
            self.tracker.show(step, f"images/{name}", "Image", str(path))
        return path

    def film(self, policy: Player, step: int, seed: int) -> None:
        """Write an episode of the policy, as --video-format says."""
        self._owner.check()
        kind = self._config.video_format
        path = rundir.image_path(self.directory, "episode", step, f".{kind}")
        film_episode(policy, path, seed)
        self.tracker.show(step, "videos/episode", "Video", str(path), format=kind)

    def save_best(self, progress: Progress) -> None:
        """Write the best policy so far."""
        if progress.best_policy is not None:
            best = checkpoint.best_path(self.directory)
            trees.save_tree(best, "policy", progress.best_policy, self._owner.check)

    def save_checkpoint(self, progress: Progress, policy: dict[str, Any] | None) -> None:
        """Write all that :meth:`Progress.go_on` needs, and the policy as it is now."""
        tree = {
            **progress.state_dict(self._config),
            "run_id": self.tracker.run_id,
            "metrics": self.tracker.sync(),
            "metrics_digest": self.tracker.metrics.digest(),
            "policy": policy,
        }
        kept, check = self._config.keep_checkpoints, self._owner.check
        path = checkpoint.save_checkpoint(self.directory, progress.step, tree, check, kept)
        if self._config.wandb_artifacts:
            self.tracker.artifact("checkpoint", "last", path, *trees.block_files(path))

    def finish(self, progress: Progress, policy: dict[str, Any], own: bool) -> None:
        """Write the policy and the summary, close, and print the table.

        The policy may be a module of the user's ``own``.
        """
        config, score, check = self._config, progress.score, self._owner.check
        # One for all evaluations: each table is an artifact of its own to W&B.
        columns = ["step", "episode", "return", "length"]
        self.tracker.show(progress.step, "eval/episodes", "Table", columns, score.episodes)
        path = self.directory / "policy.safetensors"
        trees.save_tree(path, "policy", policy, check)
        summary = {
            "recipe": progress.name,
            "env": config.env,
            "seed": config.seed,
            "steps": progress.step,
            "stopped": score.stopped or "all steps done",
            "final": score.latest,
            "best": score.best,
            **progress.clock.row(),
        }
        write_json(self.directory / "summary.json", summary, check)
        self.tracker.summary(final=score.latest, best=score.best)
        if config.wandb_artifacts:
            self.tracker.artifact("policy", "best", checkpoint.best_path(self.directory))
            self.tracker.artifact("policy", "final", path)
        tracked = self.tracker.where()
        self.close(0)
        usage = rundir.usage(self.directory, config, own)
        summary_table(summary, self.directory, usage, config.step_unit, tracked)

    def close(self, exit_code: int) -> None:
        """Let others have it; a run that failed has another exit code than 0."""
        if self._end is not None:
            self._end.detach()
            atexit.unregister(self._end)
            self.tracker.close(exit_code)
        if exit_code == 0:  # now that every file is closed, and the directory still ours
            write_manifest(self.directory, config_to_dict(self._config), self._owner.check)
        self._evaluator.close()
        self._owner.release()
        _HELD.pop(self.directory.resolve(), None)
