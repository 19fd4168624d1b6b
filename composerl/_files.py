"""Files that are there as a whole or not at all, and readers that say what is wrong with one."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["cache_dir", "read_json", "read_yaml", "remove", "replace_file", "replace_files",
           "write_json", "write_text"]  # fmt: skip


def cache_dir() -> Path:
    """``$COMPOSERL_CACHE``, else ``$XDG_CACHE_HOME/composerl``, else ``~/.cache/composerl``."""
    if chosen := os.environ.get("COMPOSERL_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "composerl"


def replace_file(
    path: Path, write: Callable[[Path], object], check: Callable[[], None] | None = None
) -> None:
    """Let ``write`` fill a file (or a directory) so that ``path`` holds all of it, or what it held.

    It is written aside, under the same name in a directory ``.*.tmp``, synced and renamed: neither
    a crash nor a power cut leaves half a file. Right before the renaming ``check`` may raise.
    """
    replace_files({path: write}, check)


def replace_files(
    writes: Mapping[Path, Callable[[Path], object]], check: Callable[[], None] | None = None
) -> None:
    """Do what :func:`replace_file` does for several files of one directory, and wait once."""
    check, parent = check or (lambda: None), next(iter(writes)).parent
    aside = Path(tempfile.mkdtemp(prefix=".", suffix=".tmp", dir=parent))
    try:
        for path, write in writes.items():
            write(aside / path.name)
        written = [aside / path.name for path in writes]
        if len(written) == 1:
            _sync(written[0])
        else:  # a disk syncs sixteen files in the time of one
            with ThreadPoolExecutor(16) as pool:
                list(pool.map(_sync, written))
        check()
        for path in writes:
            os.replace(aside / path.name, path)
    except Exception:
        check()  # what was written aside may be gone for the reason that it tells
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    with suppress(PermissionError):  # Windows opens no directory; a rename is safe there without
        directory = os.open(parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _sync(path: Path) -> None:
    if path.is_file():
        with open(path, "rb+") as file:  # Windows syncs no file that is read only
            os.fsync(file.fileno())


def remove(path: Path) -> None:
    """Remove a file or, with all that is in it, a directory."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def write_text(path: Path, text: str, check: Callable[[], None] | None = None) -> None:
    """Write text as UTF-8, whole or not at all."""
    replace_file(path, lambda file: file.write_bytes(text.encode()), check)


def write_json(path: Path, values: Any, check: Callable[[], None] | None = None) -> None:
    """Write JSON that a person can read, whole or not at all."""
    write_text(path, json.dumps(values, indent=2) + "\n", check)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; anything else is refused in a sentence."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(values).__name__}")
    return values


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; anything else is refused in a sentence."""
    import yaml  # here, because --help is to need no YAML

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold 'key: value' lines, got {type(values).__name__}")
    return values
