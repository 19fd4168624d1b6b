"""Reinforcement learning algorithms assembled from TorchRL building blocks.

``import composerl`` is instant: the names below load what they need on first use, so that
``--help`` and argument errors of a recipe answer without importing torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Policy", "Run", "RunConfig", "Update", "load", "recipes", "train"]

if TYPE_CHECKING:
    from composerl.catalog import recipes, train
    from composerl.config import RunConfig
    from composerl.policy import Policy, load
    from composerl.run import Run
    from composerl.update import Update

_HOME = {
    "Policy": "composerl.policy",
    "Run": "composerl.run",
    "RunConfig": "composerl.config",
    "Update": "composerl.update",
    "load": "composerl.policy",
    "recipes": "composerl.catalog",
    "train": "composerl.catalog",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'composerl' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
