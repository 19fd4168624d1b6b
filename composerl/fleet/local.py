"""Runs as processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from composerl.fleet.jobs import Ended, Job

__all__ = ["LocalWorkers"]


class LocalWorkers:
    """A process for each run, ``jobs`` at a time."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._running: dict[subprocess.Popen[bytes], Job] = {}

    def slots(self, job: Job) -> int:
        """What was asked for: more threads than cores are slow, and possible."""
        return self.jobs

    def have(self) -> str:
        """The cores of this machine."""
        return f"{os.cpu_count()} cores"

    def start(self, job: Job, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start the process."""
        with open(job.log, "ab") as log:
            # A session of its own: a terminal's Ctrl-C would reach it twice, and twice is at once.
            process = subprocess.Popen(
                [sys.executable, "-m", "composerl", "run", job.recipe, *job.command()],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **environ}, start_new_session=True,
            )  # fmt: skip
        self._running[process] = job
        return process

    def ended(self, handle: subprocess.Popen[bytes]) -> Ended | None:
        """By the process's exit code."""
        code = handle.poll()
        return None if code is None else Ended.by_code(self._running.pop(handle), code)

    def stop(self, handle: subprocess.Popen[bytes]) -> None:
        """As by Ctrl-C."""
        if os.name != "nt":  # there they share our console, and have got its Ctrl-C already
            handle.send_signal(signal.SIGINT)

    def close(self) -> None:
        """Kill what is left."""
        for process in self._running:
            process.kill()
            process.wait()
