"""Writers of dataset files, in the layouts that ``read_dataset`` reads."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from composerl._files import replace_file, write_json
from composerl.data.offline.checks import MINARI
from composerl.data.offline.dataset import Dataset

__all__ = ["check_target", "write_dataset"]

_MINARI = "0.5.0"  # the version of Minari whose layout this is
#: Of HDF5, with checksums of its structures, and of arrays: what is damaged is not read.
_VERSION, _CHECKED = ("v110", "v110"), {"fletcher32": True}


def write_dataset(dataset: Dataset, path: str | Path) -> Path:
    """Write a dataset as npz, as D4RL-style HDF5, or, to a name without ending, for Minari.

    A Minari dataset is a directory with ``data/main_data.hdf5`` and its metadata. Nothing that
    exists is overwritten, and a crash leaves nothing behind under the final name.
    """
    path = check_target(path)
    replace_file(path, partial(_WRITERS[path.suffix.lower()], dataset))
    return path


def check_target(path: str | Path) -> Path:
    """The path, if a dataset may be written there: to be asked before it is made at length."""
    path = Path(path).expanduser()
    if path.exists():
        raise FileExistsError(f"{path} exists already: choose another name")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent}: there is no such directory")
    if path.suffix.lower() not in _WRITERS:
        raise ValueError(
            f"{path} has the ending {path.suffix!r}, expected .npz, .hdf5, .h5, or none for Minari"
        )
    return path


def _write_npz(dataset: Dataset, path: Path) -> None:
    with open(path, "wb") as file:
        np.savez_compressed(file, **dataset.arrays())


def _write_hdf5(dataset: Dataset, path: Path) -> None:
    import h5py

    with h5py.File(path, "w", libver=_VERSION) as file:
        for key, array in dataset.arrays().items():
            file.create_dataset(key, data=array, compression="gzip", **_CHECKED)


def _write_minari(dataset: Dataset, path: Path) -> None:
    import h5py

    inner = ~(dataset.terminals | dataset.timeouts)[:-1]
    joined = dataset.next_observations[:-1][inner] == dataset.observations[1:][inner]
    if not joined.all():
        raise ValueError(
            f"{dataset.source} cannot be a Minari dataset: its rows are not whole episodes, some "
            "next observation is not the following row's observation"
        )
    content = path / "data" / "main_data.hdf5"
    content.parent.mkdir(parents=True)
    bounds = dataset.episodes()
    with h5py.File(content, "w", libver=_VERSION) as file:
        for number, (start, stop) in enumerate(bounds):
            group = file.create_group(f"episode_{number}")
            group.attrs.update({"id": number, "total_steps": int(stop - start)})
            arrays = {key: getattr(dataset, key)[start:stop] for key in MINARI}
            last = dataset.next_observations[stop - 1 : stop]
            arrays["observations"] = np.concatenate([arrays["observations"], last])
            for key, array in arrays.items():
                group.create_dataset(MINARI[key], data=array, **_CHECKED)
    metadata = {
        "dataset_id": f"{path.name}-v0",
        "minari_version": _MINARI,
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "total_episodes": len(bounds),
        "total_steps": len(dataset),
        "dataset_size": round(content.stat().st_size / 1e6, 1),
        "observation_space": _space(dataset.observations),
        "action_space": _space(dataset.actions),
    }
    write_json(content.with_name("metadata.json"), metadata)


def _space(rows: np.ndarray) -> str:
    """The space that the rows are known to be of, in Minari's words; bounds are not known."""
    kind, shape = str(rows.dtype), rows.shape[1:]
    if not shape:
        return json.dumps({"type": "Discrete", "dtype": kind, "start": 0, "n": int(rows.max()) + 1})
    space = {"type": "Box", "dtype": kind, "shape": list(shape)}
    low, high = (0, 255) if rows.dtype == np.uint8 else (-np.inf, np.inf)
    bounds = {"low": np.full(shape, low).tolist(), "high": np.full(shape, high).tolist()}
    return json.dumps(space | bounds)


_WRITERS: dict[str, Callable[[Dataset, Path], None]] = {
    ".npz": _write_npz, ".hdf5": _write_hdf5, ".h5": _write_hdf5, "": _write_minari,
}  # fmt: skip
