"""Arrays of somebody's file: what they claim to be is checked before there is memory for it."""

import math
import os
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["plain_item", "require_honest_member", "require_room"]

#: What a compressed file may grow to: zip and gzip reach 1032 times; and what is never too large.
_GROWTH, _SMALL = 1100, 1 << 26


def require_room(size: int, path: Path, what: str) -> None:
    """Refuse an array of so many bytes that neither the file can hold nor the memory."""
    memory = _memory()
    if size > max(_SMALL, _GROWTH * path.stat().st_size) or size > memory:
        raise ValueError(
            f"{path}: {what} claims {size} bytes, more than the file can hold or than fit into "
            f"memory, {memory} bytes"
        )


def _memory() -> int:
    """What there is of it, where the system says so; else all."""
    with suppress(OSError, KeyError, ValueError), open("/proc/meminfo", encoding="ascii") as file:
        told = dict(line.split(":") for line in file)
        return int(told["MemAvailable"].split()[0]) * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows does not say
        return 1 << 40


def require_honest_member(archive: zipfile.ZipFile, key: str, path: Path) -> None:
    """Refuse an array in an npz file whose shape is not that of its bytes."""
    name = f"{key}.npy" if f"{key}.npy" in archive.NameToInfo else key
    info = archive.getinfo(name)
    require_room(info.file_size, path, key)
    with archive.open(info) as stream:
        major, _ = np.lib.format.read_magic(stream)
        read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
        if major not in read:
            raise ValueError(f"version {major} of its header holds no plain numbers")
        shape, _, dtype = read[major](stream)
        if dtype.hasobject:
            raise ValueError("Object arrays are not read")
        size, held = math.prod(shape) * dtype.itemsize, info.file_size - stream.tell()
        if size != held:
            raise ValueError(f"shape {shape} of {dtype} needs {size} bytes, there are {held}")


def plain_item(group: Any, key: str, above: tuple[int, ...], source: str) -> tuple[Any, int]:
    """What a group of an HDF5 file holds under a key, and where in the file it begins.

    None for a link that leads nowhere. Other files are not opened, and what contains itself is
    refused: ``above`` are the places of the groups that it was reached through.
    """
    import h5py

    link = group.get(key, getlink=True)
    if isinstance(link, h5py.ExternalLink):
        raise ValueError(f"{source}: {key} is a link into another file, which is not followed")
    item = group.get(key)
    if item is None:
        return None, 0
    if item.file.filename != group.file.filename:  # by a link to such a link
        raise ValueError(f"{source}: {key} is a link into another file, which is not followed")
    place = h5py.h5o.get_info(item.id).addr
    if place in above:
        raise ValueError(f"{source}: {key} is a link to what contains it")
    if isinstance(item, h5py.Dataset) and (item.is_virtual or item.external):
        raise ValueError(f"{source}: {key} is stored in other files, which are not read")
    return item, place
