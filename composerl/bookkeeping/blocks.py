"""Large tensors of a checkpoint, in files of their own that are written once."""

import hashlib
import json
import math
import os
import re
import secrets
import struct
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from composerl._files import open_plain, replace_files, require_plain

__all__ = ["LARGE", "Blocks"]

#: Bytes of the smallest tensor that is cut into blocks.
LARGE = 1 << 19
#: Bytes of a block that is there already that are compared, at a place of chance, before it is used
#: again: of a quarter of a megabyte every sixteenth.
SAMPLE = 1 << 14
_FILE = re.compile(r"[0-9a-f]{32}\.safetensors")


class Blocks:
    """A directory of blocks: successive rows of a tensor, in files named after their content.

    A replay buffer is the same from one checkpoint to the next but for its newest rows. Blocks
    start at the same rows whatever the tensor's length, so those that have not changed have the
    name of a file that is there already, and are not written again. The name is also what a block
    is checked against when it is read. ``check`` may raise, before blocks are put in their place.

    Blocks have a quarter of a megabyte, further on a 256th to a 128th of what is before them: that
    is what a checkpoint writes besides the new rows, and files stay few in any buffer.
    """

    def __init__(self, directory: Path, check: Callable[[], None] | None = None) -> None:
        self.directory, self.check = directory, check
        self._new: dict[Path, Callable[[Path], None]] = {}

    def add(self, tensor: Tensor) -> dict[str, Any]:
        """Have what is new written by :meth:`flush`; returns what :meth:`read` needs."""
        names = []
        for part in tensor.split([*_cuts(len(tensor), tensor.nbytes // len(tensor))]):
            part = part.cpu().contiguous()
            names.append(_name(part))
            path = self.path(names[-1])
            if path not in self._new and not _holds(path, part):
                self._new[path] = partial(_save, part)
        return {"shape": list(tensor.shape), "names": names}

    def flush(self) -> None:
        """Write the blocks that were added."""
        if self._new:
            self.directory.mkdir(exist_ok=True)
            replace_files(self._new, self.check)
            self._new = {}

    def read(self, about: dict[str, Any]) -> Tensor:
        """A tensor that was written; one that is damaged or gone is a ValueError."""
        tensor: Tensor | None = None
        filled, shape = 0, about["shape"]
        for path in map(self.path, about["names"]):
            part = _read(path)
            try:
                if tensor is None:
                    self._require_room(about, part.itemsize)
                    tensor = torch.empty(shape, dtype=part.dtype)
                tensor[filled : filled + len(part)] = part
            except (RuntimeError, IndexError, TypeError) as error:
                raise ValueError(f"{path} is no part of {shape}: {error}") from error
            filled += len(part)
        if tensor is None or filled != len(tensor):
            raise ValueError(f"{self.directory} holds {filled} of {shape} rows")
        return tensor

    def _require_room(self, about: dict[str, Any], size: int) -> None:
        """Refuse a shape that the blocks cannot fill, before there is memory for it."""
        held = sum(self.path(name).stat().st_size for name in about["names"])
        if math.prod(about["shape"]) * size > held:
            raise ValueError(f"{self.directory} holds {held} bytes, too few for {about['shape']}")

    def mend(self, known: Collection[Path]) -> None:
        """Remove blocks that are not what their name says, but for ``known`` good ones.

        Who needs them next writes them anew.
        """
        for path in self.others(known):
            try:
                _read(path)
            except ValueError:
                with suppress(FileNotFoundError):
                    path.unlink()

    def others(self, keep: Collection[Path]) -> list[Path]:
        """All blocks but these; other files are not ours."""
        ours = (path for path in self.directory.glob("*") if _FILE.fullmatch(path.name))
        return [path for path in ours if path not in keep and not path.is_dir()]

    def path(self, name: str) -> Path:
        """Where a block lies."""
        if not re.fullmatch(r"[0-9a-f]{32}", name):  # it may come from somebody's file
            raise ValueError(f"{name!r} is no name of a block")
        return self.directory / f"{name}.safetensors"


def _cuts(rows: int, size: int) -> Iterator[int]:
    """Rows of successive blocks of a tensor whose rows have so many bytes."""
    block, start = max(1, LARGE // 2 // size), 0
    while start < rows:
        yield min(block, rows - start)
        start += block
        if start == 256 * block:
            block *= 2


def _read(path: Path) -> Tensor:
    """The content of a block; what is not as its name says is a ValueError."""
    try:
        part = load_file(require_plain(path))["block"]
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    # Checkpoints of earlier versions have names by blake2b.
    if path.stem != _name(part) and path.stem != _name(part, hashlib.blake2b(digest_size=16)):
        raise ValueError(f"{path} is damaged: its content does not match its name")
    return part


def _save(part: Tensor, path: Path) -> None:
    # By hand: safetensors' own errors do not tell a full disk, and its files are for one's eyes.
    with open(path, "wb") as file:
        file.write(_header(part))
        file.write(_content(part))


def _holds(path: Path, part: Tensor) -> bool:
    """Whether a block is there, as long as it should be, and the same in a sample."""
    header, content = _header(part), _content(part)
    start = secrets.randbelow(max(1, len(content) - SAMPLE))  # `random` is the training's own
    try:
        with open_plain(path) as file:
            whole = os.fstat(file.fileno()).st_size == len(header) + len(content)
            if not whole or file.read(len(header)) != header:
                return False
            file.seek(start, os.SEEK_CUR)
            return file.read(SAMPLE) == content[start : start + SAMPLE]
    except (OSError, ValueError):
        return False


def _header(part: Tensor) -> bytes:
    """What comes before the content in a safetensors file of one tensor."""
    about = {"dtype": _type(part.dtype), "shape": [*part.shape], "data_offsets": [0, part.nbytes]}
    text = json.dumps({"block": about}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


@cache
def _type(dtype: torch.dtype) -> str:
    """What safetensors calls it."""
    return json.loads(save({"block": torch.empty(0, dtype=dtype)})[8:])["block"]["dtype"]


def _content(part: Tensor) -> memoryview:
    return part.reshape(-1).view(torch.uint8).numpy().data


def _name(part: Tensor, digest: Any = None) -> str:
    digest = digest or xxhash.xxh3_128()
    digest.update(f"{part.dtype} {tuple(part.shape)}".encode())
    digest.update(_content(part))
    return digest.hexdigest()
