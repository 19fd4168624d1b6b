"""Statistics of runs, against numbers worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from composerl.analysis.stats import (
    aggregate,
    bootstrap_interval,
    improvement_over_tasks,
    iqm,
    performance_profile,
    probability_of_improvement,
    rank_correlation,
    run_interval,
)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 2.0, 6.0], 3.0),  # fewer than four: the mean
        ([100.0, 1.0, 3.0, -50.0], 2.0),  # of -50 1 3 100 the middle two
        ([5.0, 1.0, 2.0, 3.0, 100.0], (2 + 3 + 5) / 3),  # 5 // 4 = 1 off each end
        ([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], (3 + 4 + 5 + 6) / 4),
    ],
)
def test_iqm_by_hand(scores, expected):
    assert iqm(scores) == pytest.approx(expected)


def test_iqm_along_an_axis():
    table = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [99.0, -99.0]])
    assert iqm(table, axis=0) == pytest.approx([2.5, 15.0])


def test_interval_is_the_quantiles_of_all_resamples():
    """Of the scores 0 and 1 the mean of a resample is 0, 0.5 or 1, with 1/4, 1/2 and 1/4.

    Its 2.5 % quantile is 0 and its 97.5 % quantile 1; those of the middle 40 % (30 % to 70 %)
    both are 0.5.
    """
    assert bootstrap_interval([0.0, 1.0], np.mean) == (0.0, 1.0)
    assert bootstrap_interval([0.0, 1.0], np.mean, level=0.4) == (0.5, 0.5)


def test_interval_against_every_resample_there_is():
    """All 4^4 resamples of four scores, enumerated: the exact percentile interval."""
    scores = [3.0, 9.0, 4.0, 20.0]
    exact = [np.mean(rows) for rows in itertools.product(scores, repeat=4)]
    expected = np.quantile(exact, [0.025, 0.975])
    assert bootstrap_interval(scores, np.mean, resamples=100_000) == pytest.approx(
        expected, abs=0.3
    )


def test_interval_of_curves_is_that_of_each_column():
    curves = np.array([[1.0, 4.0], [2.0, 5.0], [6.0, 9.0]])
    low, high = bootstrap_interval(curves)
    for column in range(2):
        assert (low[column], high[column]) == bootstrap_interval(curves[:, column])


def test_the_same_scores_give_the_same_interval():
    assert bootstrap_interval([1.0, 2.0, 7.0]) == bootstrap_interval([1.0, 2.0, 7.0])


def test_probability_of_improvement_by_hand():
    """Pairs of (1, 3, 5) with (2, 3): 1 loses twice, 3 wins and ties, 5 wins twice: 3.5 of 6."""
    probability, low, high = probability_of_improvement([1, 3, 5], [2, 3])
    assert probability == pytest.approx(3.5 / 6)
    assert 0 <= low < probability < high <= 1
    back, _, _ = probability_of_improvement([2, 3], [1, 3, 5])
    assert probability + back == pytest.approx(1)


def test_probability_of_separate_scores_is_certain():
    assert probability_of_improvement([5, 6], [1, 2]) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("call", [bootstrap_interval, lambda x: probability_of_improvement(x, [1])])
def test_no_scores_are_refused(call):
    with pytest.raises(ValueError, match="must be one number or more"):
        call([])


@pytest.mark.parametrize("call", [bootstrap_interval, lambda x: probability_of_improvement(x, [1])])
@pytest.mark.parametrize("lost", [float("nan"), float("inf")])
def test_scores_that_are_no_numbers_are_refused(call, lost):
    with pytest.raises(ValueError, match=f"must be finite, got {lost}"):
        call([1.0, lost])


def test_one_run_has_no_interval():
    assert run_interval([3.0]) is None
    assert run_interval([3.0, 4.0]) == (3.0, 4.0)


# --- several tasks -----------------------------------------------------------------------------

TASKS = [[0.0, 0.5, 1.5, 2.0], [0.2, 0.4, 0.6, 0.8]]


def test_aggregates_by_hand():
    """Of the eight scores the middle four are 0.4 0.5 0.6 0.8; the tasks' means are 1 and 0.5.

    Up to 1 the first task's runs have 0, 0.5, 1, 1, mean 0.625; the second's mean is 0.5.
    """
    told = aggregate(TASKS)
    assert {name: value for name, (value, _, _) in told.items()} == pytest.approx(
        {"iqm": 2.3 / 4, "median": 0.75, "mean": 0.75, "optimality gap": 1 - (0.625 + 0.5) / 2}
    )
    for value, low, high in told.values():
        assert low < value < high


def test_aggregates_against_scipy():
    """rliable's: trim_mean of 25 % over all, medians and means of task means."""
    stats = pytest.importorskip("scipy.stats")
    scores = np.random.default_rng(0).normal(0.5, 0.4, size=(10, 6))  # as rliable: runs, tasks
    told = aggregate(scores.T.tolist())
    assert told["iqm"][0] == pytest.approx(stats.trim_mean(scores, 0.25, axis=None))
    assert told["median"][0] == pytest.approx(np.median(scores.mean(0)))
    gap = 1 - np.mean(np.minimum(scores, 1))
    assert told["optimality gap"][0] == pytest.approx(gap)

    def trimmed(*tasks, axis):
        return stats.trim_mean(np.concatenate(tasks, axis), 0.25, axis)

    draws = stats.bootstrap(
        tuple(scores.T), trimmed, method="percentile", n_resamples=4000, rng=0, vectorized=True
    )
    assert told["iqm"][1:] == pytest.approx(tuple(draws.confidence_interval), abs=0.02)


