"""Statistics of few runs: interquartile mean, bootstrap intervals, probability of improvement.

As in "Deep RL at the edge of the statistical precipice" (Agarwal et al. 2021,
https://arxiv.org/abs/2108.13264). Only numpy is needed.
"""

from collections.abc import Callable, Sequence

import numpy as np

__all__ = ["bootstrap_interval", "iqm", "probability_of_improvement"]

RESAMPLES = 2000
LEVEL = 0.95


def iqm(scores: np.ndarray | Sequence[float], axis: int = -1) -> np.ndarray:
    """The interquartile mean along ``axis``: the mean of what is left without both outer quarters.

    Of n scores, ``n // 4`` are left out at each end, so that fewer than four are simply averaged.
    """
    scores = np.moveaxis(np.asarray(scores, np.float64), axis, -1)
    cut = scores.shape[-1] // 4
    return np.sort(scores, axis=-1)[..., cut : scores.shape[-1] - cut].mean(-1)


def bootstrap_interval(
    scores: np.ndarray | Sequence[float],
    statistic: Callable[..., np.ndarray] = iqm,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap of ``statistic``: low and high end of a confidence interval.

    Args:
        scores: ``(n, ...)``; whole rows (seeds, episodes) are drawn with replacement.
        statistic: takes ``(resamples, n, ...)`` and ``axis=1``, gives ``(resamples, ...)``.
        level: share of the resamples inside the interval; larger is wider.
        resamples: how often to draw.
        seed: of the draws; the same scores give the same interval.
    """
    scores = _scores("scores", scores)
    rows = np.random.default_rng(seed).integers(len(scores), size=(resamples, len(scores)))
    values = statistic(scores[rows], axis=1)
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def probability_of_improvement(
    first: Sequence[float], second: Sequence[float]
) -> tuple[float, float, float]:
    """How probable a score of ``first`` is to beat one of ``second``, and its 95 % interval.

    The share of all pairs in which the first is larger; ties count half (Mann-Whitney's U over
    the number of pairs). The interval draws both sides anew, each with replacement.
    """
    x, y = _scores("first", first), _scores("second", second)
    wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)
    generator = np.random.default_rng(0)
    rows = generator.integers(len(x), size=(RESAMPLES, len(x)))
    columns = generator.integers(len(y), size=(RESAMPLES, len(y)))
    values = wins[rows[:, :, None], columns[:, None, :]].mean((1, 2))
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(wins.mean()), float(low), float(high)


def _scores(name: str, scores: np.ndarray | Sequence[float]) -> np.ndarray:
    scores = np.asarray(scores, np.float64)
    if scores.ndim < 1 or not len(scores):
        raise ValueError(f"{name} must be one number or more, got {scores!r}")
    return scores
