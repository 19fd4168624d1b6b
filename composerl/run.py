"""Run: the bookkeeping of one training run, so that a recipe's loop is only the algorithm.

What it is made of: :class:`~composerl.bookkeeping.progress.Progress`, all that a checkpoint saves
and a resumed run begins with, and :class:`~composerl.bookkeeping.held.HeldDirectory`, the directory
while this process may write into it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from composerl.bookkeeping import checkpoint, compiling, machine, rundir
from composerl.bookkeeping.console import run_progress, say, show_log
from composerl.bookkeeping.evaluation import Evaluation, Evaluator, Score
from composerl.bookkeeping.held import HeldDirectory
from composerl.bookkeeping.images import require_mp4
from composerl.bookkeeping.progress import Progress
from composerl.bookkeeping.rows import Diverged
from composerl.bookkeeping.signals import Left, interrupts, must_leave
from composerl.bookkeeping.tracking import require_tensorboard
from composerl.bookkeeping.wandb_run import wandb_mode
from composerl.config import RunConfig
from composerl.envs.spaces import Spaces
from composerl.policy import Policy

__all__ = ["Run", "RunConfig"]

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
        self.config = config = rundir.settled(config)
        self.name = rundir.slug(name or Path(inspect.getfile(type(config))).stem)
        self.directory = rundir.choose(config, self.name)
        rundir.check(self.directory, self.name, config)
        show_log()
        self._wandb_mode = wandb_mode(config.wandb)
        if config.tensorboard:
            require_tensorboard()
        if config.video != "off" and config.video_format == "mp4":
            require_mp4()
        machine.prepare(config.seed, config.device, config.threads)
        self._progress = Progress(self.directory, self.name)
        self._evaluator = Evaluator(config.env, config.env_kwargs)
        self._actor: nn.Module | None = None
        self._row: dict[str, Any] = {}
        self._in_step = self._trained = False
        self._opened: HeldDirectory | None = None

    @property
    def step(self) -> int:
        """The latest step."""
        return self._progress.step

    @property
    def total(self) -> int:
        """The steps that the run is to have."""
        return self._progress.total

    @property
    def score(self) -> Score:
        """The evaluations so far."""
        return self._progress.score

    @property
    def spaces(self) -> Spaces:
        """Those of the environment; one is opened for it on first use, and later evaluated in."""
        return self._evaluator.spaces

    def track(self, **objects: Any) -> None:
        """Name the objects whose ``state_dict`` belongs into a checkpoint."""
        self._progress.track(objects)

    def compiles(self, **updates: int) -> bool:
        """Whether to compile so many updates of each kind: ``Update(..., compile=this)``.

        With ``--compile auto`` it is if they gain more than compiling costs, which is told in a
        line and written into the run's config.yaml; kinds are those of
        :data:`composerl.bookkeeping.compiling.COSTS`.
        """
        if self.config.compile == "auto":
            on, why = compiling.decide(self.config, self.name, updates)
            say(why)
            self.config = replace(self.config, compile="on" if on else "off")
        return self.config.compile == "on"

    def steps(self, total: int, by: int = 1) -> Iterator[int]:
        """Count the steps of the run up to ``total``, from where its checkpoint stopped.

        ``by`` is how many (environment) steps one turn of the loop takes; the last turn may go
        beyond ``total``. After each turn a metrics row and a checkpoint are written, if their
        steps were reached in it. Ctrl-C finishes the turn, saves a checkpoint and raises
        KeyboardInterrupt with the way to resume.
        """
        if self._opened is not None:
            raise RuntimeError("run.steps() was called before: a run has one loop")
        if by < 1:
            raise ValueError(f"run.steps(by=...) must be at least 1, got {by}")
        progress = self._progress
        progress.total, progress.by = total, by
        progress.goal = [total, self.config.stop_at, self.config.patience]
        _ = self.spaces  # an environment that cannot be opened shall leave nothing behind
        held = HeldDirectory(self.directory, self._evaluator)
        try:
            held.open(progress, self.config, self._wandb_mode)
            self._opened = held
            if self.step == 0 and self._actor is not None:
                self._evaluate()
                self._write_row()
            bar = run_progress(self.name, total, self.step, self.config.step_unit)
            with interrupts() as stop, bar as show:
                while self.step < total and self.score.stopped is None:
                    progress.step += by
                    self._in_step = self._trained = True
                    yield self.step
                    leave = must_leave(self.step)
                    self._end_step(save=stop.is_set() or leave)
                    show(self.step, self.score.latest)
                    if stop.is_set():
                        raise KeyboardInterrupt(f"stopped at step {self.step}")
                    if leave:
                        raise Left(f"left at step {self.step}")
        # Not GeneratorExit, after `break` or an error in the body: finish() or the end will tell.
        except Exception:
            held.close(1)
            raise
        except KeyboardInterrupt as stop:
            held.close(1)
            where = str(stop) or "stopped before the first step"
            way = rundir.resume_command(self.directory, self.config)
            raise KeyboardInterrupt(f"{where}; go on with: {way}") from None
        finally:
            held.looping = False

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Note metrics of this step, under ``train/`` unless the name has a ``/`` already.

        A row, every ``log_every`` steps, has the means of tensors since the row before, and the
        latest of plain numbers. A loss that is no finite number ends the run.
        """
        progress = self._progress
        try:
            progress.rows.add(self.step, metrics)
            # Also before a checkpoint: it must not replace a good one by a broken one.
            if progress.due(self.config.log_every) or progress.due(self.config.save_every):
                progress.rows.read()
        except Diverged as error:
            saved = checkpoint.checkpoints(self.directory)
            where = f"last checkpoint: {saved[0]}" if saved else "no checkpoint yet"
            raise RuntimeError(f"{error}: the training diverged ({where})") from None

    def evaluate(self, actor: nn.Module, *, now: bool = False) -> Evaluation | None:
        """Evaluate ``now`` or if due, every ``eval_every`` steps and at the end; keep the best.

        Before the loop it names the policy that is evaluated first of all, at step 0.
        """
        self._actor = actor
        if self._opened is None or (not now and not self._progress.due(self.config.eval_every)):
            return None
        return self._evaluate()

    def play(self, actor: nn.Module | None = None) -> Evaluation:
        """Evaluate an actor (by default that of :meth:`evaluate`) now; nothing is kept of it."""
        # The same episodes for every seed of training: some starts are harder than others.
        return self._policy(actor).evaluate(self.config.eval_episodes, EVALUATION_SEED)

    def image(self, name: str, draw: Callable[[], np.ndarray]) -> Path | None:
        """Save a picture, uint8 ``(height, width, 3)``, whenever an evaluation is due.

        It goes to ``images/<name>-<step>.png`` in the run directory and to W&B. ``draw`` may use
        random numbers: the training does not notice.
        """
        if not self._progress.due(self.config.eval_every):
            return None
        return self._held().image(name, self.step, draw)

    def finish(self, actor: nn.Module) -> Policy:
        """Write the policy and the summary, print the table; returns the policy to use."""
        if (held := self._opened) is None:
            raise RuntimeError("run.finish() comes after the loop over run.steps()")
        self._actor = actor
        latest = self.score.latest
        if latest is None or latest["step"] != self.step:
            self.evaluate(actor, now=True)
            self._in_step = True
        elif not self._trained:  # a finished run that is resumed only evaluates again
            say(f"evaluated again: {self.play()}")
        if self._in_step:  # the loop was left by `break`, or did not evaluate
            if self.step < self.total and self.score.stopped is None:
                self.score.stopped = "stopped by the recipe"
            self._end_step(save=True)
        counting = any(hasattr(thing, "updates") for thing in self._progress.tracked.values())
        if counting and not self._progress.updates():
            say(f"note: nothing was learned: no update in {self.step} {self.config.step_unit}")
        policy = self._policy()
        if self.config.video == "on":
            held.film(policy, self.step, EVALUATION_SEED)
        own = getattr(actor, "description", None) is None
        held.finish(self._progress, policy.to_tree(), own)
        actor.eval()
        policy.directory = self.directory
        return policy

    def _evaluate(self) -> Evaluation:
        result = self.play()
        self._row |= {
            "eval/return": result.mean,
            "eval/return_std": result.std,
            "eval/length": float(np.mean(result.lengths)),
        }
        stop_at = self.config.stop_at if self.step else None  # nothing has been learned yet
        if self.score.add(self.step, result, stop_at, self.config.patience):
            self._progress.best_policy = copy.deepcopy(self._policy().to_tree())
            self._held().save_best(self._progress)
        if self.config.video == "every":
            self._held().film(self._policy(), self.step, EVALUATION_SEED)
        return result

    def _policy(self, actor: nn.Module | None = None) -> Policy:
        actor = actor or self._actor
        if actor is None:
            raise RuntimeError("there is no policy yet: run.evaluate(actor) names the actor")
        env, kwargs = self.config.env, self.config.env_kwargs
        return Policy(actor, env, evaluator=self._evaluator, env_kwargs=kwargs)

    def _held(self) -> HeldDirectory:
        if self._opened is None:
            raise RuntimeError("the run has not begun: this belongs into the loop of run.steps()")
        return self._opened

    def _end_step(self, save: bool) -> None:
        progress = self._progress
        if progress.due(self.config.log_every) and (means := progress.rows.take()):
            self._row = means | {"train/updates": progress.updates()} | self._row
        self._write_row()
        if save or self.score.stopped is not None or progress.due(self.config.save_every):
            policy = None if self._actor is None else self._policy().to_tree()
            self._held().save_checkpoint(progress, policy)
        self._in_step = False

    def _write_row(self) -> None:
        if self._row:
            self._held().write_row(self._progress, self._row)
            self._row = {}
