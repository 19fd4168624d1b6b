"""Disks that are full at some point of a run: a sentence, and what is there can be resumed."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from functools import partial
from pathlib import Path

from composerl.cli import main

from .child import Watch, allowed, forked
from .material import Material, difference
from .tries import Try


def disks(material: Material, rng: random.Random, place: Path, alone: bool) -> Try:
    """A small file system in memory where root may mount one, else a limit on the size of files."""
    recipe = material.pick(rng)
    whole = material.whole(recipe)
    sizes = [path.stat().st_size for path in whole.rglob("*") if path.is_file()]
    if os.geteuid() == 0 and rng.random() < 0.7:
        room = rng.randrange(16, 4 * sum(sizes) // 3 // 1024 + 20) * 1024
        return _mounted(material, recipe, place, room) or _limited(material, recipe, place, room)
    return _limited(material, recipe, place, rng.randrange(max(sizes) + 2))


def _mounted(material: Material, recipe: str, place: Path, room: int) -> Try | None:
    disk = place / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        return None
    try:
        first, _ = forked(partial(main, material.words(recipe, disk / "run")))
        if (disk / "run").exists():
            shutil.copytree(disk / "run", place / "run")  # to a disk with room
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
    what = f"{recipe} on a disk of {room} bytes"
    if first.how not in ("fine", "told"):
        return Try(what, first.how, first.why)
    return _finish(material, recipe, place / "run", place, what, first.how)


def _limited(material: Material, recipe: str, place: Path, room: int) -> Try:
    out, what = place / "run", f"{recipe} with files of {room} bytes"
    first, _ = forked(partial(main, material.words(recipe, out)), file_size=room)
    if first.how not in ("fine", "told"):
        return Try(what, first.how, first.why)
    return _finish(material, recipe, out, place, what, first.how)


def _finish(material: Material, recipe: str, out: Path, place: Path, what: str, first: str) -> Try:
    """With room the run goes on, or starts, and is what it would have been."""
    ended, _ = forked(partial(main, material.words(recipe, out)), Watch(allowed(place), out))
    if ended.how != "fine":
        return Try(what, "difference" if ended.how == "told" else ended.how, ended.why)
    found = difference(out, material.whole(recipe))
    return Try(what, "difference" if found else first, found or "")
