"""``composerl run --seeds``: runs of one recipe that differ in their seeds, as one group."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from composerl.analysis.groups import FEW
from composerl.analysis.runs import read_run
from composerl.analysis.stats import iqm, run_interval
from composerl.bookkeeping.console import print_table, say
from composerl.catalog import find_recipe
from composerl.config import option
from composerl.fleet import Fleet, Job

__all__ = ["complete", "final_returns", "run_group"]


def run_group(
    name: str,
    flags: Sequence[str],
    seeds: Sequence[int],
    on: str | None,
    jobs: int | None,
    gpus: float,
) -> None:
    """Run a recipe with each of the seeds into one directory; print what came out."""
    if len(set(seeds)) != len(seeds):
        raise ValueError(f"--seeds must differ, got {' '.join(map(str, seeds))}")
    if option(flags, "--seed") is not None:
        raise ValueError("--seed and --seeds cannot be given together")
    out, resume = option(flags, "--out"), "--resume" in flags
    flags = _without(flags, "--out", out)
    recipe = find_recipe(name)
    stamp = f"{datetime.now():%Y%m%d-%H%M%S}-group"
    place = Path(out or Path("runs", recipe.stem, stamp))
    if (place / "config.yaml").is_file():
        raise ValueError(f"--out {place} is a run itself: choose another directory for --seeds")
    # A mistake is told here, before anything starts.
    todo = [
        Job.of(f"seed {n}", name, place / f"seed{n}", (*flags, "--seed", str(n))) for n in seeds
    ]
    with Fleet(place, on, jobs, gpus, group=place.name) as fleet:
        failed = complete(fleet, todo, resume)
    finals = final_returns(todo)
    if finals:
        rows = [(job.name, f"{value:.1f}") for job, value in finals.items()]
        rows.append(("interquartile mean", f"{iqm(list(finals.values())):.1f}"))
        if ends := run_interval(list(finals.values())):
            few = " (few seeds)" if len(finals) < FEW else ""
            rows.append((f"95 % interval{few}", f"{ends[0]:.1f} to {ends[1]:.1f}"))
        print_table(f"{recipe.stem}, final return", ("", "return"), rows)
        print(f"see more: composerl plot {place} -o curves.png")
    if failed:
        which = f"{len(failed)} of {len(todo)} runs failed: {', '.join(job.name for job in failed)}"
        raise RuntimeError(f"{which}; see the .log files in {place}")


def complete(fleet: Fleet, jobs: Sequence[Job], resume: bool) -> list[Job]:
    """Do the jobs, with ``resume`` those that are not finished; gives those that failed."""
    if not resume and any(job.started for job in jobs):
        raise ValueError(
            f"--out {fleet.place} holds such runs already: add --resume to go on with them, "
            "or choose another directory"
        )
    fleet.require(jobs)
    todo = [job for job in jobs if not job.finished()]
    over = f"{len(jobs) - len(todo)} of them finished before, " if len(todo) < len(jobs) else ""
    say(f"{len(jobs)} runs, {over}{fleet.limit()} at a time, in {fleet.place}")
    return [job for job, ended in fleet.run(todo) if ended.how != "done"]


def final_returns(jobs: Sequence[Job]) -> dict[Job, float]:
    """What the finished ones came to."""
    ended = [job for job in jobs if (job.directory / "summary.json").is_file()]
    return {job: float(read_run(job.directory).final()["return"]) for job in ended}


def _without(flags: Sequence[str], flag: str, value: str | None) -> list[str]:
    """The command line without ``--resume`` and without a flag and its value."""
    words = [word for word in flags if word != "--resume" and word != f"{flag}={value}"]
    if flag in words:
        del words[words.index(flag) : words.index(flag) + 2]
    return words
