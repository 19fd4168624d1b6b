"""manifest.json: what a finished run consists of, as a chain of hashes that anybody can check.

Each link is the SHA-256 of the link before it and of a file's name, length and SHA-256; the first
is that of what the run was made with. The last, ``head``, so stands for every byte of the run: who
publishes it with a number has said what the number comes from.
"""

import hashlib
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from composerl._files import below, inside, open_plain, read_json, write_json
from composerl._schema import typed
from composerl.bookkeeping.rundir import versions

__all__ = ["MANIFEST", "contents", "digest", "input_file", "made_here", "read_manifest",
           "write_manifest"]  # fmt: skip

MANIFEST = "manifest.json"
FORMAT = 1
#: Fields of configurations that may name a file to learn from.
INPUTS = ("dataset", "expert")
_OUTSIDE = "wandb"  # which goes on writing into it
_LOCK = ".lock"  # says nothing, if it is empty
#: What numbers do not depend on.
_ASIDE = ("safetensors", "tyro", "wandb")


def write_manifest(
    directory: Path, config: dict[str, Any], check: Callable[[], None] | None = None
) -> None:
    """Write it, beside all other files of a run that has ended."""
    made = made_here(config.get("device")) | {"inputs": _inputs(config)}
    plain = {name: path for name, path in contents(directory).items() if _plain(path)}
    files = {n: {"bytes": p.stat().st_size, "sha256": digest(p)} for n, p in plain.items()}
    write_json(directory / MANIFEST, _manifest(made, files), check)


def read_manifest(directory: Path) -> dict[str, Any]:
    """What the file says; one that is not, byte for byte, as it was written is a ValueError."""
    path = inside(directory, MANIFEST)
    values = read_json(path)
    made = typed(values.get("made_with"), {"versions": dict, "inputs": dict}, f"{path}: made_with")
    files = typed(values.get("files"), {}, f"{path}: files")
    for name, entry in files.items():
        typed(entry, {"bytes": int, "sha256": str}, f"{path}: {name}")
    try:
        text = json.dumps(_manifest(made, files), indent=2) + "\n"
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None
    with open_plain(path) as file:
        if file.read() != text.encode():
            raise ValueError(f"{path} is not as it was written: its own hashes do not fit")
    return values


def _manifest(made: dict[str, Any], files: dict[str, Any]) -> dict[str, Any]:
    link = _sha256(json.dumps(made))
    chained = {}
    for name, entry in files.items():
        facts = {key: entry.get(key) for key in ("bytes", "sha256")}
        link = _sha256(json.dumps([link, name, *facts.values()]))
        chained[name] = facts | {"link": link}
    return {"format": FORMAT, "made_with": made, "files": chained, "head": link}


def contents(directory: Path) -> dict[str, Path]:
    """All that lies in a run directory and belongs to the run, by name; links are not followed."""
    found = sorted(below(directory, skip=_OUTSIDE))
    named = {path.relative_to(directory).as_posix(): path for path in found}
    empty = _LOCK in named and _plain(named[_LOCK]) and not named[_LOCK].stat().st_size
    return {n: p for n, p in named.items() if n != MANIFEST and not (n == _LOCK and empty)}


def _plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def digest(path: Path) -> str:
    """SHA-256 of a file, which is no link."""
    made = hashlib.sha256()
    with open_plain(path) as file:
        while part := file.read(1 << 20):
            made.update(part)
    return made.hexdigest()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def made_here(device: Any) -> dict[str, Any]:
    """What the numbers of a run depend on besides its settings, as it is here."""
    known = {key: value for key, value in versions().items() if key not in _ASIDE}
    python = platform.python_version()
    return {"versions": known, "python": python, "cpu": _cpu(), "device": str(device)}


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if "model name" in line]
    except OSError:  # only Linux has it
        names = []
    return (names or [platform.processor() or platform.machine()])[0]


def _inputs(config: dict[str, Any]) -> dict[str, str]:
    files = {str(config[key]): input_file(config[key]) for key in INPUTS if config.get(key)}
    return {named: digest(file) for named, file in files.items() if file is not None}


def input_file(named: Any) -> Path | None:
    """The file that a configuration means by ``named``, if there is one; else it is a behaviour."""
    try:
        path = Path(os.path.expanduser(str(named)))
        path = path / "data" / "main_data.hdf5" if path.is_dir() else path  # Minari's
        return path.resolve() if path.is_file() else None
    except (OSError, ValueError):  # a name that no file can have
        return None
