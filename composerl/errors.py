"""How a command ends: a user's mistake in one sentence, a bug with its traceback."""

import errno
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

__all__ = ["guard"]


def guard(action: Callable[[], Any]) -> None:
    """Call ``action``; a user's mistake is told in a sentence on stderr, with a non-zero exit.

    Set ``COMPOSERL_TRACEBACK=1`` to see where it came from.
    """
    try:
        action()
        sys.stdout.flush()  # a closed pipe shows here, not in the interpreter's last breath
    except KeyboardInterrupt as stop:
        sys.stderr.write(f"{stop}\n" if str(stop) else "")
        sys.exit(130)
    except Exception as error:
        if os.environ.get("COMPOSERL_TRACEBACK") or not _meant_for_users(error):
            raise
        if isinstance(error, BrokenPipeError):
            # Python would try once more to write what is left, and complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stderr.write(f"error: {_sentence(error)}\n")
        sys.exit(2)


def _meant_for_users(error: Exception) -> bool:
    """Whether composerl itself raised the error, with a sentence; a bug keeps its traceback."""
    *_, (raised_in, _) = traceback.walk_tb(error.__traceback__)
    ours = raised_in.f_globals.get("__name__", "").startswith("composerl")
    return isinstance(error, OSError) or (
        ours and isinstance(error, (ValueError, RuntimeError, KeyError))
    )


def _sentence(error: Exception) -> str:
    if isinstance(error, BrokenPipeError):
        return "the reader of the output closed it before all was written"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"{error}; free some space, then --resume goes on from the last checkpoint"
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
