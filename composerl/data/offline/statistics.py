"""What a dataset is like: Monte Carlo returns, episode statistics, a summary of its quality."""

from itertools import accumulate
from typing import Any

import numpy as np

from composerl.data.offline.dataset import Dataset

__all__ = ["monte_carlo_returns", "return_scale", "summarize"]


def monte_carlo_returns(dataset: Dataset, gamma: float) -> np.ndarray:
    """Discounted sum of the rewards from each row to the end of its episode, ``(N,)`` float32.

    An episode that was cut (a timeout) counts as if nothing came after the cut: for rewards of
    one sign the sum is then too small in size.
    """
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must be in [0, 1], got {gamma}")
    result = np.zeros(len(dataset), dtype=np.float32)
    for start, stop in dataset.episodes():
        backwards = dataset.rewards[start:stop][::-1].tolist()
        sums = accumulate(backwards, lambda total, gained: gained + gamma * total)
        result[start:stop] = [*sums][::-1]
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


def summarize(dataset: Dataset) -> dict[str, Any]:
    """Episodes, returns, lengths, ends, rewards and actions in numbers, all JSON."""
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
        counts = np.bincount(dataset.actions)
        summary["action_shares"] = [round(float(c) / len(dataset), 4) for c in counts]
    else:
        summary["action"] = [_spread(column) for column in dataset.actions.T]
    return summary


def _spread(values: np.ndarray) -> dict[str, float]:
    values = np.asarray(values, dtype=np.float64)
    names = ("mean", "std", "min", "median", "max")
    return {name: float(getattr(np, name)(values)) for name in names}