def test_the_bootstrap_is_stratified():
    """Tasks of equal runs: within a task nothing varies, and nothing is drawn across tasks."""
    told = aggregate([[0.1] * 5, [0.9] * 5])
    for value, low, high in told.values():
        assert (low, high) == pytest.approx((value, value))


def test_improvement_over_tasks_against_scipy():
    stats = pytest.importorskip("scipy.stats")
    generator = np.random.default_rng(1)
    first, second = generator.normal(size=(2, 3, 7)).round(1)
    expected = np.mean(
        [stats.mannwhitneyu(x, y).statistic / 49 for x, y in zip(first, second, strict=True)]
    )
    probability, low, high = improvement_over_tasks(first, second)
    assert probability == pytest.approx(expected)
    assert low < probability < high
    with pytest.raises(ValueError, match="same tasks"):
        improvement_over_tasks(first, second[:2])


def test_performance_profile_by_hand():
    """Above 0.5 are 2 of 4 in either task (0.5 itself is not), above 1.9 are 1 of 4 and none."""
    shares, low, high = performance_profile(TASKS, [-1.0, 0.5, 1.9, 5.0])
    assert shares.tolist() == [1.0, 0.5, 0.125, 0.0]
    assert (low <= shares).all()
    assert (shares <= high).all()
    assert (low[0], high[0], low[3], high[3]) == (1.0, 1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ([10.0, 20.0, 30.0, 400.0], 1.0),
        ([4.0, 3.0, 2.0, 1.0], -1.0),
        # Ranks 1 0 3 2 about their mean: -.5 -1.5 1.5 .5 by -1.5 -.5 .5 1.5 is 3, of 5.
        ([2.0, 1.0, 4.0, 3.0], 3 / 5),
        # Ranks 0.5 0.5 2 3: -1 -1 .5 1.5 by -1.5 -.5 .5 1.5 is 4.5, of sqrt(4.5 * 5).
        ([1.0, 1.0, 2.0, 3.0], 4.5 / (4.5 * 5) ** 0.5),
    ],
)
def test_rank_correlation_by_hand(second, expected):
    assert rank_correlation([1.0, 2.0, 3.0, 4.0], second) == pytest.approx(expected)
    assert np.isnan(rank_correlation([1.0, 1.0], [1.0, 2.0]))
    with pytest.raises(ValueError, match="two scores or more"):
        rank_correlation([1.0, 2.0], [1.0])
