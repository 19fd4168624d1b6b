"""Files that are there as a whole or not at all, and readers that say what is wrong with one."""

import errno
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

__all__ = ["below", "cache_dir", "inside", "open_plain", "parse_json", "read_json", "read_yaml",
           "remove_asides", "replace_file", "replace_files", "require_plain", "write_json",
           "write_text"]  # fmt: skip

#: No link, no waiting for the other end of a pipe. Windows has neither, and opens text by default.
_PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_MODES = {"rb": os.O_RDONLY, "ab+": os.O_RDWR | os.O_APPEND | os.O_CREAT}
JSON_SIZE = 1 << 26  # bytes of a file of JSON or YAML
YAML_SIZE = 1 << 18  # characters of YAML, which is read slowly; those that aliases repeat count
DEPTH = 50
DIGITS = 40  # the states of random generators have 39
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ASIDE = re.compile(r"\.[a-z0-9_]{8}\.tmp")  # as tempfile names what is written aside


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
    check, first = check or (lambda: None), next(iter(writes))
    parent = first.parent
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
    except Exception as error:
        check()  # what was written aside may be gone for the reason that it tells
        if isinstance(error, OSError) and _nameless(error):
            raise OSError(error.errno, error.strerror, str(first)) from error
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    with suppress(PermissionError):  # Windows opens no directory; a rename is safe there without
        directory = os.open(parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _nameless(error: OSError) -> bool:
    """Whether it names no file, or one that was written aside and says nobody anything."""
    return error.errno is not None and (error.errno in _FULL or error.filename is None)


def _sync(path: Path) -> None:
    if path.is_file():
        with open(path, "rb+") as file:  # Windows syncs no file that is read only
            os.fsync(file.fileno())


def remove_asides(directory: Path, seconds: float = 0) -> None:
    """Remove what was written aside in a directory and never renamed, if it is so old."""
    if directory.is_symlink() or not directory.is_dir():
        return
    for aside in directory.iterdir():
        # Who still adds to it finds it gone, or leaves a rest: neither is ours to complain about.
        with suppress(OSError):
            about = aside.lstat()
            ours = _ASIDE.fullmatch(aside.name) and stat.S_ISDIR(about.st_mode)
            if ours and about.st_mtime <= time.time() - seconds:
                shutil.rmtree(aside)


def inside(directory: Path, *parts: str) -> Path:
    """A place inside a run directory; a link there, or on the way, is refused.

    It could lead anywhere: what is then written, removed or published is somebody else's.
    """
    path = directory
    for part in parts:
        path = path / part
        if path.is_symlink():
            raise ValueError(
                f"{path} is a link: nothing inside a run directory is used through links"
            )
    return path


def below(directory: Path, *, skip: str = "") -> Iterator[Path]:
    """All files, links and pipes in a directory and those in it, but for one of the name ``skip``.

    Links are not followed; what is deeper than anybody's directories are is a ValueError.
    """
    waiting = [(directory, 0)]
    while waiting:
        place, depth = waiting.pop()
        if depth > DEPTH:
            raise ValueError(f"{directory} has directories more than {DEPTH} deep")
        with suppress(FileNotFoundError, PermissionError), os.scandir(place) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    yield place / entry.name
                elif depth or entry.name != skip:
                    waiting.append((place / entry.name, depth + 1))


def require_plain(path: Path) -> Path:
    """The path of a file that is one: no link, directory or pipe."""
    inside(path.parent, path.name)
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file")
    if not path.is_file():
        raise ValueError(f"{path} is no plain file")
    return path


def open_plain(path: Path, mode: str = "rb") -> IO[bytes]:
    """Open a file, ``rb`` or ``ab+``, that :func:`require_plain` takes, or make a new one."""
    inside(path.parent, path.name)
    descriptor = os.open(path, _MODES[mode] | _PLAIN, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{path} is no plain file")
        return open(descriptor, mode)
    except BaseException:
        os.close(descriptor)
        raise


def write_text(path: Path, text: str, check: Callable[[], None] | None = None) -> None:
    """Write text as UTF-8, whole or not at all."""
    replace_file(path, lambda file: file.write_bytes(text.encode()), check)


def write_json(path: Path, values: Any, check: Callable[[], None] | None = None) -> None:
    """Write JSON that a person can read, whole or not at all."""
    write_text(path, json.dumps(values, indent=2) + "\n", check)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; anything else is refused in a sentence."""
    values = parse_json(_text(path), str(path))
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(values).__name__}")
    return values


def parse_json(text: str | bytes, where: str) -> Any:
    """What JSON of somebody else says; ``where`` it is from begins the sentence that refuses it.

    Numbers that no float holds, nesting that no recursion follows and halves of characters that
    cannot be printed are no JSON to us.
    """
    try:
        values = json.loads(text, parse_int=_integer)
        if b"\\ud" in (text if isinstance(text, bytes) else text.encode()).lower():
            json.dumps(values, ensure_ascii=False).encode()  # half of a pair fails here
    except RecursionError:
        raise ValueError(f"{where} is not valid JSON: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{where} is not valid JSON: {error}") from error
    return values


def _integer(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def read_yaml(path: Path, links: bool = False) -> dict[str, Any]:
    """The mapping in a YAML file; anything else is refused in a sentence.

    Only who names the file may name it by a link.
    """
    import yaml  # here, because --help is to need no YAML

    text = _text(path.resolve() if links else path)
    try:
        _measure(yaml.parse(text, yaml.SafeLoader))
        _check_nodes(yaml.compose(text, yaml.SafeLoader))
        values = yaml.safe_load(text)
    except Exception as error:  # its constructors raise a dozen kinds: for dates, numbers, flags
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold 'key: value' lines, got {type(values).__name__}")
    if wrong := [key for key in values if not isinstance(key, str)]:
        raise ValueError(f"{path}: a key must be text, got {wrong[0]!r}")
    return values


def _measure(events: Iterable[Any]) -> None:
    """Refuse YAML that is too deep or, with what its aliases repeat, too long."""
    anchors: dict[str, int] = {}
    sizes, names = [0], [""]  # of the collections that are open
    for event in events:
        kind = type(event).__name__
        if kind in ("MappingStartEvent", "SequenceStartEvent"):
            sizes.append(1)
            names.append(event.anchor)
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            size = sizes.pop()
            anchors[names.pop()] = size
            sizes[-1] += size
        elif kind == "ScalarEvent":
            anchors[event.anchor] = len(event.value) + 1
            sizes[-1] += len(event.value) + 1
        elif kind == "AliasEvent":
            if event.anchor not in anchors:
                raise ValueError(f"*{event.anchor} repeats what it is part of, or nothing")
            sizes[-1] += anchors[event.anchor]
        if len(sizes) > DEPTH or sizes[-1] > YAML_SIZE:
            raise ValueError(f"nested more than {DEPTH} deep, or more than {YAML_SIZE} characters")


def _check_nodes(root: Any) -> None:
    """Refuse a key that is there twice, of which YAML would take the last, and endless numbers."""
    seen: set[int] = set()  # what has aliases is reached several times
    waiting = [root]
    while waiting:
        node = waiting.pop()
        content = getattr(node, "value", None)
        if isinstance(content, str) and node.tag.endswith(":int") and len(content) > DIGITS:
            raise ValueError(f"a whole number of more than {DIGITS} digits: {content[:10]}...")
        if id(node) in seen or not isinstance(content, list):
            continue
        seen.add(id(node))
        keys: set[tuple[str, str]] = set()
        for item in content:
            key = item[0] if isinstance(item, tuple) else None  # of a mapping
            if key is not None and isinstance(key.value, str):
                if (key.tag, key.value) in keys:
                    raise ValueError(f"the key {key.value!r} is there twice")
                keys.add((key.tag, key.value))
            waiting += item if isinstance(item, tuple) else [item]


def _text(path: Path) -> str:
    try:
        with open_plain(path) as file:
            content = file.read(JSON_SIZE + 1)
    except OSError as error:  # reading, unlike opening, does not name the file
        raise type(error)(error.errno, error.strerror, str(path)) from error
    if len(content) > JSON_SIZE:
        raise ValueError(f"{path} has more than {JSON_SIZE} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not valid text: {error}") from error
