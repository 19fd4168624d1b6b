"""``composerl recipes`` and ``composerl run``: what there is, a copy of it, a run of it."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from typing import Literal

from tyro.conf import Positional

from composerl.catalog import copy_recipe, find_recipe, load_recipe
from composerl.catalog import recipes as catalogue
from composerl.config import preset_files, start_with

__all__ = ["recipes", "run", "split_flags"]

#: What ``run NAME --help`` says of flags that are not the recipe's.
SEVERAL = (
    "Several seeds as one group: --seeds 0 1 2 (in place of --seed), with --jobs N at a time, "
    "or --on ray and --gpus N on a cluster; see composerl run --help."
)


def recipes(
    action: Positional[Literal["list", "copy"]] = "list",
    name: Positional[str | None] = None,
    file: Positional[str | None] = None,
) -> None:
    """List the packaged recipes and their presets, or copy one: recipes copy cql_pendulum my.py.

    Args:
        action: list, or copy.
        name: The recipe to copy.
        file: Where to, a new file.
    """
    if action == "copy":
        if name is None:
            raise ValueError("recipes copy needs a name: composerl recipes copy NAME FILE")
        from composerl.bookkeeping.console import say

        copied = copy_recipe(name, file or f"{name}.py")
        print(copied)
        sweep = copied.parent / "sweeps" / f"{copied.stem}.yaml"
        beside = [*dict.fromkeys(path.parent for path in preset_files(copied).values()), sweep]
        if there := [str(path) for path in beside if path.exists()]:
            say(f"its presets and sweep are in {' and '.join(there)}")
        return
    if name is not None:
        raise ValueError(f"recipes list takes no more words, got {name!r}")
    known = catalogue()
    left = max(map(len, known), default=0) + 2
    wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000
    wrap = partial(textwrap.wrap, width=max(wide - left, 40), break_on_hyphens=False)
    for name, line in known.items():
        first, *more = (*wrap(line), *wrap(_presets(name), subsequent_indent=" " * 9))
        print("\n".join([f"{name:{left}}{first}", *(f"{'':{left}}{other}" for other in more)]))


def _presets(recipe: str) -> str:
    """What ``--config`` may name, by the extra it needs, which the first line of a preset says."""
    extras: dict[str, list[str]] = {}
    for name, file in preset_files(find_recipe(recipe)).items():
        needs = re.search(r"^# Needs the extra (\w+)", file.read_text(encoding="utf-8"))
        extras.setdefault(f" (extra {needs[1]})" if needs else "", []).append(name)
    named = [f"{' | '.join(names)}{extra}" for extra, names in extras.items()]
    return f"--config {', or '.join(named)}" if named else ""


def run(
    name: Positional[str],
    *,
    seeds: tuple[int, ...] = (),
    jobs: int | None = None,
    on: str | None = None,
    gpus: float = 0,
) -> Callable[[list[str]], None]:
    """Train: run NAME with any of the recipe's flags (run NAME --help lists them).

    Args:
        name: A packaged recipe (see composerl recipes) or the path of a recipe file.
        seeds: Run all of these, each in a process of its own, as one group.
        jobs: How many of them at a time. Default: one; on a cluster as many as it has cores.
        on: Where: ray (a cluster that is started here) or ray=ADDRESS; each has --threads cores.
        gpus: GPUs of each run on a cluster; may be a fraction.
    """

    def start(flags: list[str]) -> None:
        if seeds:
            from composerl.cli.group import run_group

            run_group(name, flags, seeds, on, jobs, gpus)
            return
        if on is not None:
            raise ValueError("--on is for several runs: name their seeds, such as --seeds 0 1 2")
        module = load_recipe(find_recipe(name))
        start_with(module.Config, module.main, flags, f"composerl run {name}", SEVERAL)

    return start


def split_flags(
    words: list[str], *, one: tuple[str, ...], many: tuple[str, ...]
) -> tuple[list[str], list[str]]:
    """Split a command line into a command's own words, the recipe's name first, and the rest.

    ``one`` are flags with one value, ``many`` those with any number.
    """
    own, taking = words[:1], 0
    rest: list[str] = []
    for word in words[1:]:
        flag = word.partition("=")[0]
        if word.startswith("--"):
            mine = flag in (*one, *many)
            taking = 0 if not mine or "=" in word else 1 if flag in one else len(words)
        else:
            mine = taking > 0
            taking -= 1
        (own if mine else rest).append(word)
    return own, rest
