"""How good a dataset's episodes are, and what in it misleads algorithms that learn from it."""

from __future__ import annotations

from typing import Any

import numpy as np

from composerl.data.offline.dataset import Dataset

__all__ = ["ActionBounds", "at_bounds", "cautions", "returns_by_bin"]

ActionBounds = tuple[np.ndarray, np.ndarray]

_BINS = 8
_MARGIN = 1e-3  # of half an action's range: what counts as its end
_SATURATED = 0.2  # share of rows with an action at an end
_ENDS = 3  # episodes that end by themselves at the same, largest length
_EPISODES = 10  # of fewer nothing is said about classes of them
_NEAREST, _LARGE = 0.05, 0.2  # share of the rows that are a neighbourhood, and that are none
#: How much larger a class's share of the rows near the starts may be than its share of episodes.
#: Mixed data of HalfCheetah of which a clone never leaves rest have 0.65, and without their six
#: random episodes, when it runs, 0.45; mixed data of Hopper 0.06, CartPole's 0.01.
_EXCESS = 0.5


def returns_by_bin(dataset: Dataset) -> list[dict[str, Any]]:
    """Equal ranges of the episodes' returns, with how many episodes and rows there are in each."""
    returns, bounds = dataset.returns(), dataset.episodes()
    low, high = returns.min(), returns.max()
    edges = np.linspace(low, high, (_BINS if high > low else 1) + 1)
    which = np.searchsorted(edges[1:-1], returns, side="right")
    rows = bounds[:, 1] - bounds[:, 0]
    return [
        {
            "from": float(edges[k]),
            "to": float(edges[k + 1]),
            "episodes": int((which == k).sum()),
            "rows": int(rows[which == k].sum()),
        }
        for k in range(len(edges) - 1)
    ]


def at_bounds(dataset: Dataset, bounds: ActionBounds | None = None) -> float | None:
    """The share of rows with an entry of the action at an end of its range; None if discrete.

    Without ``bounds`` the least and the largest entry in the data stand for them.
    """
    actions = dataset.actions
    if actions.ndim == 1:
        return None
    low, high = (actions.min(0), actions.max(0)) if bounds is None else bounds
    margin = _MARGIN * 0.5 * (high - low)
    return float(((actions <= low + margin) | (actions >= high - margin)).any(1).mean())


def cautions(dataset: Dataset, bounds: ActionBounds | None = None) -> list[str]:
    """Sentences about what is likely to mislead: empty if nothing was found."""
    found = [_saturated(dataset, bounds), _ends_of_time(dataset), _held_by_few(dataset)]
    return [sentence for sentence in found if sentence]


def _saturated(dataset: Dataset, bounds: ActionBounds | None) -> str | None:
    share = at_bounds(dataset, bounds)
    if share is None or share < _SATURATED:
        return None
    return (
        f"{share:.0%} of the rows have an action at an end of its range, where the density of a "
        "policy squashed by tanh has no bound: such a one clones them badly"
    )


def _ends_of_time(dataset: Dataset) -> str | None:
    bounds = dataset.episodes()
    lengths = bounds[:, 1] - bounds[:, 0]
    longest = lengths == lengths.max()
    ends = dataset.terminals[bounds[:, 1] - 1]
    number = int((longest & ends).sum())
    if number < _ENDS or (longest & ~ends).any():
        return None
    return (
        f"{number} episodes have a terminal after exactly {lengths.max()} steps, and none is "
        "longer: if that is a time limit, it belongs into timeouts, as terminals bootstrap nothing"
    )


def _held_by_few(dataset: Dataset) -> str | None:
    """Whether the worst episodes hold the states where all begin.

    Episodes leave the neighbourhood of their starts, or stay. It is the twentieth of the rows that
    are nearest to the mean first observation, in standard deviations, or more, if it takes more to
    have half of the starts in it; where that is a large part of the rows, starts are anywhere. If
    the worst stay, most of what is seen to be done there is theirs, and who imitates all rows stays
    too. Worst are those for which the excess of their share of these rows over their share of
    episodes is largest: the one-sided Kolmogorov-Smirnov distance between the returns of both.
    """
    bounds, returns = dataset.episodes(), dataset.returns()
    if len(bounds) < _EPISODES or dataset.observations.ndim != 2:
        return None
    order = np.argsort(returns, kind="stable")
    deviation = np.maximum(dataset.observations.std(0, dtype=np.float64), 1e-6)
    first = dataset.observations[bounds[:, 0]].mean(0, dtype=np.float64)
    distance = np.square((dataset.observations - first) / deviation).sum(1)
    starts = np.median(distance[bounds[:, 0]])
    near = distance <= max(np.quantile(distance, _NEAREST), starts)
    if near.mean() > _LARGE:
        return None
    held = np.add.reduceat(near.astype(np.int64), bounds[:, 0])[order]
    share = held.cumsum() / held.sum()
    number = np.arange(1, len(order) + 1)
    worst = int((share - number / len(order)).argmax())
    if share[worst] - number[worst] / len(order) < _EXCESS:
        return None
    return (
        f"the {number[worst]} worst of {len(order)} episodes (returns {returns[order[0]]:,.0f} to "
        f"{returns[order[worst]]:,.0f}) hold {share[worst]:.0%} of the rows near where episodes "
        "start: who imitates all rows does there what they do; leave them out "
        "(composerl data filter --min-return) or weigh by advantage"
    )
