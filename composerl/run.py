"""Run: the bookkeeping of one training run, so that a recipe's loop is only the algorithm."""

from __future__ import annotations

import inspect
import json
import math
import random
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from composerl import rundir
from composerl.checkpoint import (
    checkpoint_path,
    checkpoints,
    load_tree,
    restore_rng,
    rng_state,
    save_tree,
)
from composerl.config import RunConfig, config_to_dict
from composerl.console import ProgressBar, say, summary_table
from composerl.evaluation import Evaluation, Evaluator
from composerl.interrupt import Interrupt
from composerl.policy import Policy
from composerl.tracking import Tracker, wandb_mode

__all__ = ["Run", "RunConfig"]

KEPT_CHECKPOINTS = 2
EVALUATION_SEED = 0


class Run:
    """The bookkeeping of one training run.

    Seeds Python, numpy and torch when made. The run directory is opened by :meth:`steps`, after
    networks, data and loss have been built: a mistake in their arguments leaves nothing behind.

    ::

        run = Run(cfg)
        ...
        run.track(update=update, buffer=buffer)   # what a checkpoint holds
        for step in run.steps(cfg.steps):         # goes on where the checkpoint stopped
            run.log(update(buffer.sample()))
            run.evaluate(actor)
        return run.finish(actor)

    Args:
        config: the recipe's configuration.
        name: name of the recipe; by default that of the file that defines ``config``'s class.
    """

    def __init__(self, config: RunConfig, name: str | None = None) -> None:
        self.config = config
        self.name = name or Path(inspect.getfile(type(config))).stem
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        default = Path("runs") / self.name / f"{stamp}-seed{config.seed}"
        self.directory = Path(config.out) if config.out is not None else default
        rundir.check(self.directory, self.name, config)
        self._wandb_mode = wandb_mode(config.wandb)
        _check_device(config.device)
        torch.set_num_threads(config.threads)
        random.seed(config.seed)
        np.random.seed(config.seed % 2**32)
        torch.manual_seed(config.seed)
        self.step = 0
        self.total = 0
        self._trained = False
        self.best: dict[str, Any] | None = None
        self._tracked: dict[str, Any] = {}
        self._actor: nn.Module | None = None
        self._row: dict[str, Any] = {}
        self._latest: dict[str, Any] | None = None
        self._since_best = 0
        self._stopped: str | None = None
        self._seconds = 0.0
        self._cpu_seconds = 0.0
        self._started = self._cpu_started = 0.0
        self._evaluator: Evaluator | None = None
        self._tracker: Tracker | None = None

    # ---- what a recipe calls -------------------------------------------------------------

    def track(self, **objects: Any) -> None:
        """Name the objects whose ``state_dict`` belongs into a checkpoint."""
        for name, thing in objects.items():
            if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
                raise TypeError(
                    f"run.track({name}=...) needs state_dict and load_state_dict, "
                    f"which a {type(thing).__name__} does not have"
                )
        self._tracked.update(objects)

    def steps(self, total: int) -> Iterator[int]:
        """Count the steps of the run, 1 to ``total``, from where its checkpoint stopped.

        After each step: a metrics row is written, a checkpoint if one is due. Ctrl-C finishes the
        step, saves a checkpoint and raises KeyboardInterrupt with the way to resume.
        """
        self.total = total
        self._open()
        exit_code = 1
        try:
            with Interrupt() as interrupt, ProgressBar(self.name, total, self.step) as bar:
                while self.step < total and self._stopped is None:
                    self.step += 1
                    self._trained = True
                    yield self.step
                    self._end_step(save=interrupt.requested)
                    bar.advance(self.step, self._note())
                    if interrupt.requested:
                        raise KeyboardInterrupt(
                            f"stopped at step {self.step}; go on with: {self._resume_command()}"
                        )
            exit_code = 0
        finally:
            if exit_code:
                self._close(exit_code)

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Note metrics of this step, under ``train/`` unless the name has a ``/`` already."""
        if self.step % self.config.log_every and self.step != self.total:
            return
        for key, value in metrics.items():
            name = key if "/" in key else f"train/{key}"
            number = float(value)
            self._row[name] = number
            if not math.isfinite(number) and key.startswith("loss_"):
                raise RuntimeError(
                    f"{name} is {number} at step {self.step}: the training diverged "
                    f"(the last checkpoint is in {self.directory / 'checkpoints'})"
                )

    def evaluate(self, actor: nn.Module) -> Evaluation | None:
        """Evaluate if it is due (every ``eval_every`` steps and at the end); keep the best."""
        self._actor = actor
        if self.step % self.config.eval_every and self.step != self.total:
            return None
        return self._evaluate()

    def finish(self, actor: nn.Module) -> Policy:
        """Write the policy and the summary, print the table; returns the policy to use."""
        self._actor = actor
        if self._tracker is None:
            raise RuntimeError("run.finish() comes after the loop over run.steps()")
        if self._latest is None or self._latest["step"] != self.step or not self._trained:
            self._evaluate()  # a finished run that is resumed only evaluates again
        policy = self._policy()
        path = policy.save(self.directory / "policy.safetensors")
        summary = {
            "recipe": self.name,
            "env": self.config.env,
            "seed": self.config.seed,
            "steps": self.step,
            "stopped": self._stopped or "all steps done",
            "final": self._latest,
            "best": self.best,
            "time/seconds": round(self._elapsed()[0], 2),
            "time/cpu_seconds": round(self._elapsed()[1], 2),
        }
        rundir.write_json(self.directory / "summary.json", summary)
        self._tracker.summary(
            {
                "final/return": self._latest["return"],
                "best/return": self.best["return"] if self.best else None,
                "best/step": self.best["step"] if self.best else None,
            }
        )
        if self.config.wandb_artifacts:
            self._tracker.artifact(path, f"{self._tracker.run_id}-policy", "policy", ("final",))
        self._close(0)
        summary_table(f"{self.name}: {self.config.env}, seed {self.config.seed}", self._rows())
        return policy

    # ---- evaluation ----------------------------------------------------------------------

    def _policy(self) -> Policy:
        return Policy(self._actor, self.config.env)

    def _evaluate(self) -> Evaluation:
        if self._evaluator is None:
            self._evaluator = Evaluator(self.config.env)
        policy = self._policy()
        policy._evaluator = self._evaluator
        # The same episodes for every seed of training: some starts are harder than others.
        result = policy.evaluate(self.config.eval_episodes, EVALUATION_SEED)
        self._row |= {
            "eval/return": result.mean,
            "eval/return_std": result.std,
            "eval/length": float(np.mean(result.lengths)),
        }
        self._latest = {"step": self.step, "return": result.mean, "std": result.std,
                        "episodes": len(result.returns)}  # fmt: skip
        if self.best is None or result.mean > self.best["return"]:
            self.best, self._since_best = self._latest, 0
            policy.save(self.directory / "checkpoints" / "best.safetensors")
        else:
            self._since_best += 1
        stop_at, patience = self.config.stop_at, self.config.patience
        if stop_at is not None and result.mean >= stop_at:
            self._stopped = f"return {result.mean:.1f} reached stop_at {stop_at:g}"
        elif patience is not None and self._since_best >= patience:
            self._stopped = f"no better evaluation in {patience} (patience)"
        return result

    # ---- steps, checkpoints --------------------------------------------------------------

    def _open(self) -> None:
        state = self._load_checkpoint() if self.config.resume else None
        rundir.create(self.directory, self.name, self.config)
        self._tracker = Tracker(
            self.directory,
            config=config_to_dict(self.config) | {"recipe": self.name},
            mode=self._wandb_mode,
            run_id=state["run_id"] if state else rundir.run_id(self.directory),
            project=self.config.wandb_project,
            group=self.name,
            name=f"{self.name}-seed{self.config.seed}",
            tensorboard=self.config.tensorboard,
        )
        rundir.keep_run_id(self.directory, self._tracker.run_id)
        self._tracker.truncate(state["metrics"] if state else 0)
        self._started, self._cpu_started = time.perf_counter(), time.process_time()
        if state:
            self._restore(state)

    def _load_checkpoint(self) -> dict[str, Any] | None:
        for path in checkpoints(self.directory):
            try:
                return load_tree(path, "checkpoint", self.config.device)
            except ValueError as error:
                if path == checkpoints(self.directory)[-1]:
                    raise
                # Resuming is exact, so an older checkpoint costs time and nothing else.
                say(f"{error}; going on from the checkpoint before it")
        return None

    def _restore(self, state: dict[str, Any]) -> None:
        if set(state["tracked"]) != set(self._tracked):
            raise ValueError(
                f"the checkpoint in {self.directory} holds {sorted(state['tracked'])}, "
                f"but this recipe tracks {sorted(self._tracked)}"
            )
        for name, thing in self._tracked.items():
            thing.load_state_dict(state["tracked"][name])
        self.step, self.best = state["step"], state["best"]
        self._latest, self._since_best = state["latest"], state["since_best"]
        same_goal = state["goal"] == self._goal()
        self._stopped = state["stopped"] if same_goal else None
        self._seconds, self._cpu_seconds = state["seconds"]
        restore_rng(state["rng"])
        say(f"resumed {self.directory} at step {self.step} of {self.total}")

    def _goal(self) -> list[Any]:
        return [self.total, self.config.stop_at, self.config.patience]

    def _end_step(self, save: bool) -> None:
        last = self.step == self.total or self._stopped is not None
        if self._row:
            seconds, cpu = self._elapsed()
            clock = {"time/seconds": round(seconds, 3), "time/cpu_seconds": round(cpu, 3)}
            self._tracker.log({"step": self.step, **self._row, **clock})
            self._row = {}
        if save or last or self.step % self.config.save_every == 0:
            self._save_checkpoint()

    def _save_checkpoint(self) -> None:
        path = checkpoint_path(self.directory, self.step)
        tree = {
            "step": self.step,
            "run_id": self._tracker.run_id,
            "metrics": self._tracker.sync(),
            "goal": self._goal(),
            "stopped": self._stopped,
            "best": self.best,
            "latest": self._latest,
            "since_best": self._since_best,
            "seconds": list(self._elapsed()),
            "tracked": {name: thing.state_dict() for name, thing in self._tracked.items()},
            "policy": None if self._actor is None else self._policy().to_tree(),
            "rng": rng_state(),
        }
        save_tree(path, "checkpoint", tree)
        for old in checkpoints(self.directory)[KEPT_CHECKPOINTS:]:
            old.unlink()
        if self.config.wandb_artifacts:
            self._tracker.artifact(
                path, f"{self._tracker.run_id}-checkpoint", "checkpoint", ("last",)
            )

    def _close(self, exit_code: int) -> None:
        if self._tracker is not None:
            self._tracker.close(exit_code)
        if self._evaluator is not None:
            self._evaluator.close()

    # ---- words ---------------------------------------------------------------------------

    def _elapsed(self) -> tuple[float, float]:
        return (
            self._seconds + time.perf_counter() - self._started,
            self._cpu_seconds + time.process_time() - self._cpu_started,
        )

    def _note(self) -> str:
        return "" if self._latest is None else f"return {self._latest['return']:.1f}"

    def _resume_command(self) -> str:
        return f"python {rundir.script()} --out {self.directory} --resume"

    def _rows(self) -> dict[str, Any]:
        seconds, cpu = self._elapsed()
        latest, best = self._latest, self.best
        episodes = f"over {latest['episodes']} episodes"
        return {
            "final return": f"{latest['return']:.1f} ± {latest['std']:.1f} {episodes}",
            "best return": f"{best['return']:.1f} at step {best['step']}",
            "steps": f"{self.step} ({self._stopped or 'all done'})",
            "time": f"{seconds:.0f} s, {cpu:.0f} s of CPU",
            "run": self.directory,
            "policy": self.directory / "policy.safetensors",
            "metrics": self.directory / "metrics.jsonl",
            "use it": f"composerl.load({json.dumps(str(self.directory))}).predict(observation)",
        }


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {device!r} cannot be used here: {reason}") from error
