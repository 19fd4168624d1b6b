"""Files of runs and datasets with a flipped bit, cut short, overwritten in part."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from composerl.data import read_dataset

from .child import Ended, Watch, allowed, command, forked
from .material import Material, copy, difference, files
from .tries import Try

#: Commands on a finished run. What they print is equal, or damage is told; only `verify` can know
#: that of text that says what it says: metrics.jsonl, summary.json.
LOOKS: dict[str, list[str]] = {
    "verify": ["verify", "run"],
    "evaluate": ["evaluate", "run", "--episodes", "1", "--json"],
    "best": ["evaluate", "run", "--episodes", "1", "--json", "--which", "best"],
    "report": ["report", "run"],
    "plot": ["plot", "run"],
    "compare": ["compare", "run", "run", "--json"],
    "replay": ["data", "collect", "run", "--replay", "-o", "replay.npz"],
}
_OFTEN = (3, 2, 2, 0.5, 0.2, 1, 2)  # drawing takes the most time
_POLICY = ("evaluate", "best", "replay")


def flips(material: Material, rng: random.Random, place: Path, alone: bool) -> Try:
    """A damaged file of a finished run, of half a run that is resumed, or of a dataset."""
    how = rng.choices((_look, _resume, _read, _learn), (6, 3, 3, 1))[0]
    return how(material, rng, place, alone)


def damage(path: Path, rng: random.Random) -> str:
    """Change some bytes of a file; gives what was done, in words."""
    content = bytearray(path.read_bytes())
    at, kind = (
        rng.randrange(len(content)),
        rng.choices(("bit", "cut", "zeros", "more"), (16, 2, 1, 1)),
    )
    if kind == ["bit"]:
        bit = rng.randrange(8)
        content[at] ^= 1 << bit
        done = f"bit {bit} of byte {at}"
    elif kind == ["cut"]:
        del content[at:]
        done = f"cut to {at} bytes"
    elif kind == ["zeros"]:
        end = min(len(content), at + rng.choice((1, 16, 512)))
        if not any(content[at:end]):
            content[at] = 1
        else:
            content[at:end] = bytes(end - at)
        done = f"zeros from {at} to {end}"
    else:
        content += rng.randbytes(rng.choice((1, 100)))
        done = f"{len(content)} bytes"
    path.write_bytes(content)
    return f"{path.name}, {done}"


def _look(material: Material, rng: random.Random, place: Path, alone: bool) -> Try:
    recipe, name = material.pick(rng), rng.choices([*LOOKS], _OFTEN)[0]
    run = copy(material.whole(recipe), place)
    done = damage(rng.choice(files(run)), rng)
    what = f"{recipe}, {name}, {done}"
    ended = command(LOOKS[name], place, run, alone=alone)
    if name == "verify" and ended.code == 0:
        return Try(what, "difference", "verify says that all is well")
    if (
        name in _POLICY
        and ended.how == "fine"
        and _result(ended, place) != _expected(material, recipe, name, place)
    ):
        # Who takes an older checkpoint's replay buffer instead says so.
        told = name == "replay" and "instead of it" in ended.err
        return Try(what, "told" if told else "difference", ended.out + ended.why)
    return Try(what, ended.how, ended.why)


def _result(ended: Ended, place: Path) -> Any:
    """What a command gave: the dataset that it wrote, else its words."""
    file = place / "replay.npz"
    return read_dataset(file).fingerprint if file.exists() else ended.out


_KNOWN: dict[tuple[str, str], Any] = {}


def _expected(material: Material, recipe: str, name: str, place: Path) -> Any:
    """The same of the run as it was, in the same words."""
    if (recipe, name) not in _KNOWN:
        other = place / "whole"
        other.mkdir()
        copy(material.whole(recipe), other)
        _KNOWN[recipe, name] = _result(command(LOOKS[name], other, other / "run"), other)
    return _KNOWN[recipe, name]


def _resume(material: Material, rng: random.Random, place: Path, alone: bool) -> Try:
    recipe = material.pick(rng)
    run = copy(material.half(recipe), place)
    done = damage(rng.choice(files(run)), rng)
    ended = command(material.words(recipe, run), place, run, alone=alone)
    what = f"{recipe}, resumed, {done}"
    found = difference(run, material.whole(recipe)) if ended.how == "fine" else None
    # Bookkeeping may change, and config.yaml may be where: it is said.
    how = "told" if "goes on with other settings" in ended.err else "difference"
    return Try(what, how if found else ended.how, found or ended.why)


def _read(material: Material, rng: random.Random, place: Path, alone: bool) -> Try:
    """By `data info`; what is then read is what was written. HDF5 by others has no checksums."""
    kind = rng.choice(("npz", "h5", "minari"))
    whole = material.dataset(kind)
    file = place / whole.name
    file.write_bytes(whole.read_bytes())
    what = f"data info, {kind}, {damage(file, rng)}"
    ended = command(["data", "info", file.name], place, place / "run", alone=alone)
    if ended.how == "fine":
        compared, _ = forked(partial(_require_same, file, whole), Watch(allowed(place), place))
        if compared.code:
            return Try(what, "difference", compared.err)
    return Try(what, ended.how, ended.why)


def _require_same(file: Path, whole: Path) -> None:
    here, there = (read_dataset(path).arrays() for path in (file, whole))
    assert here.keys() == there.keys()
    for key, array in there.items():
        np.testing.assert_array_equal(here[key], array, err_msg=key)


def _learn(material: Material, rng: random.Random, place: Path, alone: bool) -> Try:
    """A dataset that is damaged while a run that learns from it is dead."""
    kind = rng.choice(("npz", "h5", "minari"))
    whole, half = material.learned(kind)
    run, file = copy(half, place), material.dataset(kind)
    before = file.read_bytes()
    try:
        what = f"resumed, {kind}, {damage(file, rng)}"
        ended = command(material.words("bc_pendulum", run), place, run, alone=alone)
    finally:
        file.write_bytes(before)
    found = difference(run, whole) if ended.how == "fine" else None
    # The manifest is that of the damaged file, which may say the same in other bytes.
    return Try(what, "difference" if found else ended.how, found or ended.why)
