"""The command line: see the package."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def start() -> int:
    """Begin in a home of its own, where nothing is the user's."""
    with tempfile.TemporaryDirectory(prefix="composerl-campaign-") as place:
        home = Path(place)
        for name in ("cache", "tmp", "material"):
            (home / name).mkdir()
        os.environ |= {
            "COMPOSERL_CACHE": f"{home}/cache", "MPLCONFIGDIR": f"{home}/cache",
            "TMPDIR": f"{home}/tmp", "WANDB_MODE": "offline", "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore", "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        tempfile.tempdir = f"{home}/tmp"
        from .commandline import main  # only now: it imports torch

        return main(home)


sys.exit(start())
