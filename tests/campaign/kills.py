"""Runs that are killed, up to three times, and resumed: equal to one that never was."""

from __future__ import annotations

import random
import signal
from functools import partial
from pathlib import Path

from composerl.cli import main

from .child import Watch, allowed, forked
from .material import Material, difference
from .tries import Try


def kills(material: Material, rng: random.Random, place: Path, alone: bool) -> Try:
    """A run that is killed right before a change of its directory, or at any moment."""
    recipe, out, killed = material.pick(rng), place / "run", 0
    whole, moments = material.whole(recipe), []
    for _ in range(rng.choice((1, 1, 2, 3))):
        if rng.random() < 0.7:
            at, after = rng.randint(1, material.changes[recipe]), None
        else:
            at, after = None, rng.uniform(0, material.seconds[recipe])
        watch = Watch(allowed(place), out, at)
        ended, _ = forked(partial(main, material.words(recipe, out)), watch, kill_after=after)
        moments.append(f"change {at}" if at else f"{after:.2f} s")
        what = f"{recipe}, killed at {', '.join(moments)}"
        if ended.code != -signal.SIGKILL:  # it was done before, or resumed a finished run
            if ended.how != "fine":
                return Try(what, ended.how, ended.why, killed)
            break
        killed += 1
    ended, _ = forked(partial(main, material.words(recipe, out)), Watch(allowed(place), out))
    if ended.how != "fine":
        return Try(what, "difference" if ended.how == "told" else ended.how, ended.why, killed)
    found = difference(out, whole)
    return Try(what, "difference" if found else "fine", found or "", killed)
