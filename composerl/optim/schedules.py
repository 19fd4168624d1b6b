"""Learning-rate schedules: the factor of the rate, as a function of the updates done."""

import math
from collections.abc import Callable
from functools import partial

__all__ = ["Schedule", "constant", "cosine", "linear", "lr_schedule", "step", "warm_up"]

#: Number of updates done so far -> factor of the learning rate.
Schedule = Callable[[int], float]

#: Share of a phase that is done, in [0, 1] -> factor.
_SHAPES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1 - done,
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "step": lambda done: 0.5 ** min(int(4 * done), 3),
}


def lr_schedule(name: str, *updates: int) -> Schedule:
    """The schedule of this name over phases of so many updates, each of which begins at 1.

    ``constant`` stays at 1; ``linear`` and ``cosine`` fall to 0; ``step`` halves at each quarter
    of a phase, to 1/8 in its last. After the last phase the factor stays where that ended.
    """
    if name not in _SHAPES:
        raise ValueError(f"a learning-rate schedule is one of {', '.join(_SHAPES)}, got {name!r}")
    shape = _SHAPES[name]

    def factor(n: int) -> float:
        for phase in updates:
            if n < phase:
                return shape(n / phase)
            n -= phase
        return shape(1.0)

    return factor


#: ``cosine(20, 10)`` is ``lr_schedule("cosine", 20, 10)``.
constant, cosine, step = (partial(lr_schedule, name) for name in ("constant", "cosine", "step"))


def linear(updates: int, final: float = 0.0) -> Schedule:
    """A straight line from 1 to ``final`` over so many updates."""
    return lambda n: final if n >= updates else 1 + (final - 1) * (n / updates)


def warm_up(updates: int, then: Schedule = lambda n: 1.0) -> Schedule:
    """A straight line from 0, at the first update, to 1 after so many; then another schedule.

    What follows starts to count at the end of the line.
    """
    return lambda n: n / updates if n < updates else then(n - updates)
