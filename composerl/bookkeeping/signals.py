"""How a run ends before its end: by Ctrl-C, or as only a part of it is asked for. No torch."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["Left", "interrupts", "leaving_after", "must_leave"]

_LAST: ContextVar[int | None] = ContextVar("last", default=None)


class Left(Exception):
    """A run has come to the step after which it was to be left; its checkpoint is written."""


@contextmanager
def leaving_after(step: int) -> Iterator[None]:
    """A context in which a run saves a checkpoint at this step and raises :class:`Left`."""
    before = _LAST.set(step)
    try:
        yield
    finally:
        _LAST.reset(before)


def must_leave(step: int) -> bool:
    """Whether a run that has come to this step is to be left."""
    last = _LAST.get()
    return last is not None and step >= last


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
