"""Files that hold training state: one safetensors file each, written atomically, never pickled.

A *tree* is anything made of dicts, lists, tuples, numbers, strings, None and tensors. Its tensors
are the file's tensors, the rest is JSON in the file's header, so that reading one back can do
nothing but make plain values. One file means that ``os.replace`` swaps old for new in one step:
a crash at any point leaves the previous checkpoint whole.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from composerl.console import say

__all__ = [
    "checkpoint_path",
    "checkpoints",
    "kind_of",
    "load_newest",
    "load_tree",
    "save_tree",
]

FORMAT = 1


def save_tree(path: Path, kind: str, tree: Any) -> None:
    """Write a tree so that ``path`` holds either all of it or what it held before."""
    tensors: dict[str, Tensor] = {}
    body = _encode(tree, tensors, {}, set())
    about = {"kind": kind, "format": FORMAT, "checksum": _checksum(tensors), "tree": body}
    header = {"composerl": json.dumps(about)}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        save_file(tensors, temporary, metadata=header)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except SafetensorError as error:
        raise OSError(f"{path} could not be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def kind_of(path: Path) -> str:
    """What a file holds, ``checkpoint`` or ``policy``."""
    return _read(path, "composerl", lambda header, file: header["kind"])


def load_tree(path: Path, kind: str) -> Any:
    """Read a tree back; a file that is damaged or of another kind is refused in one sentence."""

    def decode(header: dict[str, Any], file: Any) -> Any:
        if header["kind"] != kind:
            raise ValueError(f"{path} holds a {header['kind']}, expected a {kind}")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if _checksum(tensors) != header["checksum"]:
            raise ValueError(f"{path} is damaged: its checksum does not match")
        return _decode(header["tree"], tensors)

    return _read(path, kind, decode)


def _read(path: Path, kind: str, use: Callable[[dict[str, Any], Any], Any]) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("composerl", "null"))
            if not isinstance(header, dict) or "tree" not in header:
                raise ValueError(f"{path} was not written by composerl")
            if header["format"] > FORMAT:
                raise ValueError(
                    f"{path} has format {header['format']}, this version of composerl reads "
                    f"up to {FORMAT}: update composerl"
                )
            return use(header, file)
    except (SafetensorError, json.JSONDecodeError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged or not a {kind} file: {error}") from error


def checkpoints(run: Path) -> list[Path]:
    """The resume points of a run, newest first."""
    return sorted((run / "checkpoints").glob("step-*.safetensors"), reverse=True)


def checkpoint_path(run: Path, step: int) -> Path:
    """Where the resume point of a step belongs; names sort by step."""
    return run / "checkpoints" / f"step-{step:012d}.safetensors"


def load_newest(run: Path) -> dict[str, Any] | None:
    """The newest resume point of a run that can be read; None if it has none."""
    found = checkpoints(run)
    for path in found:
        try:
            return load_tree(path, "checkpoint")
        except ValueError as error:
            if path == found[-1]:
                raise ValueError(f"{error}; to start over delete {path.parent}") from error
            # Resuming is exact, so an older checkpoint costs time and nothing else.
            say(f"{error}; going on from the checkpoint before it")
    return None


def sync_directory(directory: Path) -> None:
    """Make renames in a directory survive a power cut."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _checksum(tensors: dict[str, Tensor]) -> int:
    """CRC of all bytes: safetensors notices a file cut short, but not a flipped bit."""
    total = 0
    for name in sorted(tensors):
        tensor = tensors[name].cpu().contiguous()
        if not tensor.numel():  # it cannot be viewed as bytes
            continue
        total = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, total)
    return total


def _encode(node: Any, tensors: dict[str, Tensor], seen: dict[Any, str], used: set[int]) -> Any:
    """JSON for a node; what JSON cannot tell apart is an object of one key, ``{"!kind": ...}``."""
    if isinstance(node, Tensor):
        tensor = node.detach()
        # A network is in the loss and in the policy: store its tensors once.
        identity = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() == 0 or identity not in seen:
            seen[identity] = name = f"t{len(tensors)}"
            # safetensors refuses views: parts of a storage, or two of one.
            storage = tensor.untyped_storage()
            whole = tensor.is_contiguous() and storage.nbytes() == tensor.nbytes
            if not whole or storage.data_ptr() in used:
                tensor = tensor.clone(memory_format=torch.contiguous_format)
            used.add(tensor.untyped_storage().data_ptr())
            tensors[name] = tensor
        return {"!tensor": seen[identity]}
    if isinstance(node, dict):
        pairs = node.items()
        return {"!dict": [[_encode(x, tensors, seen, used) for x in pair] for pair in pairs]}
    if isinstance(node, tuple):
        return {"!tuple": [_encode(item, tensors, seen, used) for item in node]}
    if isinstance(node, list):
        return [_encode(item, tensors, seen, used) for item in node]
    if isinstance(node, np.generic):
        return node.item()
    if node is None or isinstance(node, (bool, int, float, str)):
        return node
    raise TypeError(f"a checkpoint cannot hold a {type(node).__name__}: {node!r}")


def _decode(node: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(node, list):
        return [_decode(item, tensors) for item in node]
    if isinstance(node, dict):
        tag, value = next(iter(node.items()), ("", None))
        if tag == "!tensor":
            return tensors[value]
        if tag == "!tuple":
            return tuple(_decode(item, tensors) for item in value)
        if tag == "!dict":
            return {_decode(item[0], tensors): _decode(item[-1], tensors) for item in value}
        raise KeyError(f"unknown tag {tag!r}")
    return node
