"""What the trials of a sweep came to: a table, a picture, the best one's configuration."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from composerl._files import read_yaml, replace_file, write_text
from composerl.bookkeeping.console import print_table

__all__ = ["show_trials", "trial_name"]

ROWS = 20


def trial_name(number: int) -> str:
    """The name of a trial's directory."""
    return f"trial{number:03d}"


def show_trials(
    trials: Sequence[Any], space: dict[str, list[str]], place: Path, recipe: str
) -> None:
    """Print a row for each combination, best first; write best.yaml and, if possible, sweep.png.

    Args:
        trials: of an optuna study.
        space: the flags that were searched, with their values or a range.
        place: directory of the sweep.
        recipe: its name.
    """
    found: dict[str, list[Any]] = {}
    for trial in trials:
        if trial.state.name == "COMPLETE":
            settings = " ".join(f"{flag} {trial.params[flag]}" for flag in space)
            found.setdefault(settings, []).append(trial)
    scores = {settings: [t.value for t in group] for settings, group in found.items()}
    order = sorted(found, key=lambda settings: -mean(scores[settings]))
    rows = [
        (s, len(scores[s]), f"{mean(scores[s]):.2f}", f"{min(scores[s]):.2f}") for s in order[:ROWS]
    ]
    pruned = sum(trial.state.name == "PRUNED" for trial in trials)
    title = f"{place}: final return" + (f" ({pruned} trials pruned)" if pruned else "")
    print_table(title, ("settings", "seeds", "mean", "worst"), rows)
    if not order:
        return
    best = read_yaml(place / trial_name(found[order[0]][0].number) / "config.yaml")
    best.pop("seed", None)
    write_text(place / "best.yaml", yaml.safe_dump(best, sort_keys=False))
    print(f"the best: composerl run {recipe} --config {place / 'best.yaml'}")
    if find_spec("matplotlib"):
        print(f"picture: {_draw(trials, space, place / 'sweep.png')}")


def _draw(trials: Sequence[Any], space: dict[str, list[str]], path: Path) -> Path:
    """A panel for each flag that was searched; what was pruned is a cross at its last value."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(space) + 0.8, 3.4), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(space), sharey=True, squeeze=False)[0]
    panels[0].set_ylabel("final return")
    looks = {"COMPLETE": "o", "PRUNED": "x"}
    for axes, (flag, words) in zip(panels, space.items(), strict=True):
        for state, look in looks.items():
            shown = [t for t in trials if t.state.name == state and t.value is not None]
            places = [t.params[flag] for t in shown]
            if len(words) > 1:
                places = [words.index(place) for place in places]
            axes.plot(places, [t.value for t in shown], look, alpha=0.6, color="#0072B2")
        if len(words) > 1:
            axes.set_xticks(range(len(words)), words)
            axes.set_xlim(-0.5, len(words) - 0.5)
        elif words[0].endswith(":log"):
            axes.set_xscale("log")
        axes.set_xlabel(flag)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    replace_file(path, figure.savefig)
    return path
