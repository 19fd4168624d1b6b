"""The latest rounds of imagined data: whatever their size, content in the state."""

from __future__ import annotations

import pytest
import torch
from rows import assert_equal, buffer_of, by_seed, rows, through_a_file
from torchrl.data import SamplerWithoutReplacement

from composerl.data import LatestStorage


def latest(keep, *batches, **parts):
    return buffer_of(0, *batches, storage=LatestStorage(keep), **parts)


def test_keeps_the_latest_rounds_whatever_their_size():
    buffer = latest(3, rows(0, 50), rows(100, 10), rows(200, 70), rows(300, 20), batch_size=200)
    assert len(buffer) == 100
    kept = [*range(100, 110), *range(200, 270), *range(300, 320)]
    assert buffer[:]["action"].tolist() == kept
    by_seed(0)
    seen = torch.cat([buffer.sample()["action"] for _ in range(50)]) // 100
    for value, share in ((1, 0.1), (2, 0.7), (3, 0.2)):
        assert (seen == value).float().mean() == pytest.approx(share, abs=0.03)
    assert len(latest(1, rows(0, 5), rows(5, 6))) == 6


def test_a_sample_is_rows_of_it():
    buffer = latest(2, rows(0, 30), rows(30, 7), rows(37, 9), batch_size=64)
    batch = buffer.sample()
    assert_equal(batch, buffer[:][batch["index"]])
    assert torch.equal(batch["next", "reward"].squeeze(-1), batch["action"] / 8)
    once = latest(2, rows(0, 4), rows(4, 8), sampler=SamplerWithoutReplacement(), batch_size=6)
    assert sorted(torch.cat([once.sample(), once.sample()])["action"].tolist()) == list(range(12))


def test_one_row_is_a_round_and_rows_are_replaced_in_place():
    buffer = latest(2, rows(0, 3))
    buffer.add(rows(3, 1)[0])
    buffer.storage[1] = rows(50, 1)[0]
    assert buffer[:]["action"].tolist() == [0, 50, 2, 3]
    buffer.storage[:] = rows(10, 4)
    assert buffer[:]["action"].tolist() == [10, 11, 12, 13]
    buffer.add(rows(99, 1)[0])
    assert buffer[:]["action"].tolist() == [13, 99]


def test_state_goes_through_a_file_and_goes_on_exactly(tmp_path):
    one, other = latest(2, *(rows(20 * k, 20) for k in range(3))), latest(2)
    through_a_file(tmp_path, one, other)
    for step in range(3):
        by_seed(step)
        expected = one.sample()
        by_seed(step)
        assert_equal(other.sample(), expected, but=())
        one.extend(rows(100 + 7 * step, 7))
        other.extend(rows(100 + 7 * step, 7))
    assert len(other) == len(one) == 14
    assert_equal(other[:], one[:])


def test_emptied_or_with_an_empty_state_it_starts_anew():
    empty = latest(3).state_dict()
    for forget in (lambda b: b.load_state_dict(empty), lambda b: b.empty()):
        buffer = latest(3, rows(0, 5), rows(5, 5))
        forget(buffer)
        assert len(buffer) == 0
        buffer.extend(rows(50, 4))
        assert buffer[:]["action"].tolist() == [50, 51, 52, 53]
        assert set(buffer.sample()["action"].tolist()) <= {50, 51, 52, 53}


def test_bad_arguments():
    with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
        LatestStorage(0)
    with pytest.raises(ValueError, match=r"shape \(rows,\) are needed, got \(2, 2\)"):
        latest(2).extend(rows(0, 4).reshape(2, 2))
    with pytest.raises((RuntimeError, ValueError), match=r"at least one|rows,\) are needed"):
        latest(2).extend(rows(0, 0))
