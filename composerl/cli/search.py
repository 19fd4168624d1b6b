"""The search of a sweep: which settings to try next, which to give up, what came out."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from composerl._files import read_json, write_json
from composerl.analysis.runs import read_run
from composerl.bookkeeping.console import say
from composerl.catalog import find_recipe
from composerl.cli.sweep import number_kind, read_range
from composerl.cli.trials import show_trials, trial_name
from composerl.config import RunConfig, parse
from composerl.fleet import Ended, Fleet, Job, Progress
from composerl.fleet.mark import SILENCE

__all__ = ["Search"]


class Search:
    """The trials of a sweep, in an optuna study that several drivers may share.

    Args:
        name: the recipe.
        config: its class of configurations.
        fixed: flags of all trials.
        space: of each flag to search its values, or one range.
        place: directory of the sweep.
    """

    def __init__(
        self,
        name: str,
        config: type[RunConfig],
        fixed: list[str],
        space: dict[str, list[str]],
        place: Path,
    ) -> None:
        self.name, self.fixed, self.space, self.place = name, fixed, space, place
        self.settings = parse(config, fixed)
        import optuna
        from optuna.storages.journal import JournalFileBackend

        self._optuna: Any = optuna
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        stem = find_recipe(name).stem
        _check_settings(place, {"recipe": stem, "fixed": fixed, "choices": space})
        kinds = typing.get_type_hints(config)
        self.distributions = {
            flag: _distribution(optuna, flag, words, kinds[flag[2:].replace("-", "_")])
            for flag, words in space.items()
        }
        # A file, with a lock that holds on network storage too.
        journal = JournalFileBackend(str(place / "journal.jsonl"))
        self.storage: Any = optuna.storages.JournalStorage(journal)
        self.study = optuna.create_study(
            study_name=stem, storage=self.storage, direction="maximize", load_if_exists=True
        )
        self.study_id = self.storage.get_study_id_from_name(stem)
        self.pruned: set[int] = set()

    def run(self, fleet: Fleet, trials: int, sampler: str, pruner: str) -> None:
        """Make trials until there are so many, and show what came out."""
        self.study.pruner = self._pruner(pruner)
        fleet.require([Job.of("a trial", self.name, self.place, tuple(self.fixed))])
        failed = 0
        for job, ended in fleet.run(self._jobs(fleet, trials, sampler), self._hopeless):
            failed += ended.how == "failed"
            self._tell(job, ended)
        known = self.study.get_trials(deepcopy=False)
        show_trials(known, self.space, self.place, self.name)
        if failed:
            raise RuntimeError(f"{failed} trials failed; see the .log files in {self.place}")

    def _jobs(self, fleet: Fleet, trials: int, sampler: str) -> Iterator[Job | None]:
        """The next trial: one whose driver is dead, or a new one; None while neither can be had."""
        me = fleet.mark.name
        while True:
            known = self.study.get_trials(deepcopy=False)
            begun = [t for t in known if t.state.name != "WAITING"]
            running = [t for t in begun if t.state.name == "RUNNING"]
            living = {me, None, *fleet.mark.others()}
            orphans = [t for t in running if _driver(t) not in living]
            if orphans:
                number = orphans[0].number
            elif len(begun) < trials:
                number = self._ask(sampler, len(known))
            elif any(_driver(t) == me for t in running):
                yield None
                continue
            else:
                if running:
                    say(f"{len(running)} trials go on elsewhere")
                return
            self._trial(number).set_user_attr("driver", me)
            yield self._job(number)

    def _ask(self, sampler: str, seed: int) -> int:
        """A new trial; seeded by what is known, so that a sweep that was interrupted asks alike."""
        if sampler == "grid":
            grid = list(itertools.product(*self.space.values()))
            self.study.enqueue_trial(dict(zip(self.space, grid[seed % len(grid)], strict=True)))
        samplers = self._optuna.samplers
        kind = samplers.TPESampler if sampler == "tpe" else samplers.RandomSampler
        self.study.sampler = kind(seed=seed)
        trial = self.study.ask(self.distributions)
        equal = [t for t in self.study.get_trials(deepcopy=False) if t.params == trial.params]
        trial.set_user_attr("seed", len(equal) - 1)
        return trial.number

    def _trial(self, number: int) -> Any:
        where = self.storage.get_trial_id_from_study_id_trial_number(self.study_id, number)
        return self._optuna.Trial(self.study, where)

    def _job(self, number: int) -> Job:
        trial, directory = self._trial(number), self.place / trial_name(number)
        chosen = [f"{flag}={value}" for flag, value in trial.params.items()]
        flags = (*self.fixed, *chosen, f"--seed={trial.user_attrs.get('seed', 0)}")
        return Job.of(directory.name, self.name, directory, flags)

    def _hopeless(self, job: Job, progress: Progress) -> bool:
        """Report new evaluations; the pruner says what it thinks of them."""
        number = _number(job)
        trial = self._trial(number)
        reported = self.study.get_trials(deepcopy=False)[number].intermediate_values
        for step, value in progress.evaluations:
            if step not in reported:
                trial.report(value, step)
                if trial.should_prune():
                    self.pruned.add(number)
                    return True
        return False

    def _tell(self, job: Job, ended: Ended) -> None:
        number = _number(job)
        if ended.how == "done":
            self.study.tell(number, float(read_run(job.directory).final()["return"]))
        elif ended.how == "failed":
            self.study.tell(number, state=self._optuna.trial.TrialState.FAIL)
        elif number in self.pruned:
            self.study.tell(number, state=self._optuna.trial.TrialState.PRUNED)
        # Else it was stopped with the sweep, or taken over: it is to be gone on with.

    def _pruner(self, name: str) -> Any:
        pruners = self._optuna.pruners
        if name == "median":
            return pruners.MedianPruner()
        if name == "hyperband":
            every = self.settings.eval_every
            most = max(self.settings.steps, every + 1)
            return pruners.HyperbandPruner(min_resource=every, max_resource=most)
        return pruners.NopPruner()


def _driver(trial: Any) -> str | None:
    """Who makes a trial; for a moment after it was asked for that is not known to others."""
    asked = datetime.now() - trial.datetime_start
    unknown = "unknown" if asked > timedelta(seconds=SILENCE) else None
    return trial.user_attrs.get("driver", unknown)


def _number(job: Job) -> int:
    return int(job.name.removeprefix("trial"))


def _distribution(optuna: Any, flag: str, words: list[str], kind: Any) -> Any:
    if len(words) > 1:
        return optuna.distributions.CategoricalDistribution(words)
    low, high, log = read_range(flag, words[0])
    if number_kind(kind) is int:
        return optuna.distributions.IntDistribution(int(low), int(high), log=log)
    return optuna.distributions.FloatDistribution(float(low), float(high), log=log)


def _check_settings(directory: Path, settings: dict[str, Any]) -> None:
    """A sweep's directory holds one search; another one must not be mixed into it."""
    file = directory / "sweep.json"
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"--out {directory} is a file, expected a directory")
    if file.is_file():
        if read_json(file) != settings:
            raise ValueError(
                f"{directory} holds another sweep ({file.name} tells which): give the same flags "
                "to go on with it, or another --out"
            )
        say(f"going on with the sweep in {directory}")
        return
    if directory.is_dir() and any(directory.glob("[!.]*")):
        raise ValueError(f"--out {directory} is not empty: choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    write_json(file, settings)
