"""Replay: storages, samplers, transforms and mixtures for TorchRL replay buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from composerl._lazy import lazy

if TYPE_CHECKING:
    from composerl.data.replay.model_buffer import ModelBuffer
    from composerl.data.replay.online import MixedBuffer
    from composerl.data.replay.prioritized import PrioritizedSampler
    from composerl.data.replay.sequences import SequenceReplay
    from composerl.data.replay.transitions import ReplayBuffer

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
