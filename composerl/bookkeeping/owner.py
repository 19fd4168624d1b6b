"""Who may write into a run directory: one process, on one of all machines that see it.

A lock tells apart the processes of one machine. It says nothing about another machine, nor does it
stop a worker that was paused or cut off, taken for dead and replaced, when it comes back. So the
directory also names its owner, by a token, and what is written is published in this order:

1. written aside, in a directory ``.*.tmp``; 2. the token is read; 3. renamed to its place.

A new owner sets its token, removes every ``.*.tmp``, and only then reads what there is. A worker
that came to 3 with an old token had its file aside before the new one was set. Either it renames
before the new owner looks, and that one goes on from there, or it finds nothing left to rename.
Whoever may yet refuse to go on has read it once before, under the lock: until a token is set
nothing is written, and a refused command leaves the directory as it was.
Rows of metrics have no such order: a resumed run copies them to a file of its own, so that an
earlier owner goes on with a file that nobody reads. What is removed was listed before the token
was read, so it is older than the new owner; only the end of a finished run that is made longer
(summary.json, policy.safetensors, manifest.json) has a name that comes again, and could be missing
once.
"""

import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout

from composerl._files import inside, read_json, remove_asides, write_json
from composerl._schema import typed
from composerl.config.place import MARKS

__all__ = ["NODE", "Owner", "grant", "owner_of", "withdraw"]

_LOCK, _OWNER = MARKS
_ABOUT = {"token": str, "host": str, "pid": int, "node": str, "before": dict}

#: The variable by which :func:`grant` speaks to the process that is to be the owner.
_GRANT = "COMPOSERL_GRANT"
#: The variable with a cluster's name for this machine, where there is one.
NODE = "COMPOSERL_NODE"


class Owner:
    """This process as the only one here that may :meth:`take` a directory, which is made."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._taken, self._released = False, False
        self._new_lock = not (directory / _LOCK).exists()
        self._lock = _acquire(directory)
        token, _, where = os.environ.get(_GRANT, "").partition(" ")
        self._granted = where == str(directory.resolve())
        self._token = token if self._granted else secrets.token_hex(8)

    def take(self) -> None:
        """Own the directory from here on, whoever owned it; nothing was written before."""
        if not self._granted:
            write_json(self.directory / _OWNER, {"token": self._token})
        self._taken = True
        _clean(self.directory)
        me = {"token": self._token, "host": socket.gethostname(), "pid": os.getpid()}
        me |= {"node": os.environ[NODE]} if NODE in os.environ else {}
        write_json(self.directory / _OWNER, me, self.check)

    def check(self) -> None:
        """Refuse to write into a directory that somebody else owns by now."""
        now = owner_of(self.directory)
        if now.get("token") != self._token:
            by = f" by {now['host']}, process {now['pid']}" if "host" in now else ""
            raise RuntimeError(
                f"{self.directory} was taken over{by}: this process ends and writes nothing more"
            )

    def release(self) -> None:
        """Let others have it, once; what was taken over is not ours to release."""
        if self._released:  # the lock and what is written aside may be another's by now
            return
        self._released = True
        if not self._taken:
            if self._new_lock:
                _forget_lock(self.directory)
            self._lock.release()
        elif owner_of(self.directory).get("token") == self._token:
            _clean(self.directory)
            self._lock.release()


def owner_of(directory: Path) -> dict[str, Any]:
    """``token``, ``host``, ``pid``, ``node`` of the last owner, as far as there are any.

    Right after :func:`grant` there is the token alone.
    """
    path = directory / _OWNER
    try:
        return typed(read_json(path), _ABOUT, str(path))
    except FileNotFoundError:
        return {}


def grant(directory: Path) -> tuple[str, dict[str, str]]:
    """Take a directory, which is made, from whoever owns it, for a process yet to be started.

    Returns: its token, and the variable for that process's environment.
    """
    token = secrets.token_hex(8)
    directory.mkdir(parents=True, exist_ok=True)
    try:
        before = owner_of(directory)
    except ValueError:  # damaged: there is nothing to give back
        before = {}
    before = before.get("before", before)  # of a process that was granted it and never took it
    write_json(directory / _OWNER, {"token": token, "before": before})
    # Whoever holds the lock now holds that of a file without a name.
    if (directory / _LOCK).exists():
        _forget_lock(directory)
        (directory / _LOCK).touch()
    return token, {_GRANT: f"{token} {directory.resolve()}"}


def withdraw(directory: Path, token: str) -> None:
    """Give a directory back, if the process that was granted it has ended and never took it."""
    now = owner_of(directory)
    if now.get("token") == token and "before" in now:
        if now["before"]:
            write_json(directory / _OWNER, now["before"])
        else:
            (directory / _OWNER).unlink()


def _forget_lock(directory: Path) -> None:
    # Windows refuses, and is right: all who can be meant there are on this machine, where the lock
    # is enough.
    with suppress(FileNotFoundError, PermissionError):
        (directory / _LOCK).unlink()


def _acquire(directory: Path) -> BaseFileLock:
    path = inside(directory, _LOCK)
    if path.exists() and (not path.is_file() or path.stat().st_size):  # it may be emptied
        raise ValueError(f"{path} is not the empty file by which a run directory is locked")
    # Not of one thread: whichever closes the run releases it.
    lock = FileLock(path, timeout=0, thread_local=False)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise ValueError(f"another process is training in {directory}") from None
    except OSError as error:
        raise OSError(f"--out {directory} cannot be written: {error}") from error
    return lock


def _clean(directory: Path) -> None:
    """Remove what a killed owner, or one cut off, has written aside in the places of a run."""
    home = directory.resolve()  # the directory itself may be reached by a link
    for place in (".", "checkpoints", "checkpoints/blocks", "images"):
        if not (home / place).parent.is_symlink():  # beyond a link nothing is ours
            remove_asides(home / place)
