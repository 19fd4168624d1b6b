"""Offline data: files and generated behaviours, checked, as datasets and replay buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from composerl._lazy import lazy

if TYPE_CHECKING:
    from composerl.data.offline.behaviours import BEHAVIOURS
    from composerl.data.offline.dataset import Dataset, validate
    from composerl.data.offline.experts import Demonstrations, load_experts
    from composerl.data.offline.formats import read_dataset
    from composerl.data.offline.generation import generate
    from composerl.data.offline.loading import load_dataset
    from composerl.data.offline.statistics import monte_carlo_returns, return_scale, summarize
    from composerl.data.offline.storage import DatasetStorage, observation_stats
    from composerl.data.offline.writers import write_dataset

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
