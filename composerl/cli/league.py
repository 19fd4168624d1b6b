"""``composerl league``: recipes with their presets and seeds, in one directory, as one table."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from composerl._files import read_yaml, write_json
from composerl._schema import number, short
from composerl.catalog import find_recipe
from composerl.config import option, suggest
from composerl.config.settings import PLACE

__all__ = ["league"]

Scale = dict[str, list[float]]
KEYS = {"recipes", "scale", "seeds", "settings"}
_NAME = re.compile(r"\w[\w.-]{0,99}")


def league(
    file: Positional[Path],
    *,
    out: Path | None = None,
    resume: bool = False,
    jobs: int | None = None,
    on: str | None = None,
    gpus: float = 0,
) -> None:
    """Run every recipe of FILE with each of its presets and seeds; one table at the end.

    FILE is YAML::

        seeds: [0, 1, 2]
        settings: {wandb: disabled}             # of all runs
        scale: {Hopper-v5: [10, 3200]}          # scores 0 and 1 there; not needed
        recipes:
          iql_pendulum:                         # as it is
          cql_pendulum: [hopper, ant.yaml] # with each of these presets or files, as by --config
          iqn_cartpole:
            wide: {hidden: [256, 256]}          # or with settings of its own
            breakout: minatar.yaml

    Files are found from FILE's directory. A run is in OUT/<recipe>/<preset>/seed<N>; what came out
    is in OUT/results.json too. If ``scale`` has all environments (of a random policy, say, and an
    expert), each recipe's presets are also put together: interquartile mean, median, mean and
    optimality gap with stratified intervals, and performance profiles in OUT/profiles.png.

    Args:
        file: What to run.
        out: Directory of all runs. Default: runs/league/<name of FILE>.
        resume: Go on with what is unfinished there.
        jobs: How many at a time. Default: one; on a cluster as many as it has cores.
        on: Where: ray (a cluster that is started here) or ray=ADDRESS; a run has --threads cores.
        gpus: GPUs of each run on a cluster; may be a fraction.
    """
    from composerl.cli.group import complete, final_returns
    from composerl.fleet import Fleet, Job

    place = out or Path("runs", "league", file.stem)
    jobs_of: dict[tuple[str, str], list[Job]] = {}
    seeds, entries, scale = _read(file)
    for recipe, preset, flags in entries:
        where = Path(find_recipe(recipe).stem, preset)
        jobs_of[where.parts[0], preset] = [
            Job.of(f"{where}/seed{n}", recipe, place / where / f"seed{n}", (*flags, f"--seed={n}"))
            for n in seeds
        ]
    every = [job for group in jobs_of.values() for job in group]
    with Fleet(place, on, jobs, gpus, group=place.name) as fleet:
        failed = complete(fleet, every, resume)
    _show(place, {key: final_returns(group) for key, group in jobs_of.items()}, scale)
    if failed:
        which = f"{len(failed)} of {len(every)} runs failed"
        raise RuntimeError(
            f"{which}: {', '.join(job.name for job in failed)}; see their .log files"
        )


def _read(file: Path) -> tuple[list[int], list[tuple[str, str, list[str]]], Scale]:
    """The seeds; of each recipe and preset the name, the preset's and the flags; the scale."""
    if not file.is_file():
        raise FileNotFoundError(f"{file}: there is no such file")
    values = read_yaml(file, links=True)
    for key in values:
        if key not in KEYS:
            raise ValueError(f"{file}: unknown key {key!r}: {suggest(str(key), KEYS)}")
    seeds = values.get("seeds", [0])
    whole = isinstance(seeds, list) and seeds and all(type(seed) is int for seed in seeds)
    if not whole or len(set(seeds)) != len(seeds):
        raise ValueError(f"{file}: seeds must be a list of different whole numbers, got {seeds!r}")
    recipes = values.get("recipes")
    if not isinstance(recipes, dict) or not recipes:
        raise ValueError(f"{file}: recipes must name one recipe or more, got {recipes!r}")
    common = list(_flags(values.get("settings") or {}, f"{file}: settings"))
    entries = []
    for recipe, presets in recipes.items():
        if not isinstance(recipe, str):
            raise ValueError(f"{file}: the name of a recipe must be text, got {recipe!r}")
        # A recipe's own file lies beside FILE, as presets do.
        name = str(file.parent / recipe) if recipe.endswith(".py") else recipe
        for preset, what in _presets(presets, f"{file}: {recipe}"):
            if not _NAME.fullmatch(preset):  # of a directory inside of OUT
                raise ValueError(
                    f"{file}: {recipe}: the name of a preset must be letters, digits, '_', '.', "
                    f"'-', got {short(preset)}"
                )
            if isinstance(what, str):
                beside = file.parent / what  # or a preset of the recipe, by its bare name
                own = ["--config", str(beside) if beside.suffix else what]
                own += _modules(beside, common)
            else:
                if not isinstance(what, Mapping):  # settings, without a name for them
                    raise ValueError(
                        f"{file}: {recipe}: {preset} must be settings or a file, got {what!r}; "
                        f"settings need a name: '{recipe}: {{mine: {{{preset}: {what}}}}}'"
                    )
                own = list(_flags(what, f"{file}: {recipe}: {preset}"))
            entries.append((name, preset, own + common))
    return seeds, entries, _scale(values.get("scale") or {}, f"{file}: scale")


