"""Who drives many runs: starts them, watches them, goes on with those whose worker died."""

from __future__ import annotations

import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from composerl.analysis.runs import read_run
from composerl.bookkeeping.console import live_table, say, watched
from composerl.bookkeeping.owner import grant, owner_of, withdraw
from composerl.bookkeeping.signals import interrupts
from composerl.fleet.cluster import RayWorkers
from composerl.fleet.jobs import Ended, Job, Workers
from composerl.fleet.local import LocalWorkers
from composerl.fleet.mark import SILENCE, Mark
from composerl.fleet.progress import COLUMNS, Progress, news, read_progress

__all__ = ["Fleet"]

POLL = 0.2  # seconds between looks at the workers
WATCH = 1.0  # and at what the runs have written
_OVER = object()


@dataclass
class _Attempt:
    """A job under way."""

    job: Job
    handle: Any = None
    token: str = ""
    restarts: int = 0
    saved: int = 0
    """Step of the checkpoint that it goes on from."""
    idle: int = 0
    """Deaths in a row without a new checkpoint."""
    progress: Progress = field(default_factory=Progress)
    stopping: bool = False


class Fleet:
    """Runs below one directory, made by workers of one kind; a context manager.

    Args:
        place: directory of all runs.
        on: None for processes of this machine, ``ray`` for a cluster that is started here,
            ``ray=ADDRESS`` for an existing one.
        jobs: how many at a time; by default one here, and on a cluster as many as it has cores.
        gpus: of each run, on a cluster.
        group: name of the runs' group in W&B.
        shared: whether other drivers may be at work in the same place.
    """

    def __init__(
        self,
        place: Path,
        on: str | None,
        jobs: int | None,
        gpus: float,
        group: str,
        shared: bool = False,
    ) -> None:
        kind, equals, address = (on or "").partition("=")
        if on is not None and (kind != "ray" or (equals and not address)):
            raise ValueError(f"--on must be ray or ray=ADDRESS, got {on!r}")
        if jobs is not None and jobs < 1:
            raise ValueError(f"--jobs must be at least 1, got {jobs}")
        if not 0 <= gpus < math.inf or (gpus and on is None):
            raise ValueError(f"--gpus is for --on ray and at least 0, got {gpus:g}")
        if place.exists() and not place.is_dir():
            raise ValueError(f"--out {place} is a file, expected a directory")
        self.place, self.jobs, self.gpus, new = place, jobs, gpus, not place.exists()
        # What an environment names comes first.
        self._environ = {"WANDB_RUN_GROUP": os.environ.get("WANDB_RUN_GROUP") or group}
        self.mark = Mark(place)
        try:
            others = {} if shared else self.mark.others()
            for about in others.values():
                raise ValueError(
                    f"the runs in {place} are driven by process {about['pid']} on {about['host']}; "
                    f"if that was killed, it is forgotten after {SILENCE:g} seconds"
                )
            self.workers: Workers = LocalWorkers(jobs or 1)
            if on is not None:
                self.workers = RayWorkers(address or None, self.mark.path, gpus)
        except BaseException:
            self.mark.remove()
            if new:
                place.rmdir()
            raise

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.workers.close()
        self.mark.remove()

    def require(self, jobs: Sequence[Job]) -> None:
        """Refuse in a sentence what can never be run here: a cluster would wait for a larger node.

        The largest of ``jobs`` counts for how many go on at a time: others would take the cores
        that its helpers wait for.
        """
        for job in jobs:
            if not self.workers.slots(job):
                more = f" and {job.helpers} for its workers" if job.helpers else ""
                raise ValueError(
                    f"{job.name} asks for {job.cores} cores{more} and {self.gpus:g} GPUs, but the "
                    f"nodes have {self.workers.have()}"
                )
        self._like = min(jobs, key=self.workers.slots)

    def run(
        self,
        jobs: Iterable[Job | None],
        hopeless: Callable[[Job, Progress], bool] = lambda job, progress: False,
    ) -> Iterator[tuple[Job, Ended]]:
        """Do the jobs; gives each when it is over, with how that went.

        A run whose worker died is resumed. Ctrl-C lets every run save a checkpoint, then raises
        KeyboardInterrupt with the way to go on.

        Args:
            jobs: asked for the next one when there is room for it; None means later.
            hopeless: asked now and then whether to stop a run.
        """
        source, more, watched = iter(jobs), True, 0.0
        running: list[_Attempt] = []
        counts = {"done": 0, "failed": 0, "stopped": 0}
        with interrupts() as stop, live_table(str(self.place), COLUMNS) as show:
            while more or running:
                if stop.is_set() and not all(attempt.stopping for attempt in running):
                    say(f"{len(running)} runs save a checkpoint; Ctrl-C again ends them at once")
                    for attempt in running:
                        self._stop(attempt)
                more = more and not stop.is_set()
                while more and len(running) < self.limit():
                    job = next(source, _OVER)
                    if isinstance(job, Job):
                        running.append(self._start(_Attempt(job, progress=_so_far(job))))
                    else:
                        more = job is None
                        break
                for attempt in list(running):
                    ended = self.workers.ended(attempt.handle)
                    if ended is not None:
                        ended = self._judge(attempt, ended)
                    if ended is not None:
                        running.remove(attempt)
                        counts[ended.how] += 1
                        yield attempt.job, ended
                if time.monotonic() - watched > WATCH:
                    watched = time.monotonic()
                    self.mark.touch()
                    for attempt in running:
                        self._look(attempt)
                        if not attempt.stopping and hopeless(attempt.job, attempt.progress):
                            self._stop(attempt)
                    rows = [a.progress.row(a.job.name, a.restarts) for a in running]
                    show(rows, ", ".join(f"{n} {how}" for how, n in counts.items() if n))
                time.sleep(POLL)
        if stop.is_set():
            raise KeyboardInterrupt(f"stopped; go on with: {self._way_on()}")

    def _way_on(self) -> str:
        """The command as it was typed, with the place that it had no word for."""
        words = sys.argv[1:]
        if not any(word.partition("=")[0] == "--out" for word in words):
            words = [*words, "--out", str(self.place)]
        return shlex.join(["composerl", *words, *(() if "--resume" in words else ("--resume",))])

    def limit(self) -> int:
        """How many runs go on at a time; at least one, which waits if a node was lost."""
        slots = max(self.workers.slots(self._like), 1)
        return slots if self.jobs is None else min(slots, self.jobs)

    def _start(self, attempt: _Attempt) -> _Attempt:
        """Start an attempt; whoever else may be at work in its directory loses the right to."""
        attempt.token, granted = grant(attempt.job.directory)
        attempt.handle = self.workers.start(attempt.job, self._environ | granted)
        return attempt

    def _look(self, attempt: _Attempt) -> None:
        # What is replaced at this very moment on a file server cannot always be read.
        with suppress(OSError, ValueError):
            before, attempt.progress = attempt.progress, read_progress(attempt.job.directory)
            for line in [] if watched() else news(before, attempt.progress):
                say(f"{attempt.job.name}: {line}")

    def _stop(self, attempt: _Attempt) -> None:
        attempt.stopping = True
        self.workers.stop(attempt.handle)

    def _judge(self, attempt: _Attempt, ended: Ended) -> Ended | None:
        """What the end of an attempt means for its job; None if there is another attempt."""
        job = attempt.job
        if ended.how == "died" and attempt.stopping:
            ended = Ended("stopped")
        elif ended.how == "failed" and owner_of(job.directory).get("token") != attempt.token:
            ended = Ended("stopped", "another driver has taken it over")
        elif ended.how == "died" and job.finished():
            ended = Ended("done")
        if ended.how == "died":
            self._look(attempt)
            saved, before = attempt.progress.saved, attempt.saved
            attempt.saved, attempt.idle = saved, 0 if saved > before else attempt.idle + 1
            if attempt.idle < ended.tries:
                attempt.restarts += 1
                say(f"{job.name}: {ended.why}; going on from step {saved}")
                self._start(attempt)
                return None
            often = f"{attempt.idle} times in a row without a new checkpoint (--save-every)"
            ended = Ended("failed", f"{ended.why}, {often}")
        withdraw(job.directory, attempt.token)
        told = ended.why or ended.how
        if ended.how == "done":
            told = f"return {read_run(job.directory).final()['return']:.1f}"
        say(f"{job.name}: {told}")
        return ended


def _so_far(job: Job) -> Progress:
    """How far a run got before: no news when it is gone on with."""
    with suppress(OSError, ValueError):
        return read_progress(job.directory)
    return Progress()
