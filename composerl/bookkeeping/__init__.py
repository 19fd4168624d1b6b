"""What every run has: its directory, checkpoints, metrics, tracking, evaluation, console."""

from typing import TYPE_CHECKING

from composerl._lazy import lazy

if TYPE_CHECKING:
    from composerl.bookkeeping.console import say
    from composerl.bookkeeping.evaluation import Evaluation, Evaluator

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
