"""Where batches come from: datasets for offline learning, collector and replay for online.

Offline, ``load_dataset`` is all that a recipe needs. The steps behind it can be used alone:
``read_dataset`` (npz, D4RL-style HDF5, Minari), ``generate`` (a named behaviour in an
environment), ``validate`` (against an environment's spaces), ``summarize`` and its kin (what a
dataset is like) and ``OfflineBuffer``. Online, a ``VectorCollector`` fills a ``ReplayBuffer``.
For models with memory, a ``RecordCollector`` fills a ``SequenceReplay``.
With a learned model, ``branched_rollouts`` fill a ``ModelBuffer``, which mixes in real rows.
What needs torch is imported when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from composerl.data.behaviours import BEHAVIOURS
from composerl.data.dataset import Dataset, validate
from composerl.data.formats import read_dataset
from composerl.data.generate import generate
from composerl.data.statistics import monte_carlo_returns, return_scale, summarize
from composerl.data.writers import write_dataset

if TYPE_CHECKING:
    from composerl.data.buffer import OfflineBuffer, load_dataset
    from composerl.data.collector import VectorCollector
    from composerl.data.experts import ExpertBuffer, load_experts
    from composerl.data.imagine import ModelEnv, branched_rollouts, length_schedule
    from composerl.data.model_buffer import ModelBuffer
    from composerl.data.online import MixedBuffer
    from composerl.data.priority import PrioritizedSampler
    from composerl.data.record_collector import RecordCollector
    from composerl.data.replay import ReplayBuffer
    from composerl.data.sequences import SequenceReplay

__all__ = [
    "BEHAVIOURS",
    "Dataset",
    "ExpertBuffer",
    "MixedBuffer",
    "ModelBuffer",
    "ModelEnv",
    "OfflineBuffer",
    "PrioritizedSampler",
    "RecordCollector",
    "ReplayBuffer",
    "SequenceReplay",
    "VectorCollector",
    "branched_rollouts",
    "generate",
    "length_schedule",
    "load_dataset",
    "load_experts",
    "monte_carlo_returns",
    "read_dataset",
    "return_scale",
    "summarize",
    "validate",
    "write_dataset",
]


_NEED_TORCH = {
    "ExpertBuffer": "composerl.data.experts",
    "MixedBuffer": "composerl.data.online",
    "ModelBuffer": "composerl.data.model_buffer",
    "ModelEnv": "composerl.data.imagine",
    "OfflineBuffer": "composerl.data.buffer",
    "PrioritizedSampler": "composerl.data.priority",
    "RecordCollector": "composerl.data.record_collector",
    "ReplayBuffer": "composerl.data.replay",
    "SequenceReplay": "composerl.data.sequences",
    "VectorCollector": "composerl.data.collector",
    "branched_rollouts": "composerl.data.imagine",
    "length_schedule": "composerl.data.imagine",
    "load_dataset": "composerl.data.buffer",
    "load_experts": "composerl.data.experts",
}


def __getattr__(name: str) -> Any:
    if name not in _NEED_TORCH:
        raise AttributeError(f"module 'composerl.data' has no attribute {name!r}")
    return getattr(import_module(_NEED_TORCH[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
