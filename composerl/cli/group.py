"""Several runs of one recipe in processes of their own: seeds of a group, trials of a sweep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from composerl.analysis.runs import read_run
from composerl.analysis.stats import bootstrap_interval, iqm
from composerl.bookkeeping.console import print_table, say
from composerl.catalog import load_recipe
from composerl.config import option, parse

__all__ = ["Job", "run_group", "run_jobs"]


@dataclass(frozen=True)
class Job:
    """One run to be made: its name, its directory and the recipe's flags."""

    name: str
    directory: Path
    flags: tuple[str, ...]


def run_group(recipe: Path, flags: Sequence[str], seeds: Sequence[int], jobs: int) -> None:
    """Run a recipe with each of the seeds into one directory; print what came out."""
    if jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {jobs}")
    if len(set(seeds)) != len(seeds):
        raise ValueError(f"--seeds must differ, got {' '.join(map(str, seeds))}")
    if option(flags, "--seed") is not None:
        raise ValueError("--seed and --seeds cannot be given together")
    out = option(flags, "--out")
    resume = "--resume" in flags
    flags = _without(flags, "--out", out)
    parse(load_recipe(recipe).Config, flags)  # a mistake is told once, before anything starts
    stamp = f"{datetime.now():%Y%m%d-%H%M%S}-group"
    group = Path(out or Path("runs", recipe.stem, stamp))
    if group.exists() and not group.is_dir():
        raise ValueError(f"--out {group} is a file, expected a directory")
    todo = []
    for seed in seeds:
        directory = group / f"seed{seed}"
        started = resume and (directory / "config.yaml").is_file()
        extra = ["--seed", str(seed), "--out", str(directory), *(["--resume"] if started else [])]
        todo.append(Job(f"seed {seed}", directory, (*flags, *extra)))
    # A shared W&B group, unless the environment names one.
    environ = {"WANDB_RUN_GROUP": os.environ.get("WANDB_RUN_GROUP") or group.name}
    say(f"{recipe.stem}: {len(todo)} seeds, {jobs} at a time, in {group}")
    failed = [job for job, code in run_jobs(recipe, todo, jobs, environ) if code]
    finals = {job.name: read_run(job.directory).final() for job in todo if job not in failed}
    if finals:
        returns = [final["return"] for final in finals.values()]
        low, high = bootstrap_interval(returns)
        rows = [(name, f"{final['return']:.1f}") for name, final in finals.items()]
        rows.append(("interquartile mean", f"{iqm(returns):.1f}"))
        rows.append(("95 % interval", f"{low:.1f} to {high:.1f}"))
        print_table(f"{recipe.stem}, final return", ("", "return"), rows)
        print(f"see more: composerl plot {group} -o curves.png")
    if failed:
        which = f"{len(failed)} of {len(todo)} runs failed: {', '.join(job.name for job in failed)}"
        raise RuntimeError(f"{which}; see the .log files in {group}")


def run_jobs(
    recipe: Path, todo: Sequence[Job], jobs: int, environ: Mapping[str, str] | None = None
) -> Iterator[tuple[Job, int]]:
    """Run the jobs, at most ``jobs`` at a time; give each with its exit code when it is done.

    What a run prints goes into ``<directory>.log``. Ctrl-C is handed on, so that every run saves
    a checkpoint.
    """
    processes: list[subprocess.Popen[bytes]] = []
    stopping = threading.Event()

    def work(job: Job) -> tuple[Job, int]:
        job.directory.parent.mkdir(parents=True, exist_ok=True)
        with open(_log(job), "ab") as file:
            if stopping.is_set():
                return job, 1
            # A session of its own: a terminal's Ctrl-C would reach it twice, and twice is at once.
            process = subprocess.Popen(
                [sys.executable, "-m", "composerl", "run", str(recipe), *job.flags],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                env={**os.environ, **(environ or {})}, start_new_session=True,
            )  # fmt: skip
            processes.append(process)
            return job, process.wait()

    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(work, job) for job in todo]
        try:
            for future in as_completed(futures):
                job, code = future.result()
                say(f"{job.name}: {_outcome(job, code)}")
                yield job, code
        except BaseException:
            stopping.set()
            for process in processes:
                # On Windows they share our console, and have got its Ctrl-C already.
                if os.name != "nt" and process.poll() is None:
                    process.send_signal(signal.SIGINT)
            raise


def _without(flags: Sequence[str], flag: str, value: str | None) -> list[str]:
    """The command line without ``--resume`` and without a flag and its value."""
    words = [word for word in flags if word != "--resume" and word != f"{flag}={value}"]
    if flag in words:
        del words[words.index(flag) : words.index(flag) + 2]
    return words


def _log(job: Job) -> Path:
    return job.directory.with_name(f"{job.directory.name}.log")


def _outcome(job: Job, code: int) -> str:
    if not code:
        return f"return {read_run(job.directory).final()['return']:.1f}"
    lines = _log(job).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"failed with exit code {code}: {lines[-1] if lines else 'it said nothing'}"
