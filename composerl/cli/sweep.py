"""``composerl sweep``: search a recipe's settings on this machine, with optuna."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import Any

from tyro.conf import Positional

from composerl._files import read_json, replace_file, write_json
from composerl.catalog import find_recipe, load_recipe
from composerl.config import parse

__all__ = ["sweep"]


def sweep(
    name: Positional[str], *, trials: int = 20, jobs: int = 1, out: Path | None = None
) -> Callable[[list[str]], None]:
    """Search settings: sweep NAME --lr 1e-4 3e-4 1e-3 --tau 0.005 0.02 --trials 20.

    A flag with several values is searched, one with a single value is passed on. Each trial is a
    run below --out, scored by its final return; a combination that comes again gets the next
    seed. Started again with the same --out, the sweep goes on, trials under way included.

    Args:
        name: A packaged recipe (see composerl recipes) or the path of a recipe file.
        trials: How many in all.
        jobs: How many at a time.
        out: Directory of the sweep. Default: runs/<recipe>/sweep.
    """
    if find_spec("optuna") is None:
        raise ValueError("sweeps need optuna, not installed: pip install 'composerl[sweep]'")
    for flag, value in (("--trials", trials), ("--jobs", jobs)):
        if value < 1:
            raise ValueError(f"{flag} must be at least 1, got {value}")

    def start(flags: list[str]) -> None:
        recipe = find_recipe(name)
        fixed, choices = _choices(load_recipe(recipe).Config, flags)
        directory = out or Path("runs", recipe.stem, "sweep")
        _search(recipe, fixed, choices, trials, jobs, directory)

    return start


def _choices(config: type, flags: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The flags with one value, as they are, and those with several; all are checked."""
    values: dict[str, list[str]] = {}
    for word in flags:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            values[flag] = [value] if equals else []
        elif not values:
            raise ValueError(f"expected a flag of the recipe, got {word!r}")
        else:
            values[list(values)[-1]].append(word)
    wide = {f"--{f.name.replace('_', '-')}" for f in fields(config) if "tuple" in str(f.type)}
    fixed, choices = [], {}
    for flag, words in values.items():
        if flag in ("--seed", "--resume"):
            raise ValueError(f"{flag} is the sweep's own business: trials count their seeds")
        if len(words) > 1 and flag not in wide:
            if len(set(words)) != len(words):
                raise ValueError(f"{flag} names a value twice: {' '.join(words)}")
            choices[flag] = words
        else:
            fixed += [flag, *words]
    if not choices:
        raise ValueError("a sweep needs a flag with several values, such as --lr 1e-4 1e-3")
    for flag, words in choices.items():
        for word in words:
            parse(config, [*fixed, f"{flag}={word}"])
    return fixed, choices


def _search(
    recipe: Path, fixed: list[str], choices: dict[str, list[str]], trials: int, jobs: int,
    directory: Path,
) -> None:  # fmt: skip
    import optuna
    from optuna.storages.journal import JournalFileBackend

    from composerl.analysis.runs import read_run
    from composerl.cli.group import Job, run_jobs

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    _check_settings(directory, {"recipe": recipe.stem, "fixed": fixed, "choices": choices})
    journal = JournalFileBackend(str(directory / "journal.jsonl"))
    storage = optuna.storages.JournalStorage(journal)
    study = optuna.create_study(
        study_name=recipe.stem, storage=storage, direction="maximize", load_if_exists=True
    )
    # Seeded by what is known already: the same sweep, interrupted or not, asks alike.
    study.sampler = optuna.samplers.TPESampler(seed=len(study.trials), n_startup_trials=10)
    space: dict[str, Any] = {
        flag: optuna.distributions.CategoricalDistribution(words) for flag, words in choices.items()
    }
    failed = 0
    waiting: list[Any] = [t for t in study.trials if t.state == optuna.trial.TrialState.RUNNING]
    while True:
        done = sum(t.state.is_finished() for t in study.trials)
        while len(waiting) < jobs and done + len(waiting) < trials:
            trial = study.ask(space)
            trial.set_user_attr("seed", sum(t.params == trial.params for t in study.trials) - 1)
            waiting.append(trial)
        if not waiting:
            break
        batch, waiting = waiting[:jobs], waiting[jobs:]
        todo = {}
        for due in batch:
            place = directory / f"trial{due.number:03d}"
            flags = [word for flag, value in due.params.items() for word in (flag, value)]
            flags += ["--seed", str(due.user_attrs.get("seed", 0)), "--out", str(place)]
            flags += ["--resume"] if (place / "config.yaml").is_file() else []
            todo[Job(place.name, place, (*fixed, *flags))] = due.number
        for job, code in run_jobs(recipe, list(todo), jobs):
            if code:
                failed += 1
                study.tell(todo[job], state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(todo[job], float(read_run(job.directory).final()["return"]))
    _show(study, choices, directory)
    if failed:
        raise RuntimeError(f"{failed} trials failed; see the .log files in {directory}")


def _check_settings(directory: Path, settings: dict[str, Any]) -> None:
    """A sweep's directory holds one search; another one must not be mixed into it."""
    from composerl.bookkeeping.console import say

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
    if directory.is_dir() and any(directory.iterdir()):
        raise ValueError(f"--out {directory} is not empty: choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    write_json(file, settings)


def _show(study: Any, choices: dict[str, list[str]], directory: Path) -> None:
    """A row for each combination, best first, and the picture of it."""
    from composerl.bookkeeping.console import print_table

    trials = [trial for trial in study.trials if trial.value is not None]
    found: dict[str, list[float]] = {}
    for trial in trials:
        settings = " ".join(f"{flag} {trial.params[flag]}" for flag in choices)
        found.setdefault(settings, []).append(trial.value)
    rows = [
        (settings, len(values), f"{mean(values):.2f}", f"{min(values):.2f}")
        for settings, values in sorted(found.items(), key=lambda item: -mean(item[1]))
    ]
    print_table(f"{directory}: final return", ("settings", "seeds", "mean", "worst"), rows)
    if find_spec("matplotlib") and found:
        print(f"picture: {_draw(trials, choices, directory / 'sweep.png')}")


def _draw(trials: list[Any], choices: dict[str, list[str]], path: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(choices) + 0.8, 3.4), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(choices), sharey=True, squeeze=False)[0]
    panels[0].set_ylabel("final return")
    for axes, (flag, values) in zip(panels, choices.items(), strict=True):
        places = [values.index(trial.params[flag]) for trial in trials]
        axes.plot(places, [trial.value for trial in trials], "o", alpha=0.6, color="#0072B2")
        axes.set_xticks(range(len(values)), values)
        axes.set(xlim=(-0.5, len(values) - 0.5), xlabel=flag)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    replace_file(path, figure.savefig)
    return path
