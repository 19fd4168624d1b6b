"""Ctrl-C and SIGTERM at a step's end instead of in its middle."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["Interrupt"]


class Interrupt:
    """Context in which the first SIGINT or SIGTERM only sets ``requested``.

    The loop can then end at a point where its state is whole. A second signal acts at once.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        # Python delivers signals to the main thread only, and lets no other install handlers.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            # None: it was not installed from Python, and cannot be from here either.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous = {}
