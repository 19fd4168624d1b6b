"""Files that are there as a whole or not at all, and readers that say what is wrong with one."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["read_json", "read_yaml", "remove", "replace_file", "write_json", "write_text"]


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a file (or a directory) so that ``path`` holds all of it, or what it held.

    It is written aside, under the same name in a directory ``.*.tmp``, synced and renamed: neither
    a crash nor a power cut leaves half a file.
    """
    aside = Path(tempfile.mkdtemp(prefix=".", suffix=".tmp", dir=path.parent))
    try:
        write(aside / path.name)
        if (aside / path.name).is_file():
            with open(aside / path.name, "rb+") as file:  # Windows syncs no file that is read only
                os.fsync(file.fileno())
        os.replace(aside / path.name, path)
    finally:
        shutil.rmtree(aside)
    with suppress(PermissionError):  # Windows opens no directory; a rename is safe there without
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def remove(path: Path) -> None:
    """Remove a file or, with all that is in it, a directory."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8, whole or not at all."""
    replace_file(path, lambda file: file.write_bytes(text.encode()))


def write_json(path: Path, values: Any) -> None:
    """Write JSON that a person can read, whole or not at all."""
    write_text(path, json.dumps(values, indent=2) + "\n")


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
