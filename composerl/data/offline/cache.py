"""Where generated datasets are kept: files that are whole, and checked before they are used."""

from __future__ import annotations

import hashlib
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from composerl._files import replace_file
from composerl.data.offline.checks import KEYS
from composerl.data.offline.dataset import Dataset
from composerl.data.offline.formats import read_npz

__all__ = ["cache_dir", "load", "save"]


def cache_dir() -> Path:
    """Where generated datasets are kept."""
    if chosen := os.environ.get("COMPOSERL_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "composerl"


def _path(request: str) -> Path:
    return cache_dir() / f"{hashlib.sha256(request.encode()).hexdigest()[:32]}.npz"


def _checksum(request: str, dataset: Dataset) -> str:
    return hashlib.sha256(f"{request} {dataset.fingerprint}".encode()).hexdigest()


def load(request: str, source: str) -> Dataset | None:
    """What was kept for a request, or None; a damaged file counts as absent, with a warning."""
    path = _path(request)
    try:
        if not path.exists():
            return None
        arrays: dict[str, Any] = read_npz(path, (*KEYS, "checksum"))
        stored = str(arrays.pop("checksum"))
        dataset = Dataset(**arrays, source=source)
        if stored == _checksum(request, dataset):
            return dataset
        problem = "its content does not match its checksum"
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = str(error)
    warnings.warn(f"cached dataset {path} is damaged and made again: {problem}", stacklevel=3)
    return None


def save(request: str, dataset: Dataset) -> None:
    """Write whole or not at all: a reader never sees half a file. Failing is only a warning."""
    path, arrays = _path(request), {key: getattr(dataset, key) for key in KEYS}
    arrays["checksum"] = np.array(_checksum(request, dataset))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, lambda file: np.savez(file, **arrays))
    except OSError as error:
        warnings.warn(f"generated dataset is not cached: {error}", stacklevel=3)
