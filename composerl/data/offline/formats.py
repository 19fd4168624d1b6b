"""Readers of dataset files. None of them can execute what it reads."""

import math
import re
import zipfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from composerl._schema import short
from composerl.data.offline.behaviours import BEHAVIOURS
from composerl.data.offline.checks import KEYS, MINARI
from composerl.data.offline.dataset import Dataset, Parts
from composerl.data.offline.room import Room, plain_item, require_honest_member

__all__ = ["read_dataset", "read_npz"]

_EPISODE = "episode_"
_NUMBER = re.compile(r"[0-9]{1,18}")
_DEEP = 20  # groups of a Dict of Dicts
_OBSERVATIONS = ("observations", "next_observations")


def read_dataset(path: str | Path) -> Dataset:
    """Read a dataset from an npz file, a D4RL-style HDF5 file or a local Minari dataset.

    npz and HDF5 files hold ``observations actions rewards terminals`` and, optionally,
    ``next_observations timeouts``. A Minari dataset is named by its directory or by its
    ``main_data.hdf5``. The content is checked as far as that is possible without knowing the
    environment; ``validate`` checks the rest.

    Observations of a Dict space (a group of HDF5 or Minari, or npz members named
    ``observations/<key>``) are joined to one vector, sorted by key as gymnasium and TorchRL's
    ``CatTensors`` do; ``validate`` brings them into the environment's order where that differs.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        for candidate in (path / "data" / "main_data.hdf5", path / "main_data.hdf5"):
            if candidate.is_file():
                return _read_hdf5(candidate)
        raise FileNotFoundError(
            f"{path} is not a Minari dataset in HDF5 format: it has no data/main_data.hdf5"
        )
    if not path.exists():
        make = f"composerl data make ENV --behaviour {path} -o {path}.npz"
        behaviour = f": it is a behaviour, of which {make} writes a file"
        hint = behaviour if str(path) in BEHAVIOURS else ""
        raise FileNotFoundError(f"dataset {path} does not exist{hint}")
    if not path.is_file():
        raise ValueError(f"dataset {path} is neither a file nor a directory")
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return _dataset(_nested(read_npz(path, KEYS)), str(path))
    if suffix in (".hdf5", ".h5"):
        return _read_hdf5(path)
    raise ValueError(
        f"dataset {path} has the ending {suffix!r}, expected .npz, .hdf5, .h5 or a Minari directory"
    )


def read_npz(path: Path, keys: Iterable[str]) -> dict[str, np.ndarray]:
    """Those of the keys that an npz file has, also as ``key/part``; others have no content."""
    # Asked first: numpy would advise to unpickle whatever is no zip archive.
    with open(path, "rb") as opened:
        begin = opened.read(6)
    if not begin.startswith(b"PK") or not zipfile.is_zipfile(path):
        if begin != b"\x93NUMPY":
            raise ValueError(f"{path} is not a readable npz file: no zip archive, or cut short")
        raise ValueError(f"{path} holds one bare array, expected an npz file of named arrays")
    # Here and below: a dozen types are raised on a damaged file, depending on where the damage is.
    try:
        file = np.load(path, allow_pickle=False)
    except Exception as error:
        raise ValueError(f"{path} is not a readable npz file: {error}") from error
    with file:
        arrays: dict[str, np.ndarray] = {}
        room = Room(path)
        for key in file.files:
            if key in arrays:  # which of them is meant, nobody knows
                raise ValueError(f"{path} has {key} twice")
            try:
                if key.split("/")[0] not in keys:
                    # A name has no checksum, but is there twice: one of ours may be damaged.
                    name = f"{key}.npy" if f"{key}.npy" in file.zip.NameToInfo else key
                    file.zip.open(name).close()
                    arrays[key] = np.empty(0)
                    continue
                require_honest_member(file.zip, key, room)
                arrays[key] = file[key]
            except Exception as error:
                raise ValueError(f"{path}: {key} cannot be read: {error}") from error
        return arrays


def _read_hdf5(path: Path) -> Dataset:
    import h5py  # slow to import, and npz users have no need of it

    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"{path} is not a readable HDF5 file: {error}") from error
    with file:
        try:
            room = Room(path)
            if any(name.startswith(_EPISODE) for name in file):
                return _read_minari(file, room)
            arrays = {k: _hdf5_array(file, k, room) if k in KEYS else np.empty(0) for k in file}
        except ValueError:
            raise
        except Exception as error:  # as many types as HDF5 has parts that can be damaged
            raise ValueError(f"{path} cannot be read, it may be damaged: {error}") from error
    return _dataset(arrays, str(path))


# ---- observations of several arrays ------------------------------------------------------------


def _nested(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """The arrays by key, those named ``key/part`` together in a dictionary by part."""
    found: dict[str, Any] = {}
    for name, array in arrays.items():
        key, _, part = name.partition("/")
        if part and isinstance(found.setdefault(key, {}), dict):
            found[key][part] = array
        else:
            found[key] = array
    return found


def _dataset(arrays: dict[str, Any], source: str) -> Dataset:
    parts: dict[str, Parts | None] = {key: None for key in _OBSERVATIONS if key in arrays}
    for key in parts:
        if isinstance(arrays[key], dict):
            arrays[key], parts[key] = _joined(arrays[key], f"{source}: {key}")
    if len(set(parts.values())) > 1:
        raise ValueError(f"{source}: next_observations has not the same parts as observations")
    return replace(Dataset.from_arrays(arrays, source), obs_parts=parts.get("observations"))


def _joined(arrays: dict[str, np.ndarray], source: str) -> tuple[np.ndarray, Parts]:
    """One row for the rows of several arrays, in order of their names."""
    names = sorted(arrays, key=lambda name: [_place(part) for part in name.split("/")])
    rows = [len(arrays[name]) if arrays[name].ndim else 0 for name in names]
    if len(set(rows)) > 1:
        counts = ", ".join(f"{name} {count}" for name, count in zip(names, rows, strict=True))
        raise ValueError(f"{source} has not one row per step in each part: {counts}")
    if images := [name for name in names if arrays[name].ndim > 3]:
        raise ValueError(
            f"{source}: images ({', '.join(images)}) cannot be joined with the rest of an "
            "observation: write the one array that is to be learned from"
        )
    flat = [arrays[name].reshape(rows[0], -1) for name in names]
    sizes = tuple((name, array.shape[1]) for name, array in zip(names, flat, strict=True))
    return np.concatenate(flat, axis=1), sizes


def _place(name: str) -> tuple[int, str]:
    """What to sort by: the parts of a Tuple by number, all others by name."""
    index = name.removeprefix("_index_")
    return (int(index), "") if index != name and index.isdecimal() else (-1, name)


# ---- HDF5 --------------------------------------------------------------------------------------


def _read_minari(file: Any, room: Room) -> Dataset:
    """All episodes in a row. Each has one observation more than steps: its last successor."""
    path = room.path
    names = [name for name in file if name.startswith(_EPISODE)]
    if wrong := [name for name in names if not _NUMBER.fullmatch(name.removeprefix(_EPISODE))]:
        raise ValueError(f"{path}: group {short(wrong[0])} is not named episode_<number>")
    columns: dict[str, list[np.ndarray]] = {key: [] for key in KEYS}
    obs_parts: Parts | None = None
    # As text, episode_10 sorts before episode_2.
    for name in sorted(names, key=lambda name: int(name.removeprefix(_EPISODE))):
        source, group = f"{path}: {name}", plain_item(file, name, (), str(path))[0]
        if not hasattr(group, "keys"):
            raise ValueError(f"{source} is no group")
        if missing := [key for key in MINARI.values() if key not in group]:
            there = ", ".join(sorted(group)) or "nothing"
            raise ValueError(f"{source}: no {' or '.join(missing)}; it has {there}")
        held = {key: _hdf5_array(group, theirs, room, name) for key, theirs in MINARI.items()}
        obs, steps, found = held["observations"], len(held["rewards"]), None
        if isinstance(obs, dict):
            obs, found = _joined(obs, f"{source}: observations")
        if len(obs) != steps + 1:
            raise ValueError(
                f"{source}: observations has {len(obs)} rows, expected {steps + 1}, one more than "
                "rewards"
            )
        held |= {"observations": obs[:-1], "next_observations": obs[1:]}
        for key, array in held.items():
            if len(array) != steps:
                raise ValueError(
                    f"{source}: {MINARI[key]} has {len(array)} rows, but rewards has {steps}"
                )
        if not steps:
            continue
        if columns["rewards"] and found != obs_parts:
            raise ValueError(f"{source}: observations has not the parts of earlier episodes")
        obs_parts = found
        held["timeouts"] = held["timeouts"].astype(bool)
        held["timeouts"][-1] = True  # an unfinished recording ends here too; terminals win later
        for key, pieces in columns.items():
            pieces.append(held[key])
            if pieces[-1].shape[1:] != pieces[0].shape[1:]:
                raise ValueError(
                    f"{source}: {key} has rows of shape {pieces[-1].shape[1:]}, but those of "
                    f"earlier episodes have {pieces[0].shape[1:]}"
                )
    if not columns["rewards"]:
        raise ValueError(f"{path}: none of the {len(names)} episodes has a step")
    arrays = {key: np.concatenate(pieces) for key, pieces in columns.items()}
    return replace(Dataset.from_arrays(arrays, str(path), find_leaks=False), obs_parts=obs_parts)


def _hdf5_array(
    group: Any, key: str, room: Room, name: str = "", above: tuple[int, ...] = ()
) -> Any:
    """One array of a file, or those of a Dict by name; types are looked at before any reading."""
    source = f"{room.path}: {name}" if name else str(room.path)
    if len(above) > _DEEP:
        raise ValueError(f"{source}: observations are groups in groups, more than {_DEEP} deep")
    item, place = plain_item(group, key, above, source)
    if item is None:
        raise ValueError(f"{source}: {key} is a broken link, expected one plain array")
    if not hasattr(item, "dtype"):
        if key.split("/")[0] not in _OBSERVATIONS or not len(item):
            raise ValueError(
                f"{source}: {key} is {'a' if len(item) else 'an empty'} group (a Dict or Tuple "
                "space), expected one plain array"
            )
        found: dict[str, np.ndarray] = {}
        for part_name in item:
            part = _hdf5_array(group, f"{key}/{part_name}", room, name, (*above, place))
            below = part if isinstance(part, dict) else {"": part}
            found |= {f"{part_name}/{rest}".rstrip("/"): array for rest, array in below.items()}
        return found
    if item.dtype.kind not in "biuf":
        raise ValueError(f"{source}: {key} has type {item.dtype}, expected plain numbers")
    if not item.shape:
        raise ValueError(f"{source}: {key} is a single number, expected one row per step")
    room.require(math.prod(item.shape) * item.dtype.itemsize, item.id.get_storage_size(), key)
    try:
        return item[()]
    except OSError as error:
        raise ValueError(f"{source}: {key} cannot be read: {error}") from error
