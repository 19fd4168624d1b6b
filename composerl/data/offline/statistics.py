"""What a dataset is like: Monte Carlo returns, episode statistics, a summary of its quality."""

from typing import Any

import numpy as np

from composerl.data.offline.dataset import Dataset
from composerl.data.offline.quality import ActionBounds, at_bounds, cautions, returns_by_bin
from composerl.data.returns import returns_to_go

__all__ = ["monte_carlo_returns", "return_scale", "summarize"]

MOST_ACTIONS = 100_000  # whose shares are counted


def monte_carlo_returns(dataset: Dataset, gamma: float) -> np.ndarray:
    """Discounted sum of the rewards from each row to the end of its episode, ``(N,)`` float32.

    An episode that was cut (a timeout) counts as if the dataset's lowest reward came for ever
    after, or none at all if no reward is negative: the sum is what is gained at least, which is
    what Cal-QL needs. With ``gamma`` 1 and negative rewards nothing is known, and it is -inf.
    """
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must be in [0, 1], got {gamma}")
    result = np.zeros(len(dataset), dtype=np.float32)
    worst = float(dataset.rewards.min()) if len(dataset) else 0.0
    for start, stop in dataset.episodes():
        rewards, cut = dataset.rewards[start:stop].tolist(), not dataset.terminals[stop - 1]
        result[start:stop] = returns_to_go(rewards, gamma, worst if cut else 0.0)
    return result


def return_scale(dataset: Dataset, size: float = 1000.0) -> float:
    """IQL's factor of the rewards for locomotion: ``size`` / (largest - smallest return)."""
    returns = dataset.returns()
    spread = float(returns.max() - returns.min()) if len(returns) else 0.0
    if spread <= 0:
        raise ValueError(
            f"{dataset.source}: returns do not differ ({len(returns)} episodes), so there is no "
            "scale to take from them"
        )
    return size / spread


def summarize(dataset: Dataset, action_bounds: ActionBounds | None = None) -> dict[str, Any]:
    """Episodes, returns, lengths, ends, rewards and actions in numbers, all JSON.

    ``action_bounds`` are those of continuous actions; without them the data's extremes stand for
    them.
    """
    returns, bounds = dataset.returns(), dataset.episodes()
    lengths = bounds[:, 1] - bounds[:, 0]
    summary: dict[str, Any] = {
        "source": dataset.source,
        "transitions": len(dataset),
        "episodes": len(returns),
        "dropped_rows": dataset.dropped,
        "terminals": int(dataset.terminals.sum()),
        "timeouts": int(dataset.timeouts.sum()),
        "return": _spread(returns),
        "length": _spread(lengths),
        "reward": _spread(dataset.rewards),
        "observation_shape": list(dataset.observations.shape[1:]),
    }
    if dataset.actions.ndim == 1:
        low, high = int(dataset.actions.min()), int(dataset.actions.max())
        if low < 0 or high >= MOST_ACTIONS:
            raise ValueError(
                f"{dataset.source}: actions are integers from {low} to {high}, expected "
                f"from 0 to less than {MOST_ACTIONS}"
            )
        counts = np.bincount(dataset.actions)
        summary["action_shares"] = [round(float(c) / len(dataset), 4) for c in counts]
    else:
        summary["action"] = [_spread(column) for column in dataset.actions.T]
        summary["rows_with_action_at_bound"] = at_bounds(dataset, action_bounds)
    summary["episodes_by_return"] = returns_by_bin(dataset)
    summary["warnings"] = cautions(dataset, action_bounds)
    return summary


def _spread(values: np.ndarray) -> dict[str, float]:
    values = np.asarray(values, dtype=np.float64)
    names = ("mean", "std", "min", "median", "max")
    return {name: float(getattr(np, name)(values)) for name in names}
