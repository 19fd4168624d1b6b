"""Datasets of somebody who means no good, made at random."""

from __future__ import annotations

import random
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from . import nasty
from .child import command
from .hostile import somebody_s
from .material import Material, snapshot
from .tries import Try

_KEYS = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
_TYPES = ("f4", "f8", "f2", "i8", "u1", "u8", "?", "c8", "S3", "U3", "M8[s]", "O", "f4,i4", "V7")
_COMMANDS = {
    "info": ["data", "info", "FILE"],
    "convert": ["data", "convert", "FILE", "-o", "new.npz"],
    "mix": ["data", "mix", "FILE", "FILE", "-o", "new.h5"],
    "filter": ["data", "filter", "FILE", "--top", "0.5", "-o", "new.npz"],
    "train": ["run", "bc_pendulum", "--dataset", "FILE", "--steps", "2", "--eval-episodes", "1",
              "--hidden", "8", "--batch-size", "8", "--wandb", "disabled", "--out", "new"],
    "predict": ["predict", "run", "--npz", "FILE"],
}  # fmt: skip


def datasets(material: Material, rng: random.Random, place: Path, alone: bool) -> Try:
    """An npz or HDF5 file with something wrong in it, and a command that reads it."""
    elsewhere = somebody_s(place)
    with h5py.File(elsewhere / "secret.h5", "w") as file:
        file["x"] = np.zeros((8, 3))
    before = snapshot(elsewhere)
    make, ending = rng.choice(((_npz, "npz"), (_zip, "npz"), (_hdf5, "h5"), (_minari, "hdf5")))
    path = place / f"data.{ending}"
    done = make(path, rng)
    name = rng.choice([*_COMMANDS])
    words = [path.name if word == "FILE" else word for word in _COMMANDS[name]]
    if name == "predict":
        words[1] = str(material.whole("iql_pendulum"))
    ended = command(words, place, place / "new", alone=alone)
    touched = snapshot(elsewhere) != before or (place / "executed").exists()
    return Try(f"{name}, {path.name}: {done}", "outside" if touched else ended.how, ended.why)


def _arrays(rng: random.Random, rows: int = 8) -> tuple[dict[str, Any], str]:
    """Those of a dataset, some of them replaced."""
    shapes = {"observations": (3,), "actions": (1,), "next_observations": (3,)}
    made: dict[str, Any] = {key: np.zeros((rows, *shapes.get(key, ()))) for key in _KEYS}
    for key in rng.sample(_KEYS[3:], rng.randrange(3)):
        del made[key]
    made["timeouts" if "timeouts" in made else "terminals"] = np.arange(rows) == rows - 1
    done = []
    for key in rng.sample(_KEYS, rng.choice((1, 1, 2))):
        shape = [rng.choice((0, 1, 3, 8, 8, 9)) for _ in range(rng.randrange(4))]
        kind = rng.choice(_TYPES)
        made[key] = np.zeros(shape, kind)
        if kind in ("f4", "f8") and made[key].size:
            made[key].flat[0] = rng.choice((np.nan, np.inf, -1e300, 2.0, 0.5))
        elif kind in ("i8", "u8", "u1") and made[key].size:
            made[key].flat[0] = rng.choice((1, 2, 100))
        done.append(f"{key} is {kind} {shape}")
        if rng.random() < 0.3:
            made[rng.choice((f"{key}/a", f"{key}/../x", "", "/etc/passwd", nasty.ESCAPE))] = made[
                key
            ]
    return made, ", ".join(done)


def _npz(path: Path, rng: random.Random) -> str:
    arrays, done = _arrays(rng)
    rng.choice((np.savez, np.savez_compressed))(path, **arrays)
    return done


