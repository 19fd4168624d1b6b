"""How a command ends: a user's mistake in one sentence, a bug with its traceback."""

import errno
import io
import os
import re
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["guard", "plain_errors", "printable", "shortened"]

#: What moves a terminal's cursor, colours it or turns its text around, what cannot be seen, halves
#: of characters, and accents upon accents upon accents.
_ACCENTS = "\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    f"\ud800-\udfff\U000e0000-\U000e007f]|(?<=[{_ACCENTS}]{{2}})[{_ACCENTS}]+"
)
#: Characters of a sentence: what is longer holds somebody's file.
_LONG = 2000
NARROW = 20  # columns that a terminal has at least


def printable(text: str) -> str:
    """Text of somebody's file as a terminal may see it: control characters by their code."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def shortened(text: str, most: int = _LONG) -> str:
    """Text without its middle, if it is longer than a person would read."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


def guard(action: Callable[[], Any]) -> None:
    """Call ``action``; a user's mistake is told in a sentence on stderr, with a non-zero exit.

    Set ``COMPOSERL_TRACEBACK=1`` to see where it came from.
    """
    _open_streams()
    try:
        _require_ground()
        with _told_warnings():
            action()
        sys.stdout.flush()  # a closed pipe shows here, not in the interpreter's last breath
    except KeyboardInterrupt as stop:
        sys.stderr.write(f"{printable(str(stop)) or 'stopped'}\n")
        sys.exit(130)
    except Exception as error:
        if os.environ.get("COMPOSERL_TRACEBACK"):
            raise
        if not _meant_for_users(error):
            sys.excepthook = partial(_from_recipe_on, sys.excepthook)
            raise
        if isinstance(error, BrokenPipeError):
            # Python would try once more to write what is left, and complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sentence = shortened(" ".join(_sentence(error).splitlines()))
        sys.stderr.write(f"error: {printable(sentence)}\n")
        sys.exit(2)


def _require_ground() -> None:
    """Refuse to start where torch cannot, which says so in a riddle, and where nothing fits."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ValueError("the working directory is gone: go to one that exists") from None
    if shutil.get_terminal_size().columns < NARROW:  # tyro's boxes would never end
        os.environ["COLUMNS"] = str(NARROW)


def _open_streams() -> None:
    """Let streams that were closed be empty: else the next files to be opened get their numbers.

    What is printed there is for nobody, as Python's own ``print`` has it. And what a terminal has
    no character for is no reason to end.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  it stays open
    if isinstance(sys.stdout, io.TextIOWrapper):  # ± is no character of every terminal
        sys.stdout.reconfigure(errors="backslashreplace")


@contextmanager
def _told_warnings() -> Iterator[None]:
    """A context in which warnings of ours are a sentence, without a place in our source."""
    plain, ours = warnings.formatwarning, str(Path(__file__).parent)

    def told(message: Any, category: Any, filename: str, *rest: Any, **options: Any) -> str:
        if issubclass(category, UserWarning) and filename.startswith(ours):
            return f"warning: {printable(' '.join(str(message).split()))}\n"
        return plain(message, category, filename, *rest, **options)

    warnings.formatwarning = told
    try:
        yield
    finally:
        warnings.formatwarning = plain


@contextmanager
def plain_errors() -> Iterator[None]:
    """A context in which tyro's boxes about a wrong command line are sentences as ours."""
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            yield
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise ValueError(_unboxed(said.getvalue())) from None
    sys.stderr.write(said.getvalue())


def _unboxed(box: str) -> str:
    """What a box, of lines or of dashes, says between its title and the rule after it."""
    lines = [line.strip(" │") for line in re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines()]
    said: list[str] = []
    for line in [line for line in lines if line][1:]:
        if set(line) <= {*"─-╰╯"}:
            if said:
                break
            continue
        said.append(line)
    sentence = " ".join(said).removeprefix("Error parsing ").partition(" Got errors:")[0]
    if missing := re.fullmatch(r"Missing from (.*?): (.*)", sentence):
        parts = _REQUIRED.findall(missing[2])
        needs = ", ".join(f"{name} ({about[0].lower()}{about[1:]})" for name, about in parts)
        return f"{missing[1]} needs {needs or missing[2]}"
    for pattern, words in _WORDS.items():
        sentence = re.sub(pattern, words, sentence)
    return sentence.rstrip(".") or "the command line is wrong"


#: tyro's line about a word or flag that was not given: its name, and what it is.
_REQUIRED = re.compile(
    r"(?:-\w \S+, )?(--\S+(?= \S+)|[A-Z_]+)(?:(?<=[a-z]) \S+)? (.*?)\.? \(required\)"
)

#: tyro's words, and ours.
_WORDS = {
    r"invalid literal for int\(\) with base 10: ": "expected a whole number, got ",
    r"could not convert string to float: ": "expected a number, got ",
    r"Missing value for argument '(\S+)'\. Expected 1 values": r"\1 needs a value",
    r"Missing value for argument '(\S+)'\. Expected (\d+) values": r"\1 needs \2 values",
    r"invalid choice ('.*') for argument '(\S+)'\. Expected one of \((.*)\)": (
        r"\2 must be one of \3, got \1"
    ),
    r"Could not find valid parse for arguments: \[(.*)\]": r"cannot be \1",
    r"Unrecognized options: (.*)": r"nothing takes the words \1",
    r"no type matching (.*) could be instantiated from \[(.*)\]": r"expected \1, got \2",
}


def _from_recipe_on(
    show: Callable[..., Any],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """``show`` a traceback without the way from the command line to a recipe, if it leads there."""
    inside = trace
    while inside and inside.tb_frame.f_code is not guard.__code__:
        inside = inside.tb_next
    while inside and _NOT_THEIRS.match(inside.tb_frame.f_globals.get("__name__", "")):
        inside = inside.tb_next
    # One that Python does not understand has no frame of its own, and says where it is.
    shown = inside or (None if isinstance(error, SyntaxError) else trace)
    show(kind, error.with_traceback(shown), shown)


_NOT_THEIRS = re.compile(r"(composerl|importlib|_frozen_importlib\w*)(\.|$)")


def _meant_for_users(error: Exception) -> bool:
    """Whether composerl itself raised the error, with a sentence; a bug keeps its traceback."""
    *_, (raised_in, _) = traceback.walk_tb(error.__traceback__)
    ours = raised_in.f_globals.get("__name__", "").startswith("composerl")
    return isinstance(error, (OSError, MemoryError)) or (
        (ours and isinstance(error, (ValueError, RuntimeError, KeyError))) or _no_memory(error)
    )


def _no_memory(error: Exception) -> bool:
    """Whether torch found no memory, which it tells by a RuntimeError."""
    words = ("not enough memory", "can't allocate memory", "out of memory")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def _sentence(error: Exception) -> str:
    if isinstance(error, BrokenPipeError):
        return "the reader of the output closed it before all was written"
    if isinstance(error, MemoryError) or _no_memory(error):
        return f"there is not enough memory: {str(error).partition(' Error code')[0]}".rstrip(": ")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        frames = traceback.walk_tb(error.__traceback__)
        trains = any(frame.f_globals.get("__name__") == "composerl.run" for frame, _ in frames)
        then = ", then --resume goes on from the last checkpoint" if trains else ""
        return f"{error}; free some space{then}"
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
