"""A driver's mark in the directory of its runs: a file that is touched as long as it lives."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from typing import Any

from composerl._files import read_json, write_json

__all__ = ["SILENCE", "Mark"]

#: Seconds after which a driver of another machine that gives no sign of life is taken for dead.
#: If it is not, its runs end by themselves: who goes on with them has taken their directories.
SILENCE = 60.0


class Mark:
    """The mark of this driver. Workers look for it, to see whether they share our storage.

    Attributes:
        name: tells this driver from all others.
        path: the file.
    """

    def __init__(self, place: Path) -> None:
        self.name = secrets.token_hex(8)
        self.path = place / f".driver-{self.name}"
        place.mkdir(parents=True, exist_ok=True)
        write_json(self.path, {"host": socket.gethostname(), "pid": os.getpid()})

    def touch(self) -> None:
        """Give a sign of life."""
        self.path.touch()

    def remove(self) -> None:
        """Say that this driver has ended."""
        self.path.unlink(missing_ok=True)

    def others(self) -> dict[str, dict[str, Any]]:
        """Other drivers that live in the same place, with their ``host`` and ``pid``.

        Marks of dead ones are removed.
        """
        found = {}
        for path in self.path.parent.glob(".driver-*"):
            if path != self.path:
                try:
                    about, silent = read_json(path), self._silent(path)
                except FileNotFoundError:  # it has ended just now
                    continue
                if _lives(about, silent):
                    found[path.name.removeprefix(".driver-")] = about
                else:
                    path.unlink(missing_ok=True)
        return found

    def _silent(self, path: Path) -> float:
        # Against our own mark: a file server's clock is not ours.
        self.touch()
        return self.path.stat().st_mtime - path.stat().st_mtime


def _lives(about: dict[str, Any], silent: float) -> bool:
    if about["host"] != socket.gethostname() or os.name == "nt":  # which has no harmless signal
        return silent < SILENCE
    try:
        os.kill(about["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return True
