"""A process in which composerl finds what it would on Windows, as far as that can be had here.

``python -X warn_default_encoding windows_like.py DIRECTORY`` imports every module, then trains,
resumes and reports there.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import importlib
import os
import pkgutil
import sys
import warnings
from pathlib import Path

#: Modules of Unix alone.
GONE = ("fcntl", "grp", "pty", "pwd", "resource", "termios")


class Missing:
    """An importer that knows that these modules are not there."""

    def find_spec(self, name, path=None, target=None):
        if name in GONE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def ours():
    """Whether composerl called; other libraries look at the platform's name, and know better."""
    return sys._getframe(2).f_globals.get("__name__", "").startswith("composerl")


def in_use(path, below):
    """Whether this process has a file open or mapped: then it cannot be replaced or removed."""
    path = os.path.realpath(path)
    if not path.startswith(f"{below}/"):  # Python's own tricks with /dev/shm
        return False
    opened = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return path in opened or f"{path}\n" in Path("/proc/self/maps").read_text(encoding="utf-8")


def imitate(directory):
    """Take away modules, directory handles, sync of files that are read, and files in use."""
    for name in GONE:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Missing())
    real = {name: getattr(os, name) for name in ("open", "fsync", "replace", "unlink")}

    def windows_open(path, *rest, **more):
        if ours() and os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real["open"](path, *rest, **more)

    def windows_fsync(file):
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        return real["fsync"](file)

    def windows_replace(source, target, **more):
        if in_use(source, directory) or in_use(target, directory):
            raise PermissionError(errno.EACCES, "The file is in use", str(target))
        return real["replace"](source, target, **more)

    def windows_unlink(path, *, dir_fd=None):
        if dir_fd is None and in_use(path, directory):
            raise PermissionError(errno.EACCES, "The file is in use", str(path))
        return real["unlink"](path, dir_fd=dir_fd)

    def windows_library(name, *rest, real=ctypes.CDLL, **more):
        if name is None:
            raise TypeError("argument of type 'NoneType' is not iterable")
        return real(name, *rest, **more)

    os.open, os.fsync, os.replace, os.unlink = (
        windows_open, windows_fsync, windows_replace, windows_unlink,
    )  # fmt: skip
    ctypes.CDLL = windows_library
    # Text is not UTF-8 there unless one says so.
    warnings.filterwarnings("error", category=EncodingWarning, module="composerl")


def main(directory):
    # Libraries choose by the platform's name, not by what is there: they come first.
    import filelock  # noqa: F401
    import torchrl.collectors  # noqa: F401
    import wandb  # noqa: F401

    imitate(directory)
    import composerl
    from composerl.cli import main as command

    for module in pkgutil.walk_packages(composerl.__path__, "composerl."):
        importlib.import_module(module.name)
    flags = {"hidden": (8,), "dataset_size": 500, "eval_episodes": 1, "wandb": "disabled",
             "out": directory / "run", "eval_every": 5, "save_every": 5}  # fmt: skip
    composerl.train("iql_pendulum", steps=10, **flags)
    policy = composerl.train("iql_pendulum", steps=20, resume=True, **flags)
    composerl.data.write_dataset(
        composerl.data.generate("CartPole-v1", "random", 50, 0), directory / "data.npz"
    )
    policy.save(directory / "policy.safetensors")
    command(["report", str(directory / "run"), "-o", str(directory / "report.html")])
    print("trained")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
