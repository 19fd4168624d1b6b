"""Large tensors of a checkpoint, in files of their own that are written once."""

import hashlib
import re
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from composerl._files import replace_files

__all__ = ["LARGE", "Blocks"]

#: Bytes of the smallest tensor that is cut into blocks.
LARGE = 1 << 19


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
            if not path.exists():
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
        filled = 0
        for name in about["names"]:
            path = self.path(name)
            try:
                part = load_file(path)["block"]
            except (OSError, SafetensorError, KeyError) as error:
                raise ValueError(f"{path} is damaged: {error}") from error
            # Checkpoints of earlier versions have names by blake2b.
            if name != _name(part) and name != _name(part, hashlib.blake2b(digest_size=16)):
                raise ValueError(f"{path} is damaged: its content does not match its name")
            try:
                if tensor is None:
                    tensor = torch.empty(about["shape"], dtype=part.dtype)
                tensor[filled : filled + len(part)] = part
            except (RuntimeError, IndexError) as error:
                raise ValueError(f"{path} is no part of {about['shape']}: {error}") from error
            filled += len(part)
        if tensor is None or filled != len(tensor):
            raise ValueError(f"{self.directory} holds {filled} of {about['shape']} rows")
        return tensor

    def others(self, keep: Collection[Path]) -> list[Path]:
        """All blocks but these, and what an interrupted write has left."""
        return [path for path in self.directory.glob("*") if path not in keep]

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


def _save(part: Tensor, path: Path) -> None:
    save_file({"block": part.clone()}, path)  # a clone: safetensors refuses part of a storage


def _name(part: Tensor, digest: Any = None) -> str:
    digest = digest or xxhash.xxh3_128()
    digest.update(f"{part.dtype} {tuple(part.shape)}".encode())
    digest.update(part.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