def _zip(path: Path, rng: random.Random) -> str:
    """Members whose headers are not those of their content."""
    np.savez(path, **{key: np.zeros((8, 3) if "obs" in key else 8) for key in _KEYS[:5]})
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    name = rng.choice([*members])
    shape = rng.choice(("(10000000000000,)", "(-1,)", "(8, 3, 9)", "()", "(" * 900, "(True,)", "x",
                        "(1e3,)", "(2**99,)", "(8,", "(0,) * 10**9"))  # fmt: skip
    descr = rng.choice(("'<f8'", "'|O'", "'<f8, <f8'", "[('a', '<f8')]", "5", "'V99999999999'"))
    text = f"{{'descr': {descr}, 'fortran_order': {rng.choice((True, 'x'))}, 'shape': {shape}, }}\n"
    version = rng.choice((b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"))
    size = struct.pack("<H" if version == b"\x01\x00" else "<I", rng.choice((len(text), 9, 60000)))
    whole = rng.random() < 0.5
    header = b"\x93NUMPY" + version + size + text.encode()
    members[name] = header + bytes(192) if whole else members[name][: rng.randrange(90)]
    with zipfile.ZipFile(path, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as new:
        for member, content in members.items():
            new.writestr(member, content)
        info = rng.choice(new.infolist())
        if rng.random() < 0.5:
            lie = rng.choice(("file_size", "compress_size", "CRC", "header_offset", "flag_bits"))
            large = 2**50 if "size" in lie or "offset" in lie else 9
            setattr(info, lie, rng.choice((0, 1, 2, large)))
    return f"{name} is {text.strip()}" if whole else f"{name} is cut"


def _hdf5(path: Path, rng: random.Random) -> str:
    with h5py.File(path, "w") as file:
        done = _fill(file, path, rng)
    return done


def _minari(path: Path, rng: random.Random) -> str:
    done = []
    with h5py.File(path, "w") as file:
        for number in range(rng.choice((1, 3))):
            name = rng.choice((f"episode_{number}", f"episode_{number}", "episode_x", "episode_-1",
                               f"episode_{'9' * 30}"))  # fmt: skip
            if name not in file:
                done.append(f"{name}: {_fill(file.create_group(name), path, rng, minari=True)}")
    return "; ".join(done)


def _fill(group: Any, path: Path, rng: random.Random, minari: bool = False) -> str:
    arrays, done = _arrays(rng)
    if minari:
        names = {"terminals": "terminations", "timeouts": "truncations"}
        arrays = {names.get(key, key): array for key, array in arrays.items()}
        arrays["observations"] = np.zeros((9, 3))
    for key, array in arrays.items():
        with suppress(OSError, ValueError, TypeError):  # of names and types that HDF5 has not
            group[key.replace("..", "up").strip("/") or "x"] = array
    odd: list[Callable[[Any, str, Path], None]] = [
        _link, _hard, _external, _soft, _huge, _text, _vlen, _compound, _reference, _folder,
        _virtual,
    ]  # fmt: skip
    how, key = rng.choice(odd), rng.choice(_KEYS[:5])
    key = {"terminals": "terminations", "timeouts": "truncations"}.get(key, key) if minari else key
    if key in group:
        del group[key]
    how(group, key, path)
    return f"{done}, {key}{how.__name__}"


def _link(group: Any, key: str, path: Path) -> None:
    group[f"{key}/again"] = h5py.SoftLink(f"{group.name}/{key}")


def _hard(group: Any, key: str, path: Path) -> None:
    group.create_group(key)["again"] = group


def _external(group: Any, key: str, path: Path) -> None:
    group[key] = h5py.ExternalLink("elsewhere/secret.h5", "/x")


def _soft(group: Any, key: str, path: Path) -> None:
    group[key] = h5py.SoftLink("/nowhere")


def _huge(group: Any, key: str, path: Path) -> None:
    group.create_dataset(key, (10**12, 3), "f8", chunks=(1000, 3))


def _text(group: Any, key: str, path: Path) -> None:
    group[key] = [nasty.ESCAPE.replace("\x00", "")] * 8


def _vlen(group: Any, key: str, path: Path) -> None:
    group.create_dataset(key, (8,), h5py.vlen_dtype(np.dtype("f8")))


def _compound(group: Any, key: str, path: Path) -> None:
    group[key] = np.zeros(8, "f4,i4")


def _reference(group: Any, key: str, path: Path) -> None:
    group.create_dataset(key, (8,), h5py.ref_dtype)


def _folder(group: Any, key: str, path: Path) -> None:
    group.create_group(f"{key}/a/b/c")


def _virtual(group: Any, key: str, path: Path) -> None:
    layout = h5py.VirtualLayout((8, 3), "f8")
    layout[:] = h5py.VirtualSource("elsewhere/secret.h5", "x", (8, 3))
    group.create_virtual_dataset(key, layout)
