"""What is gained from each step of an episode on."""

from collections.abc import Sequence
from itertools import accumulate

__all__ = ["returns_to_go"]


def returns_to_go(rewards: Sequence[float], gamma: float, worst: float = 0.0) -> list[float]:
    """Discounted sums of each reward and all that follow.

    After the last one ``worst`` comes for ever, if it is negative: the least that an episode that
    was cut may still have gained. Without a discount that has no bound, and the sums are -inf.
    """
    rest = 0.0
    if worst < 0:
        rest = worst / (1 - gamma) if gamma < 1 else -float("inf")
    sums = accumulate(
        reversed(rewards),
        lambda total, gained: gained + gamma * total if gamma else gained,
        initial=rest,
    )
    return [*sums][:0:-1]
