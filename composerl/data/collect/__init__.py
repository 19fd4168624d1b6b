"""Collectors: environments stepped by a policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from composerl._lazy import lazy

if TYPE_CHECKING:
    from composerl.data.collect.records import RecordEnv, to_records
    from composerl.data.collect.recurrent import RecordCollector
    from composerl.data.collect.vector import VectorCollector

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
