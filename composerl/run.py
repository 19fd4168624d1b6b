"""Run: the bookkeeping of one training run, so that a recipe's loop is only the algorithm."""

from __future__ import annotations

import atexit
import copy
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from composerl._files import inside, write_json
from composerl.bookkeeping import checkpoint, compiling, machine, rundir, trees
from composerl.bookkeeping.console import run_progress, say, show_log, summary_table
from composerl.bookkeeping.evaluation import Evaluation, Evaluator, Score
from composerl.bookkeeping.images import film_episode, write_png
from composerl.bookkeeping.manifest import MANIFEST, write_manifest
from composerl.bookkeeping.metrics import require_rows
from composerl.bookkeeping.owner import Owner
from composerl.bookkeeping.rows import Diverged, Rows
from composerl.bookkeeping.signals import Left, interrupts, must_leave
from composerl.bookkeeping.tracking import Tracker, require_tensorboard
from composerl.bookkeeping.wandb_run import wandb_mode
from composerl.config import RunConfig, config_to_dict, require_recipe
from composerl.envs.spaces import Spaces
from composerl.policy import Policy

__all__ = ["Run", "RunConfig"]

EVALUATION_SEED = 0
CHOSEN = ("entity", "group", "name")  # of W&B, by flags
#: What of a checkpoint is needed to go on.
RESTORED = ("step", "config", "metrics", "goal", "score", "row", "seconds", "tracked", "rng")

