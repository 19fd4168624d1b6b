"""Tests leave the user's caches and accounts alone and use one thread, like the recipes."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

# Before anything imports torch or starts a process that does.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["COMPOSERL_CACHE"] = tempfile.mkdtemp(prefix="composerl-test-cache-")
os.environ["WANDB_MODE"] = "offline"
os.environ.pop("WANDB_API_KEY", None)

import torch

torch.set_num_threads(1)
atexit.register(shutil.rmtree, os.environ["COMPOSERL_CACHE"], ignore_errors=True)
