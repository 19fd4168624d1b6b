"""Ctrl-C that waits for a good moment. Imports no torch: who only watches runs uses it too."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["interrupts"]


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """A context in which the first SIGINT or SIGTERM only sets the event that it gives.

    The loop can then end at a point where its state is whole. A second signal acts at once.
    """
    requested = threading.Event()
    previous: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in previous.items():
            # None: it was not installed from Python, and cannot be from here either.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        previous.clear()

    def handle(*_: object) -> None:
        requested.set()
        restore()

    # Python delivers signals to the main thread only, and lets no other install handlers.
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, handle)
    try:
        yield requested
    finally:
        restore()
