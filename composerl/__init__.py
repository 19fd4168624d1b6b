"""Reinforcement learning algorithms assembled from TorchRL building blocks.

``import composerl`` is instant: the names below load what they need on first use, so that
``--help`` and argument errors of a recipe answer without importing torch.
"""

from typing import TYPE_CHECKING

from composerl._lazy import lazy

if TYPE_CHECKING:
    from composerl.analysis import compare, plot
    from composerl.analysis.table import runs
    from composerl.catalog import recipes, train
    from composerl.config import RunConfig
    from composerl.policy import Policy, load
    from composerl.run import Run
    from composerl.update import Update

__getattr__, __dir__, __all__ = lazy(__name__, __file__)

__version__ = "0.1.0"
