"""Arrays of somebody's file: what they claim to be is checked before there is memory for it."""

import math
import os
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Room", "plain_item", "require_honest_member"]

#: What a compressed file may grow to: zip and gzip reach 1032 times; and what is never too large.
_GROWTH, _SMALL = 1100, 1 << 26
_TWICE = 4  # times that a byte of the file may be used: arrays can be links to others


class Room:
    """How much a file's arrays may have together, of which many may be of the same bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._claimed, self._stored, self._memory = 0, 0, _memory()
        held = path.stat().st_size
        self._most = min(max(_SMALL, _GROWTH * held), self._memory)
        self._most_stored = max(_SMALL, _TWICE * held)

    def require(self, size: int, stored: int, what: str) -> None:
        """Refuse an array that, with those before it, neither the file can hold nor the memory.

        It is told by how many bytes of the file it is ``stored``.
        """
        self._claimed += size
        self._stored += stored
        if self._claimed > self._most or self._stored > self._most_stored:
            before = f", {self._claimed} with what is before it" if self._claimed > size else ""
            raise ValueError(
                f"{self.path}: {what} claims {size} bytes{before}, more than the file can hold or "
                f"than fit into memory, {self._memory} bytes"
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


def require_honest_member(archive: zipfile.ZipFile, key: str, room: Room) -> None:
    """Refuse an array in an npz file whose shape is not that of its bytes."""
    name = f"{key}.npy" if f"{key}.npy" in archive.NameToInfo else key
    info = archive.getinfo(name)
    room.require(info.file_size, info.compress_size, key)
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
