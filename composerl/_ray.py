"""Ray, where it is asked for: imported late, connected, or refused in a sentence."""

import logging
import os
import random
import secrets
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["connect"]


def connect(purpose: str, address: str | None) -> Any:
    """The module ``ray``, connected; what can be wrong is a sentence that begins with the purpose.

    A cluster that this process has started or joined already is taken as it is.

    Args:
        purpose: what it is for, such as ``workers``.
        address: of a cluster, or ``auto`` for the one of this machine; None starts one here.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray prints of every dead worker on stdout; who uses it tells what matters.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        import ray
    except ImportError:
        raise ValueError(f"{purpose}: Ray is not installed: pip install 'composerl[ray]'") from None
    if ray.is_initialized():
        return ray
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address is None:
        # A token of its own for a cluster of its own: Ray would leave one in the home directory.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        options |= {"include_dashboard": False, "object_store_memory": 200 << 20}
    elif address != "auto":
        _knock(purpose, address)
    drawn = random.getstate()
    with _captured_stderr() as said:
        try:
            ray.init(address or "local", **options)
        except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
            if "AuthToken" in said() or isinstance(error, ray.exceptions.AuthenticationError):
                raise ValueError(
                    f"{purpose}: the cluster does not accept this shell's token: RAY_AUTH_MODE="
                    "token and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH must be as on its head node"
                ) from None
            where = f"at {address}" if address else "on this machine"
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(f"{purpose}: Ray fails {where}: {reason}") from error
        finally:
            random.setstate(drawn)  # Ray draws from it, and a run must not notice
    return ray


def _knock(purpose: str, address: str) -> None:
    """Refuse an address where nothing listens: Ray would try for minutes, and end the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{purpose}: no Ray cluster answers at {address} ({error}); expected auto or "
            "HOST:PORT, as `ray start --head` prints it"
        ) from None


@contextmanager
def _captured_stderr() -> Iterator[Callable[[], str]]:
    """Keep what Ray's C++ part prints to ourselves; gives what tells it."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:

        def said() -> str:
            file.seek(0)
            return file.read().decode(errors="replace")

        os.dup2(file.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(kept, 2)
            os.close(kept)