def _modules(config: Path, flags: list[str]) -> list[str]:
    """Flags that repeat what a file of settings may name a module by.

    It lies beside FILE, whose word is enough: what FILE names as a recipe is executed, too.
    """
    values = read_yaml(config, links=True) if config.is_file() else {}
    named = {key: values[key] for key in ("env", "env_kwargs") if key in values}
    repeated = _flags(named, str(config))
    return [flag for flag in repeated if option(flags, flag.partition("=")[0]) is None]


def _scale(scale: Any, where: str) -> Scale:
    """Of each environment the returns that count as 0 and as 1."""
    if not isinstance(scale, Mapping):
        raise ValueError(f"{where} must be 'environment: [zero, one]' lines, got {scale!r}")
    for env, ends in scale.items():
        two = isinstance(ends, list) and len(ends) == 2
        finite = two and all(number(end) and math.isfinite(end) for end in ends)
        if not finite or ends[0] == ends[1]:
            raise ValueError(f"{where}: {env} must be two different numbers, got {ends!r}")
    return dict(scale)


def _presets(presets: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Names of presets, and their files or settings."""
    if isinstance(presets, dict):
        yield from ((str(name), what or {}) for name, what in presets.items())
        return
    if presets is None:
        yield "default", {}
        return
    files = presets if isinstance(presets, list) else [presets]
    for path in files:
        if not isinstance(path, str):
            raise ValueError(f"{where} must be files, or names with settings, got {path!r}")
        yield Path(path).stem, path


def _flags(settings: Any, where: str) -> Iterator[str]:
    if not isinstance(settings, Mapping):
        raise ValueError(f"{where} must be 'key: value' lines, got {short(settings)}")
    for key, value in settings.items():
        if key in PLACE:
            raise ValueError(f"{where}: {key} is the league's own business")
        text = value if isinstance(value, str) else "None" if value is None else json.dumps(value)
        yield f"--{str(key).replace('_', '-')}={text}"


def _show(place: Path, groups: Mapping[tuple[str, str], Mapping[Any, float]], scale: Scale) -> None:
    from composerl.analysis.groups import FEW
    from composerl.analysis.runs import read_run
    from composerl.analysis.stats import iqm, run_interval
    from composerl.bookkeeping.console import print_table
    from composerl.cli.tasks import show_tasks

    rows, results = [], []
    for (recipe, preset), returns in groups.items():
        if not returns:
            continue
        values = list(returns.values())
        middle, ends = float(iqm(values)), run_interval(values)
        env = read_run(next(iter(returns)).directory).env
        rows.append((f"{recipe} {preset}", env, len(values), f"{middle:.1f}",
                     f"{ends[0]:.1f} to {ends[1]:.1f}" if ends else "none"))  # fmt: skip
        results.append({"recipe": recipe, "preset": preset, "env": env, "iqm": middle,
                        "interval": ends, "returns": {job.directory.name: value for job, value in
                                                      returns.items()}})  # fmt: skip
    columns = ("recipe, preset", "environment", "seeds", "interquartile mean", "95 % interval")
    print_table(f"{place}: final return", columns, rows)
    if any(len(result["returns"]) < FEW for result in results):
        print(f"note: intervals over fewer than {FEW} seeds are little more than their range")
    write_json(place / "results.json", results)
    show_tasks(place, results, scale)
    print(f"see more: composerl report {place}; results: {place / 'results.json'}")
