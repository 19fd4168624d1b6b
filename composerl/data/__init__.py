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

from typing import TYPE_CHECKING

from composerl._lazy import lazy

if TYPE_CHECKING:
    from composerl.data.collect.records import RecordEnv, to_records
    from composerl.data.collect.recurrent import RecordCollector
    from composerl.data.collect.vector import VectorCollector
    from composerl.data.imagine import ModelEnv, branched_rollouts, length_schedule
    from composerl.data.offline.behaviours import BEHAVIOURS
    from composerl.data.offline.buffer import OfflineBuffer, load_dataset
    from composerl.data.offline.dataset import Dataset, validate
    from composerl.data.offline.experts import ExpertBuffer, load_experts
    from composerl.data.offline.formats import read_dataset
    from composerl.data.offline.generation import generate
    from composerl.data.offline.statistics import monte_carlo_returns, return_scale, summarize
    from composerl.data.offline.writers import write_dataset
    from composerl.data.replay.model_buffer import ModelBuffer
    from composerl.data.replay.online import MixedBuffer
    from composerl.data.replay.prioritized import PrioritizedSampler
    from composerl.data.replay.sequences import SequenceReplay
    from composerl.data.replay.transitions import ReplayBuffer

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
