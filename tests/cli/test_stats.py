"""Statistics of runs, against numbers worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from composerl.analysis.stats import bootstrap_interval, iqm, probability_of_improvement


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
