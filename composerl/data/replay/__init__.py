"""Replay: storages, samplers, transforms and mixtures for TorchRL replay buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from composerl._lazy import lazy

if TYPE_CHECKING:
    from composerl.data.replay.episodes import WholeEpisodes
    from composerl.data.replay.latest import LatestStorage
    from composerl.data.replay.mixture import MixedReplayBuffer
    from composerl.data.replay.n_step import NStep
    from composerl.data.replay.prioritized import PrioritizedSampler
    from composerl.data.replay.sequences import Latents, SequenceSampler
    from composerl.data.replay.storage import PackedStorage

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
