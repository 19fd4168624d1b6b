"""Readers of dataset files. None of them can execute what it reads."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from composerl.data.offline.checks import KEYS
from composerl.data.offline.dataset import Dataset

__all__ = ["read_dataset", "read_npz"]

_EPISODE = "episode_"


def read_dataset(path: str | Path) -> Dataset:
    """Read a dataset from an npz file, a D4RL-style HDF5 file or a local Minari dataset.

    npz and HDF5 files hold ``observations actions rewards terminals`` and, optionally,
    ``next_observations timeouts``. A Minari dataset is named by its directory or by its
    ``main_data.hdf5``. The content is checked as far as that is possible without knowing the
    environment; ``validate`` checks the rest.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        return _read_hdf5(_minari_file(path))
    if not path.exists():
        raise FileNotFoundError(f"dataset {path} does not exist")
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return Dataset.from_arrays(read_npz(path, KEYS), str(path))
    if suffix in (".hdf5", ".h5"):
        return _read_hdf5(path)
    raise ValueError(
        f"dataset {path} has the ending {suffix!r}, expected .npz, .hdf5, .h5 or a Minari directory"
    )


def read_npz(path: Path, keys: Iterable[str]) -> dict[str, np.ndarray]:
    """Those of the keys that an npz file has; other names are listed with no content."""
    # np.load raises half a dozen types on a damaged file, depending on where the damage is.
    damage = (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error)
    # Asked first: numpy would advise to unpickle whatever is no zip archive.
    if not zipfile.is_zipfile(path) and path.read_bytes()[:6] != b"\x93NUMPY":
        raise ValueError(f"{path} is not a readable npz file: no zip archive, or cut short")
    try:
        file = np.load(path, allow_pickle=False)
    except damage as error:
        raise ValueError(f"{path} is not a readable npz file: {error}") from error
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise ValueError(f"{path} holds one bare array, expected an npz file of named arrays")
    with file:
        arrays = {}
        for key in file.files:
            try:
                arrays[key] = file[key] if key in keys else np.empty(0)
            except damage as error:
                raise ValueError(f"{path}: {key} cannot be read: {error}") from error
        return arrays


def _minari_file(folder: Path) -> Path:
    for candidate in (folder / "data" / "main_data.hdf5", folder / "main_data.hdf5"):
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(
        f"{folder} is not a Minari dataset in HDF5 format: it has no data/main_data.hdf5"
    )


def _read_hdf5(path: Path) -> Dataset:
    import h5py  # slow to import, and npz users have no need of it

    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"{path} is not a readable HDF5 file: {error}") from error
    with file:
        if any(name.startswith(_EPISODE) for name in file):
            return Dataset.from_arrays(_minari_arrays(file, path), str(path), find_leaks=False)
        arrays = {k: _hdf5_array(file, k, str(path)) if k in KEYS else np.empty(0) for k in file}
    return Dataset.from_arrays(arrays, str(path))


def _minari_arrays(file: Any, path: Path) -> dict[str, np.ndarray]:
    """All episodes in a row. Each has one observation more than steps: its last successor."""
    names = [name for name in file if name.startswith(_EPISODE)]
    if wrong := [name for name in names if not name.removeprefix(_EPISODE).isdecimal()]:
        raise ValueError(f"{path}: group {wrong[0]!r} is not named episode_<number>")
    parts: dict[str, list[np.ndarray]] = {key: [] for key in KEYS}
    # As text, episode_10 sorts before episode_2.
    for name in sorted(names, key=lambda name: int(name.removeprefix(_EPISODE))):
        source, group = f"{path}: {name}", file[name]
        wanted = ("observations", "actions", "rewards", "terminations", "truncations")
        if missing := [key for key in wanted if key not in group]:
            there = ", ".join(sorted(group)) or "nothing"
            raise ValueError(f"{source}: no {' or '.join(missing)}; it has {there}")
        obs, actions, rewards, terminations, truncations = (
            _hdf5_array(group, key, source) for key in wanted
        )
        steps = len(rewards)
        if len(obs) != steps + 1:
            raise ValueError(
                f"{source}: observations has {len(obs)} rows, expected {steps + 1}, one more than "
                "rewards"
            )
        for key, array in zip(
            wanted[1:], (actions, rewards, terminations, truncations), strict=True
        ):
            if len(array) != steps:
                raise ValueError(f"{source}: {key} has {len(array)} rows, but rewards has {steps}")
        if not steps:
            continue
        truncations = truncations.astype(bool)
        truncations[-1] = True  # an unfinished recording ends here too; terminals win later
        columns = (obs[:-1], actions, rewards, obs[1:], terminations, truncations)
        for key, array in zip(KEYS, columns, strict=True):
            if parts[key] and array.shape[1:] != parts[key][0].shape[1:]:
                raise ValueError(
                    f"{source}: {key} has rows of shape {array.shape[1:]}, but those of earlier "
                    f"episodes have {parts[key][0].shape[1:]}"
                )
            parts[key].append(array)
    if not parts["rewards"]:
        raise ValueError(f"{path}: none of the {len(names)} episodes has a step")
    return {key: np.concatenate(arrays) for key, arrays in parts.items()}


def _hdf5_array(group: Any, key: str, source: str) -> np.ndarray:
    """One array of a file; its type is looked at before anything is read."""
    item = group.get(key)  # None for a link that leads nowhere
    if item is None:
        raise ValueError(f"{source}: {key} is a broken link, expected one plain array")
    if not hasattr(item, "dtype"):
        raise ValueError(
            f"{source}: {key} is a group (a Dict or Tuple space), expected one plain array"
        )
    if item.dtype.kind not in "biuf":
        raise ValueError(f"{source}: {key} has type {item.dtype}, expected plain numbers")
    if not item.shape:
        raise ValueError(f"{source}: {key} is a single number, expected one row per step")
    try:
        return item[()]
    except OSError as error:
        raise ValueError(f"{source}: {key} cannot be read: {error}") from error
