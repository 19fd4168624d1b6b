"""Statistics of few runs: interquartile mean, bootstrap intervals, probability of improvement.

As in "Deep RL at the edge of the statistical precipice" (Agarwal et al. 2021,
https://arxiv.org/abs/2108.13264). Only numpy is needed. *Tasks* are the scores of one algorithm, a
sequence for each task with a score for each run; scores of several tasks are put together only when
they are on one scale (``(score - random) / (reference - random)``, as a rule).
"""

from collections.abc import Callable, Sequence

import numpy as np

__all__ = ["aggregate", "bootstrap_interval", "improvement_over_tasks", "iqm",
           "performance_profile", "probability_of_improvement", "rank_correlation",
           "run_interval"]  # fmt: skip

RESAMPLES = 2000
LEVEL = 0.95
DRAWN = 1 << 20  # numbers that are drawn at once

Tasks = Sequence[Sequence[float]]


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
    ends = [(1 - level) / 2, (1 + level) / 2]
    # A part of the columns at a time: all resamples of a long curve are gigabytes.
    columns = scores.reshape(len(scores), -1)
    parts = np.array_split(columns, max(1, columns.shape[1] * rows.size // DRAWN), axis=1)
    found = [np.quantile(statistic(part[rows], axis=1), ends, axis=0) for part in parts]
    low, high = np.concatenate(found, axis=1).reshape(2, *scores.shape[1:])
    return low, high


def run_interval(scores: Sequence[float]) -> tuple[float, float] | None:
    """The interval of the interquartile mean over runs; None for one run, which has no spread."""
    if len(scores) == 1:
        return None
    low, high = bootstrap_interval(scores)
    return float(low), float(high)


def probability_of_improvement(
    first: Sequence[float], second: Sequence[float]
) -> tuple[float, float, float]:
    """How probable a score of ``first`` is to beat one of ``second``, and its 95 % interval.

    The share of all pairs in which the first is larger; ties count half (Mann-Whitney's U over
    the number of pairs). The interval draws both sides anew, each with replacement; where all
    of one side are better than all of the other, or a side has one score, it has no width, which
    says that there are few scores and not that the result is certain.
    """
    return improvement_over_tasks([first], [second])


def improvement_over_tasks(first: Tasks, second: Tasks) -> tuple[float, float, float]:
    """The mean over tasks of the probability of improvement, and its stratified 95 % interval.

    Task by task, both sides' scores are drawn anew. As only scores of one task are compared,
    they need no common scale.
    """
    if len(first) != len(second):
        raise ValueError(f"both sides need the same tasks, got {len(first)} and {len(second)}")
    generator = np.random.default_rng(0)
    middle, drawn = [], []
    for one, other in zip(first, second, strict=True):
        x, y = _scores("first", one), _scores("second", other)
        wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)
        rows = generator.integers(len(x), size=(RESAMPLES, len(x)))
        columns = generator.integers(len(y), size=(RESAMPLES, len(y)))
        middle.append(wins.mean())
        drawn.append(wins[rows[:, :, None], columns[:, None, :]].mean((1, 2)))
    return float(np.mean(middle)), *_ends(np.mean(drawn, axis=0))


def aggregate(tasks: Tasks) -> dict[str, tuple[float, float, float]]:
    """Scores of several tasks, on one scale, as one number each, with stratified 95 % intervals.

    ``iqm`` over all runs of all tasks; ``median`` and ``mean`` over the tasks' means; and
    ``optimality gap``, by how much runs miss 1 on average, where above 1 is no gain (less is
    better). The bootstrap draws runs anew within each task.
    """
    scores = [_scores("tasks", task)[None] for task in tasks]
    values, drawn = _aggregates(scores), _aggregates(_draw(scores))
    return {name: (float(value[0]), *_ends(drawn[name])) for name, value in values.items()}


def performance_profile(
    tasks: Tasks, thresholds: np.ndarray | Sequence[float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The share of runs with a score above each threshold, tasks weighted alike, and 95 % bands.

    Where one algorithm's profile lies above another's everywhere, it is better in whatever
    statistic one looks at.
    """
    levels = np.asarray(thresholds, np.float64)
    scores = [_scores("tasks", task)[None] for task in tasks]

    def shares(scores: Sequence[np.ndarray]) -> np.ndarray:
        return np.mean([(task[..., None] > levels).mean(1) for task in scores], axis=0)

    low, high = np.quantile(shares(_draw(scores)), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return shares(scores)[0], low, high


def _aggregates(scores: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Of scores ``(resamples, runs)`` for each task, what :func:`aggregate` tells."""
    means = np.stack([task.mean(1) for task in scores], axis=1)
    every = np.concatenate(scores, axis=1)
    gaps = np.stack([1 - np.minimum(task, 1).mean(1) for task in scores], axis=1)
    return {
        "iqm": iqm(every, axis=1),
        "median": np.median(means, axis=1),
        "mean": means.mean(1),
        "optimality gap": gaps.mean(1),
    }


def _draw(scores: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Scores ``(1, runs)`` of each task, drawn anew: ``(resamples, runs)``."""
    generator = np.random.default_rng(0)
    sizes = [task.shape[1] for task in scores]
    return [
        task[0][generator.integers(size, size=(RESAMPLES, size))]
        for task, size in zip(scores, sizes, strict=True)
    ]


def _ends(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's: 1 if both put things into the same order, -1 if into opposite ones.

    The correlation of the ranks, of which equal scores share the mean; NaN if all are equal.
    """
    x, y = _scores("first", first), _scores("second", second)
    if x.shape != y.shape or len(x) < 2:
        raise ValueError(f"two scores or more of both are needed, got {len(x)} and {len(y)}")
    ranks = [_ranks(side) - (len(side) - 1) / 2 for side in (x, y)]
    sizes = [np.sqrt(np.square(side).sum()) for side in ranks]
    return float(ranks[0] @ ranks[1] / np.prod(sizes)) if all(sizes) else float("nan")


def _ranks(scores: np.ndarray) -> np.ndarray:
    below = (scores[:, None] > scores).sum(1)
    return below + ((scores[:, None] == scores).sum(1) - 1) / 2


def _scores(name: str, scores: np.ndarray | Sequence[float]) -> np.ndarray:
    scores = np.asarray(scores, np.float64)
    if scores.ndim < 1 or not len(scores):
        raise ValueError(f"{name} must be one number or more, got {scores!r}")
    if not np.isfinite(scores).all():
        raise ValueError(f"{name} must be finite, got {scores[~np.isfinite(scores)][0]}")
    return scores
