"""Training state in files: one safetensors file each, written atomically, never pickled.

A *tree* is anything made of dicts, lists, tuples, numbers, strings, None and tensors, and what
TorchRL's states have besides: TensorDicts and their states, shapes, devices. Its tensors are the
file's tensors, the rest is JSON in the file's header, so that reading one back can do nothing but
make plain values. One file means that ``os.replace`` swaps old for new in one step: a crash at any
point leaves the previous checkpoint whole.
"""

import json
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from composerl._files import inside, open_plain, parse_json, replace_file, require_plain
from composerl.bookkeeping.blocks import LARGE, Blocks

__all__ = ["block_files", "blocks_of", "kind_of", "load_tree", "save_tree"]

#: What is written, and the newest that is read. Up to 2 the checksum was of the tensors alone.
FORMAT = 3


def save_tree(path: Path, kind: str, tree: Any, check: Callable[[], None] | None = None) -> None:
    """Write a tree so that ``path`` holds either all of it or what it held before."""
    blocks = blocks_of(path, check) if kind == "checkpoint" else None
    encoded, tensors, names = _encode(tree, blocks)
    if blocks is not None:
        blocks.flush()
    about = {"kind": kind, "format": FORMAT, "tree": encoded, "blocks": names}
    header = {"composerl": json.dumps(about | {"checksum": _checksum(about, tensors)})}
    # Not by save_file: its errors do not tell a full disk, and its files are for one's own eyes.
    replace_file(path, lambda file: file.write_bytes(save(tensors, header)), check)


def kind_of(path: Path) -> str:
    """What a file holds, ``checkpoint`` or ``policy``."""
    return _read(path, "composerl", lambda header, file: header["kind"])


def load_tree(path: Path, kind: str, part: str | None = None) -> Any:
    """Read a tree back; a file that is damaged or of another kind is refused in one sentence.

    With ``part`` only that entry of a dictionary: of large tensors no others are read.
    """

    def decode(header: dict[str, Any], file: Any) -> Any:
        if header["kind"] != kind:
            raise ValueError(f"{path} holds a {header['kind']}, expected a {kind}")
        # Copies: a file that is still mapped into memory cannot be removed on Windows.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        told, old = header.pop("checksum"), header["format"] < 3
        if told != (_old_checksum(tensors) if old else _checksum(header, tensors)):
            raise ValueError(f"{path} is damaged: its checksum does not match")
        tree = header["tree"] if part is None else dict(header["tree"]["!dict"])[part]
        return _decode(tree, tensors, blocks_of(path))

    return _read(path, kind, decode)


def _read(path: Path, kind: str, use: Callable[[dict[str, Any], Any], Any]) -> Any:
    open_plain(require_plain(path)).close()  # safetensors calls what it may not read not there
    try:
        with safe_open(path, framework="pt") as file:
            header = parse_json(
                (file.metadata() or {}).get("composerl", "null"), f"the header of {path}"
            )
            if not isinstance(header, dict) or "tree" not in header:
                raise ValueError(f"{path} was not written by composerl")
            if header["format"] > FORMAT:
                raise ValueError(
                    f"{path} has format {header['format']}, this version of composerl reads "
                    f"up to {FORMAT}: update composerl"
                )
            return use(header, file)
    except _DAMAGE as error:
        raise ValueError(f"{path} is damaged or not a {kind} file: {error}") from error


#: What reading a file can raise that is not what it says it is.
_DAMAGE = (SafetensorError, LookupError, TypeError, RuntimeError, AttributeError, OverflowError,
           MemoryError)  # fmt: skip


def block_files(path: Path) -> list[Path]:
    """The files beside a checkpoint that belong to it."""
    blocks = blocks_of(path)
    return _read(
        path, "checkpoint", lambda header, file: [*map(blocks.path, header.get("blocks", []))]
    )


def blocks_of(path: Path, check: Callable[[], None] | None = None) -> Blocks:
    """Where the large tensors of a checkpoint lie."""
    return Blocks(inside(path.parent, "blocks"), check)


