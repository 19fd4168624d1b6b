"""Monte Carlo returns and statistics, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from composerl.data import (
    Dataset,
    generate,
    monte_carlo_returns,
    return_scale,
    summarize,
)


def dataset(raw):
    """Rewards 1 2 3 (cut) and 4 5 (terminal)."""
    return Dataset(**raw)


def test_returns_to_go_stay_in_their_episode(raw):
    """gamma = 0.5: 3; 2 + 1.5; 1 + 1.75 and 5; 4 + 2.5."""
    expected = [2.75, 3.5, 3.0, 6.5, 5.0]
    np.testing.assert_allclose(monte_carlo_returns(dataset(raw), 0.5), expected)
    np.testing.assert_allclose(monte_carlo_returns(dataset(raw), 0.0), raw["rewards"])
    np.testing.assert_allclose(monte_carlo_returns(dataset(raw), 1.0), [6, 5, 3, 9, 5])
    with pytest.raises(ValueError, match="gamma"):
        monte_carlo_returns(dataset(raw), 1.5)


def test_a_cut_episode_counts_what_it_gains_at_least(raw):
    """Rewards -1 -2 -3, cut, and -4 -5, terminal; gamma 0.5: after the cut -5 for ever, -10.

    -3 - 5 = -8; -2 - 4 = -6; -1 - 3 = -4. As if nothing came after it, -2.75 -3.5 -3 would be a
    floor above values that the data do not disprove."""
    raw["rewards"] = -raw["rewards"]
    np.testing.assert_allclose(monte_carlo_returns(dataset(raw), 0.5), [-4, -6, -8, -6.5, -5])
    assert monte_carlo_returns(dataset(raw), 1.0).tolist() == [-np.inf] * 3 + [-9, -5]
    np.testing.assert_allclose(monte_carlo_returns(dataset(raw), 0.0), raw["rewards"])


def test_scale_of_locomotion(raw):
    assert return_scale(dataset(raw)) == pytest.approx(1000 / 3)  # returns 6 and 9
    with pytest.raises(ValueError, match="do not differ"):
        return_scale(Dataset(**{key: value[:3] for key, value in raw.items()}))


def test_summary(raw):
    summary = summarize(dataset(raw))
    assert (summary["transitions"], summary["episodes"]) == (5, 2)
    assert (summary["terminals"], summary["timeouts"]) == (1, 1)
    assert summary["return"] == {"mean": 7.5, "std": 1.5, "min": 6.0, "median": 7.5, "max": 9.0}
    assert summary["length"]["mean"] == 2.5
    assert summary["action"][0]["min"] == -2.0
    shares = summarize(generate("CartPole-v1", "random", 200, 0))["action_shares"]
    assert sum(shares) == pytest.approx(1.0)
