"""A command in a child of this process: how it ended, and what it did to files."""

from __future__ import annotations

import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composerl.cli import main

SECONDS = 60.0  # after which a child hangs
MEMORY = 3 << 30  # bytes that a child may have, where this process has half a gigabyte
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Audit events by which files are changed: which of their arguments are paths, and which are the
#: directories that these start from.
_CHANGES = {"os.rename": ((0, 2), (1, 3)), "os.remove": ((0, 1),), "os.mkdir": ((0, 2),),
            "os.rmdir": ((0, 1),), "os.truncate": ((0, None),), "os.symlink": ((1, 2),),
            "os.link": ((1, 3),), "os.chmod": ((0, 2),), "os.utime": ((0, 3),)}  # fmt: skip
#: What executes something of somebody's file.
_EXECUTES = ("pickle.find_class", "os.system", "os.exec")
#: A command that runs start themselves, to tell the commit.
_OURS = ("git", "rev-parse")
#: What must not reach a terminal; gymnasium colours its warnings.
_TERMINAL, _COLOUR = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]"), re.compile(r"\x1b\[[0-9]*m")


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    code: int
    out: str
    err: str
    memory: int
    """Bytes that it had at most."""
    touched: tuple[str, ...] = ()
    """What it did outside of where it may do something, by the words of its audit."""

    @property
    def why(self) -> str:
        """What it said last, and did."""
        return "\n".join([*self.touched, self.err[-2000:]])

    @property
    def how(self) -> str:
        """``fine``, ``told`` (in a sentence), or what is wrong."""
        if self.touched:
            executed = self.touched[0].startswith((*_EXECUTES, "import", "subprocess"))
            return "executed" if executed else "outside"
        if self.code == -signal.SIGALRM:
            return "hang"
        if (
            "Traceback" in self.err
            or self.code < 0
            or _TERMINAL.search(_COLOUR.sub("", self.out + self.err))
        ):
            return "traceback"
        if self.memory > MEMORY:
            return "memory"
        if self.code == 0:
            return "fine"
        last = self.err.rstrip("\n").rpartition("\n")[2]
        return "told" if last.startswith("error: ") or self.code in (1, 3) else "traceback"


class Watch:
    """An audit of what this process does to files: what is outside of ``places`` is noted.

    The ``kill_at``-th change inside of ``run`` never happens: there the process kills itself.
    """

    def __init__(self, places: Sequence[Path], run: Path, kill_at: int | None = None) -> None:
        self.places = tuple(f"{os.path.realpath(place)}/" for place in places)
        self.run, self.kill_at = f"{os.path.realpath(run)}/", kill_at
        self.changes = 0
        self.touched: list[str] = []

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """What Python calls."""
        if event in _EXECUTES or (event == "import" and str(args[0]).startswith("evil")):
            self.touched.append(f"{event} {args[0]}")
        elif event == "subprocess.Popen" and tuple(args[1][:2]) != _OURS:
            self.touched.append(f"{event} {args[1]}")
        elif event == "open" and isinstance(args[0], (str, bytes)) and args[2] & _WRITES:
            self._changed(event, args[0])
        elif event in _CHANGES:
            for path, start in _CHANGES[event]:
                if not isinstance(args[path], int):
                    self._changed(event, args[path], -1 if start is None else args[start])

    def _changed(self, event: str, path: Any, start: int = -1) -> None:
        begin = os.getcwd() if start == -1 else os.readlink(f"/proc/self/fd/{start}")
        folder, name = os.path.split(os.path.normpath(os.path.join(begin, os.fsdecode(path))))
        place = os.path.join(os.path.realpath(folder), name)
        if place.startswith(self.run):
            self.changes += 1
            if self.changes == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        if not f"{place}/".startswith((*self.places, "/dev/null/", "/dev/shm/")):
            self.touched.append(f"{event} {place}")


def forked(
    action: Callable[[], Any],
    watch: Watch | None = None,
    *,
    kill_after: float | None = None,
    file_size: int | None = None,
    seconds: float | None = None,
) -> tuple[Ended, int]:
    """Call ``action`` in a child; gives how it ended, and the changes that the watch counted.

    Args:
        action: what the child does.
        watch: audits it.
        kill_after: seconds after which it is killed.
        file_size: bytes that a file may have: the next one is the end of its disk.
        seconds: after which it hangs; ``SECONDS`` by default.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        back, to = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os.close(back)
            _be_a_child(action, watch, (out.fileno(), err.fileno()), to, file_size)
        os.close(to)
        code, memory = _wait(pid, kill_after, SECONDS if seconds is None else seconds)
        with open(back, "rb") as pipe:
            told = json.loads(pipe.read() or b"[[], 0]")
        texts = [_content(file) for file in (out, err)]
    return Ended(code, *texts, memory, tuple(told[0])), told[1]


def _be_a_child(
    action: Callable[[], Any],
    watch: Watch | None,
    streams: tuple[int, int],
    to: int,
    size: int | None,
) -> None:
    code = 0
    try:
        os.dup2(streams[0], 1)
        os.dup2(streams[1], 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        # As in a process of its own, whatever has replaced them in the parent.
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        if size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        if watch is not None:
            sys.addaudithook(watch)
        try:
            action()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 70
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        if watch is not None:
            os.write(to, json.dumps([watch.touched[:5], watch.changes]).encode())
        os._exit(code)  # nothing of the parent's is flushed or cleaned up twice


def _wait(pid: int, kill_after: float | None, seconds: float) -> tuple[int, int]:
    """The exit code, negative for a signal (that of an alarm for a hang), and the memory."""
    handle = os.pidfd_open(pid)
    ended, _, _ = select.select([handle], [], [], seconds if kill_after is None else kill_after)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    os.close(handle)
    _, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return (-signal.SIGALRM if not ended and kill_after is None else code), usage.ru_maxrss * 1024


def _content(file: Any) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "backslashreplace")


def command(
    words: Sequence[Any], place: Path, run: Path, *, stdin: str = "", alone: bool = False
) -> Ended:
    """A command line of composerl, typed in ``place``; ``alone`` in a new process."""
    line = [str(word) for word in words]
    if alone:
        return _process(line, place, stdin)

    def action() -> None:
        os.chdir(place)
        if stdin:
            with tempfile.TemporaryFile("w+") as file:
                file.write(stdin)
                file.seek(0)
                os.dup2(file.fileno(), 0)
        main(line)

    return forked(action, Watch(allowed(place), run))[0]


def allowed(place: Path) -> list[Path]:
    """Where a command may write: the place of the try, caches and temporary files."""
    return [place, Path(os.environ["COMPOSERL_CACHE"]), Path(os.environ["TMPDIR"])]


def _process(line: list[str], place: Path, stdin: str) -> Ended:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "composerl", *line], cwd=place, input=stdin.encode(),
            capture_output=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Ended(-signal.SIGALRM, "", "", 0)
    texts = [text.decode("utf-8", "backslashreplace") for text in (done.stdout, done.stderr)]
    return Ended(done.returncode, *texts, 0)