def _checksum(header: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """Of all that is read: safetensors notices a file cut short, but not a flipped bit."""
    digest = xxhash.xxh3_128(json.dumps(header).encode())
    for name in sorted(tensors):
        tensor = tensors[name].cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():  # nothing cannot be viewed as bytes
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _old_checksum(tensors: dict[str, Tensor]) -> int:
    """Of the bytes of tensors alone, in files of earlier versions."""
    total = 0
    for name in sorted(tensors):
        tensor = tensors[name].cpu().contiguous()
        if tensor.numel():  # nothing cannot be viewed as bytes
            total = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, total)
    return total


def _encode(tree: Any, blocks: Blocks | None) -> tuple[Any, dict[str, Tensor], list[str]]:
    """JSON for a tree, its tensors, and the names of the blocks that large ones went to.

    What JSON cannot tell apart is an object of one key, ``{"!kind": ...}``.
    """
    tensors: dict[str, Tensor] = {}
    names: list[str] = []
    seen: dict[Any, dict[str, Any]] = {}
    used: set[int] = set()
    made: list[Any] = []

    def store(tensor: Tensor) -> dict[str, Any]:
        if tensor.dtype == torch.bool:
            # Memory that was never written has bytes besides 0 and 1, which a copy may change.
            tensor = tensor.view(torch.uint8) != 0
        if blocks is not None and tensor.nbytes >= LARGE:
            about = blocks.add(tensor)
            names.extend(about["names"])
            return {"!blocks": about}
        # safetensors refuses views: parts of a storage, or two of one.
        storage = tensor.untyped_storage()
        whole = tensor.is_contiguous() and storage.nbytes() == tensor.nbytes
        if not whole or storage.data_ptr() in used:
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        used.add(tensor.untyped_storage().data_ptr())
        name = f"t{len(tensors)}"
        tensors[name] = tensor
        return {"!tensor": name}

    def encode(node: Any) -> Any:
        if isinstance(node, Tensor):
            tensor = node.detach()
            # A network is in the loss and in the policy: store its tensors once.
            identity = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            if tensor.numel() == 0 or identity not in seen:
                seen[identity] = store(tensor)
            return seen[identity]
        if isinstance(node, dict):
            pairs = {"!dict": [[encode(x) for x in pair] for pair in node.items()]}
            about = getattr(node, "_metadata", {})
            # A TensorDict's batch size; not the versions of modules.
            if any("batch_size" in part for part in about.values()):
                return {"!state": [pairs, encode(dict(about))]}
            return pairs
        if isinstance(node, TensorDictBase):
            # Some make tensors for it: none may lie where `seen` knows another one.
            made.append(node.state_dict())
            return {"!tensordict": encode(made[-1])}
        if isinstance(node, torch.Size):
            return {"!size": list(node)}
        if isinstance(node, torch.device):
            return {"!device": str(node)}
        if isinstance(node, tuple):
            return {"!tuple": [encode(item) for item in node]}
        if isinstance(node, list):
            return [encode(item) for item in node]
        if isinstance(node, np.generic):
            return node.item()
        if node is None or isinstance(node, (bool, int, float, str)):
            return node
        raise TypeError(f"a checkpoint cannot hold a {type(node).__name__}: {node!r}")

    return encode(tree), tensors, names


def _decode(node: Any, tensors: dict[str, Tensor], blocks: Blocks) -> Any:
    def decode(node: Any) -> Any:
        if isinstance(node, list):
            return [decode(item) for item in node]
        if not isinstance(node, dict):
            return node
        tag, value = next(iter(node.items()), ("", None))
        if tag not in kinds:
            raise KeyError(f"unknown tag {tag!r}")
        return kinds[tag](value)

    def state(value: Any) -> OrderedDict:
        made = OrderedDict(decode(value[0]))
        made._metadata = decode(value[1])  # type: ignore[attr-defined]  # as torch does
        return made

    def tensordict(value: Any) -> TensorDict:
        content = decode(value)
        try:
            return TensorDict().load_state_dict(content, strict=False)
        except Exception as error:  # it believes what it is given
            raise TypeError(f"no TensorDict can be made of it: {error}") from error

    kinds: dict[str, Callable[[Any], Any]] = {
        "!tensor": tensors.__getitem__,
        "!blocks": blocks.read,
        "!tuple": lambda value: tuple(decode(value)),
        "!dict": lambda value: {decode(item[0]): decode(item[-1]) for item in value},
        "!state": state,
        "!tensordict": tensordict,
        "!size": torch.Size,
        "!device": torch.device,
    }
    return decode(node)