#: The runs of this process that own their directory, by that directory.
_OWNERS: weakref.WeakValueDictionary[Path, Run] = weakref.WeakValueDictionary()


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
        machine.prepare(config.seed, config.device, config.threads)
        self.step, self.total, self._by = 0, 0, 1
        self.score = Score()
        self._tracked: dict[str, Any] = {}
        self._actor: nn.Module | None = None
        self._best_policy: dict[str, Any] | None = None
        self._row: dict[str, Any] = {}
        self._rows = Rows()
        self._in_step = self._trained = self._looping = False
        self._clock = machine.Clock()
        self._evaluator = Evaluator(config.env, config.env_kwargs)
        self._opened: Tracker | None = None

    @property
    def spaces(self) -> Spaces:
        """Those of the environment; one is opened for it on first use, and later evaluated in."""
        return self._evaluator.spaces

    def track(self, **objects: Any) -> None:
        """Name the objects whose ``state_dict`` belongs into a checkpoint."""
        for name, thing in objects.items():
            if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
                kind = type(thing).__name__
                raise TypeError(
                    f"run.track({name}=...) needs state_dict and load_state_dict, got {kind}"
                )
        self._tracked.update(objects)

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
        self.total, self._by = total, by
        self._goal = [total, self.config.stop_at, self.config.patience]
        _ = self.spaces  # an environment that cannot be opened shall leave nothing behind
        self._own()
        try:
            self._open()
            if self.step == 0 and self._actor is not None:
                self._evaluate()
                self._write_row()
            bar = run_progress(self.name, total, self.step, self.config.step_unit)
            with interrupts() as stop, bar as show:
                while self.step < total and self.score.stopped is None:
                    self.step += by
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
            self._close(1)
            raise
        except KeyboardInterrupt as stop:
            self._close(1)
            where = str(stop) or "stopped before the first step"
            way = rundir.resume_command(self.directory, self.config)
            raise KeyboardInterrupt(f"{where}; go on with: {way}") from None
        finally:
            self._looping = False

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Note metrics of this step, under ``train/`` unless the name has a ``/`` already.

        A row, every ``log_every`` steps, has the means of tensors since the row before, and the
        latest of plain numbers. A loss that is no finite number ends the run.
        """
        try:
            self._rows.add(self.step, metrics)
            # Also before a checkpoint: it must not replace a good one by a broken one.
            if self._due(self.config.log_every) or self._due(self.config.save_every):
                self._rows.read()
        except Diverged as error:
            saved = checkpoint.checkpoints(self.directory)
            where = f"last checkpoint: {saved[0]}" if saved else "no checkpoint yet"
            raise RuntimeError(f"{error}: the training diverged ({where})") from None

    def evaluate(self, actor: nn.Module, *, now: bool = False) -> Evaluation | None:
        """Evaluate ``now`` or if due, every ``eval_every`` steps and at the end; keep the best.

        Before the loop it names the policy that is evaluated first of all, at step 0.
        """
        self._actor = actor
        if self._opened is None or (not now and not self._due(self.config.eval_every)):
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
        if not self._due(self.config.eval_every):
            return None
        with machine.untouched_rng():
            path = rundir.image_path(self.directory, name, self.step, ".png")
            write_png(path, draw())
            self._tracker.show(self.step, f"images/{name}", "Image", str(path))
        return path

    def finish(self, actor: nn.Module) -> Policy:
        """Write the policy and the summary, print the table; returns the policy to use."""
        if self._opened is None:
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
        policy = self._policy()
        if self.config.video == "on":
            self._film(policy)
        # One for all evaluations: each table is an artifact of its own to W&B.
        columns = ["step", "episode", "return", "length"]
        self._tracker.show(self.step, "eval/episodes", "Table", columns, self.score.episodes)
        path = self.directory / "policy.safetensors"
        trees.save_tree(path, "policy", policy.to_tree(), self._owner.check)
        summary = {
            "recipe": self.name,
            "env": self.config.env,
            "seed": self.config.seed,
            "steps": self.step,
            "stopped": self.score.stopped or "all steps done",
            "final": self.score.latest,
            "best": self.score.best,
            **self._clock.row(),
        }
        write_json(self.directory / "summary.json", summary, self._owner.check)
        self._tracker.summary(final=self.score.latest, best=self.score.best)
        if self.config.wandb_artifacts:
            self._tracker.artifact("policy", "best", checkpoint.best_path(self.directory))
            self._tracker.artifact("policy", "final", path)
        tracked = self._tracker.where()
        self._close(0)
        own = getattr(actor, "description", None) is None
        usage = rundir.usage(self.directory, self.config, own)
        summary_table(summary, self.directory, usage, self.config.step_unit, tracked)
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
            self._best_policy = copy.deepcopy(self._policy().to_tree())
            self._save_best()
        if self.config.video == "every":
            self._film(self._policy())
        return result

    def _film(self, policy: Policy) -> None:
        film = rundir.image_path(self.directory, "episode", self.step, ".gif")
        film_episode(policy, film, EVALUATION_SEED)
        self._tracker.show(self.step, "videos/episode", "Video", str(film), format="gif")

    def _policy(self, actor: nn.Module | None = None) -> Policy:
        actor = actor or self._actor
        if actor is None:
            raise RuntimeError("there is no policy yet: run.evaluate(actor) names the actor")
        env, kwargs = self.config.env, self.config.env_kwargs
        return Policy(actor, env, evaluator=self._evaluator, env_kwargs=kwargs)

    def _save_best(self) -> None:
        if self._best_policy is not None:
            best = checkpoint.best_path(self.directory)
            trees.save_tree(best, "policy", self._best_policy, self._owner.check)

    @property
    def _tracker(self) -> Tracker:
        if self._opened is None:
            raise RuntimeError("the run has not begun: this belongs into the loop of run.steps()")
        return self._opened

    def _own(self) -> None:
        if earlier := _OWNERS.get(place := self.directory.resolve()):
            if earlier._looping:
                raise ValueError(f"this process is in the loop of a run in {place} already")
            earlier._close(1)  # an error ended it, and its traceback keeps it alive
        self._owner = Owner(self.directory)
        # A run that an error ended may die before the next one looks for it, and leave its lock.
        weakref.finalize(self, self._owner.release)
        self._looping, _OWNERS[place] = True, self

    def _open(self) -> None:
        rundir.check(self.directory, self.name, self.config)  # again, now that nobody else here can
        found, state = checkpoint.versions(self.directory), self._resume_point()
        self._owner.take()
        rundir.check(self.directory, self.name, self.config)
        if checkpoint.versions(self.directory) != found:  # by who was the owner until now
            state = self._resume_point()
        generators = state["rng"] if state else machine.rng_state()
        if state is not None:
            checkpoint.mend(self.directory, self.step)
        if (old := self.directory / MANIFEST).exists():  # of an earlier end of the run
            self._owner.check()
            old.unlink()
        rundir.create(self.directory, self.name, self.config, self._owner.check)
        self._opened = Tracker(
            self.directory,
            config=rundir.public(self.directory, self.config) | {"recipe": self.name},
            mode=self._wandb_mode,
            run_id=state.get("run_id") if state else rundir.run_id(self.directory),
            project=self.config.wandb_project,
            group=self.name,
            tags=(self.name, self.config.env[:64], *self.config.wandb_tags),
            name=f"{self.name}-seed{self.config.seed}",
            chosen={key: getattr(self.config, f"wandb_{key}") for key in CHOSEN},
            system=self.config.wandb_system,
            tensorboard=self.config.tensorboard,
        )
        # If an error in the loop's body ends the run, W&B shall know that it failed.
        self._end = weakref.finalize(self, self._tracker.close, 1)
        # Its traceback may keep the run to the end of the process, where finalizers come after
        # W&B has left, and what is registered now comes before.
        self._end.atexit = False
        atexit.register(self._end)
        # The id for a resume before the first checkpoint, the total for who watches.
        known = {"run_id": self._tracker.run_id, "total": self.total}
        if state and (other := rundir.changed(state["config"], self.config)):
            known["changed_at"] = self.step
            say(f"goes on with other settings: {other}")
        rundir.note(self.directory, self._owner.check, **known)
        self._tracker.metrics.truncate(state["metrics"] if state else 0)
        self._save_best()
        self._clock.start(*(state["seconds"] if state else ()), step=self.step)
        verb = f"resumed at step {self.step} of" if self.step else "started,"
        say(f"{self.name} {verb} {self.total} {self.config.step_unit}, in {self.directory}")
        if self._wandb_mode == "online":
            say(f"W&B: {self._tracker.where()[0]}")
        # Last: W&B or a restored object may have drawn numbers, and must not change the training.
        machine.restore_rng(generators)

    def _resume_point(self) -> dict[str, Any] | None:
        """What is gone on from, with all that is tracked as it was then; it may be refused."""
        if not self.config.resume:
            return None
        state = checkpoint.load_newest(self.directory, self._check_state)
        if state is not None:
            self._restore(state)
            if self.step - self._by >= self.total:
                done = f"the run in {self.directory} has done {self.step} already"
                raise ValueError(f"--steps {self.total}: {done}")
        return state

    def _check_state(self, state: dict[str, Any]) -> None:
        """Refuse a checkpoint that lacks something, or whose rows of metrics are gone or others."""
        if missing := [key for key in RESTORED if state.get(key) is None]:
            raise ValueError(f"a checkpoint in {self.directory} has no {missing[0]}")
        file = inside(self.directory, "metrics.jsonl")
        require_rows(file, state["metrics"], state.get("metrics_digest"))

    def _restore(self, state: dict[str, Any]) -> None:
        require_recipe(state.get("recipe", self.name), self.name, self.directory)
        rundir.compare(state["config"], self.config, f"the checkpoint in {self.directory}")
        if (was := state["config"].get("threads", 1)) != (now := self.config.threads):
            say(f"--threads was {was} and is {now} now: the numbers may differ from one run's")
        if set(state["tracked"]) != set(self._tracked):
            raise ValueError(
                f"the checkpoint in {self.directory} holds {sorted(state['tracked'])}, "
                f"but this recipe tracks {sorted(self._tracked)}"
            )
        try:
            for name, thing in self._tracked.items():
                thing.load_state_dict(state["tracked"][name])
            self.score = Score(**state["score"])
            self._rows.load_state_dict(state["row"])
            self._clock.start(*state["seconds"], step=state["step"])
            machine.restore_rng(state["rng"])
        except Exception as error:  # of any kind: the objects are the recipe's, the file anybody's
            why = " ".join(f"{error}".split())
            raise ValueError(f"the checkpoint in {self.directory} does not fit: {why}") from error
        self.step = state["step"]
        if state["goal"] != self._goal:
            self.score.stopped = None
        self._best_policy = state.get("best_policy")

    def _due(self, every: int) -> bool:
        """Whether this turn reaches a multiple of ``every``, or the end."""
        return self.step % every < self._by or self.step >= self.total

    def _end_step(self, save: bool) -> None:
        if self._due(self.config.log_every) and (means := self._rows.take()):
            updates = (getattr(thing, "updates", 0) for thing in self._tracked.values())
            self._row = means | {"train/updates": float(max(updates, default=0))} | self._row
        self._write_row()
        if save or self.score.stopped is not None or self._due(self.config.save_every):
            self._save_checkpoint()
        self._in_step = False

    def _write_row(self) -> None:
        if self._row:
            self._owner.check()
            time = {**self._clock.row(), **self._clock.rate(self.step)}
            self._tracker.log({"step": self.step, **self._row, **time})
            self._row = {}

    def _save_checkpoint(self) -> None:
        tree = {
            "step": self.step,
            "recipe": self.name,
            "config": config_to_dict(self.config),
            "run_id": self._tracker.run_id,
            "metrics": self._tracker.sync(),
            "metrics_digest": self._tracker.metrics.digest(),
            "goal": self._goal,
            "score": vars(self.score),
            "row": self._rows.state_dict(),
            "best_policy": self._best_policy,
            "seconds": list(self._clock.elapsed()),
            "tracked": {name: thing.state_dict() for name, thing in self._tracked.items()},
            "policy": None if self._actor is None else self._policy().to_tree(),
            "rng": machine.rng_state(),
        }
        path = checkpoint.save_checkpoint(
            self.directory, self.step, tree, self._owner.check, self.config.keep_checkpoints
        )
        if self.config.wandb_artifacts:
            self._tracker.artifact("checkpoint", "last", path, *trees.block_files(path))

    def _close(self, exit_code: int) -> None:
        if self._opened is not None:
            self._end.detach()
            atexit.unregister(self._end)
            self._opened.close(exit_code)
        if exit_code == 0:  # now that every file is closed, and the directory still ours
            write_manifest(self.directory, config_to_dict(self.config), self._owner.check)
        self._evaluator.close()
        self._owner.release()
        _OWNERS.pop(self.directory.resolve(), None)
