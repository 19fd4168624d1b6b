"""Prioritized sampling, with TorchRL's trees or ours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import prioritized

from composerl.data import PrioritizedSampler
from composerl.data.replay.prioritized import _MinTree, _SumTree


@pytest.mark.parametrize("capacity", [1, 7, 1024, 1025, 20_000])
def test_trees_against_plain_sums(capacity):
    """Numbers of very different sizes, written over and over; each share finds its number."""
    rng = np.random.default_rng(0)
    values = np.zeros(capacity)
    sums, mins = _SumTree(capacity), _MinTree(capacity)
    for _ in range(50):
        index = rng.integers(0, capacity, 64)
        numbers = np.exp(3 * rng.standard_normal(64)).astype(np.float32)
        for array in (values, sums, mins):  # of a row that comes twice, the last number counts
            array[index] = numbers
    assert np.array_equal(sums[np.arange(capacity)], values)
    assert sums.top.sum() == pytest.approx(values.sum(), rel=1e-12)
    assert mins.top.min() == values[values > 0].min()
    ends = values.cumsum() / values.sum()
    shares = np.concatenate([rng.random(20_000), ends * (1 - 1e-9), ends[:-1] * (1 + 1e-9)])
    shares = shares[shares < 1]
    found = sums.find(shares)
    assert np.array_equal(found, np.searchsorted(ends, shares, side="right"))
    assert values[sums.find(np.array([0.0, np.nextafter(1, 0)]))].all()  # never one unwritten


@pytest.mark.parametrize("rng", [None, 0])
def test_the_distribution_is_that_of_the_formula(rng):
    """4000 rows, a million draws: the chi-square statistic has mean 3999 and deviation 89."""
    sampler = PrioritizedSampler(5000, 0.7, 0.5)
    storage = LazyTensorStorage(5000)
    storage.set(range(4000), TensorDict({"x": torch.arange(4000)}, [4000]))
    priorities = torch.randn(4000, generator=torch.Generator().manual_seed(0)).exp()
    sampler.update_priority(torch.arange(4000), priorities)
    sampler._rng = None if rng is None else torch.Generator().manual_seed(rng)
    np.random.seed(0)
    index, info = sampler.sample(storage, 1_000_000)
    powers = (priorities.double() + 1e-8) ** 0.7
    expected = 1_000_000 * powers / powers.sum()
    drawn = torch.bincount(index, minlength=4000)
    assert abs(((drawn - expected) ** 2 / expected).sum() - 3999) < 4 * 89
    weights = (powers / powers.min()) ** -0.5
    torch.testing.assert_close(info["priority_weight"].double(), weights[index], rtol=1e-6, atol=0)


def test_draws_in_proportion_to_the_priorities_and_weights_correct_it():
    """alpha 0.5, beta 1: rows of priority 1, 4, 9, 16 are drawn 1 : 2 : 3 : 4.

    Their weights are (p_min/p)^(alpha*beta) = 1, 1/2, 1/3, 1/4, so draws times weights are even.
    """
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(4), sampler=PrioritizedSampler(4, 0.5, 1.0), batch_size=20_000
    )
    index = buffer.extend(TensorDict({"x": torch.arange(4)}, [4]))
    buffer.update_priority(index, torch.tensor([1.0, 4, 9, 16]))
    np.random.seed(0)
    batch = buffer.sample()
    share = torch.bincount(batch["x"]) / len(batch)
    assert share.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.01)
    for row, weight in enumerate([1.0, 1 / 2, 1 / 3, 1 / 4]):
        got = batch["priority_weight"][batch["x"] == row]
        assert torch.allclose(got, torch.tensor(weight), rtol=1e-4)
    assert batch["priority_weight"].dtype == torch.float32


def test_new_rows_get_the_largest_priority():
    sampler = PrioritizedSampler(10, 1.0, 0.4)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), sampler=sampler, batch_size=5000)
    index = buffer.extend(TensorDict({"x": torch.arange(2)}, [2]))
    buffer.update_priority(index, torch.tensor([1.0, 3.0]))
    buffer.extend(TensorDict({"x": torch.arange(2, 4)}, [2]))
    np.random.seed(0)
    share = torch.bincount(buffer.sample()["x"]) / 5000
    assert share.tolist() == pytest.approx([0.1, 0.3, 0.3, 0.3], abs=0.03)


@pytest.mark.skipif(prioritized.SumSegmentTreeFp32 is None, reason="TorchRL's extension is missing")
def test_same_draws_as_torchrl_s_trees(monkeypatch):
    drawn = []
    for missing in (False, True):
        if missing:
            monkeypatch.setattr(prioritized, "SumSegmentTreeFp32", None)
        sampler = PrioritizedSampler(300, 0.7, 0.5)
        storage = LazyTensorStorage(300)
        storage.set(range(300), TensorDict({"x": torch.arange(300)}, [300]))
        priorities = torch.rand(300, generator=torch.Generator().manual_seed(0))
        sampler.update_priority(torch.arange(300), priorities)
        np.random.seed(0)
        drawn.append(sampler.sample(storage, 5000))
    (theirs, their_info), (ours, our_info) = drawn
    assert (theirs != ours).float().mean() < 0.01  # float32 sums against float64
    same = theirs == ours
    weights = their_info["priority_weight"], our_info["priority_weight"]
    assert torch.allclose(weights[0][same], weights[1][same], rtol=1e-4)


def test_no_warning_about_the_extension(caplog, capfd):
    PrioritizedSampler(10, 0.6, 0.4)
    assert "C++" not in caplog.text
    assert "C++" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("priority", "words"),
    [(float("nan"), "positive numbers, the least is nan"), (float("inf"), "their sum is inf")],
)
def test_priorities_that_are_no_numbers_are_said(priority, words):
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(4), sampler=PrioritizedSampler(4, 0.6, 0.4), batch_size=2
    )
    index = buffer.extend(TensorDict({"x": torch.arange(4)}, [4]))
    buffer.update_priority(index, torch.tensor([1.0, priority, 1.0, 1.0]))
    with pytest.raises(RuntimeError, match=words):
        buffer.sample()


def test_what_torchrl_does_with_its_trees_it_does_with_these(tmp_path):
    """Storages of two dimensions, another alpha, the largest of those that are left, folders."""
    kwargs = {"max_priority_within_buffer": True}
    samplers = [PrioritizedSampler(12, 1.0, 1.0, **kwargs) for _ in range(2)]
    buffer, other = (
        TensorDictReplayBuffer(
            storage=LazyTensorStorage(12, ndim=2), sampler=sampler, batch_size=20_000
        )
        for sampler in samplers
    )
    data = TensorDict({"x": torch.arange(12).reshape(3, 4)}, [3, 4])
    buffer.extend(data.clone())

    def share_of_five():
        return (buffer.sample()["x"] == 5).float().mean().item()

    def set_five(priority):
        batch = buffer.sample()  # large enough to hold all rows
        batch["td_error"] = torch.where(batch["x"] == 5, priority, 1.0)
        buffer.update_tensordict_priority(batch)

    np.random.seed(0)
    set_five(25.0)
    assert share_of_five() == pytest.approx(25 / 36, abs=0.02)
    samplers[0].alpha = 0.5
    assert share_of_five() == pytest.approx(5 / 16, abs=0.02)
    set_five(2.0)
    assert float(samplers[0].default_priority) == pytest.approx(2.0)
    samplers[0].dumps(tmp_path / "sampler")
    other.extend(data.clone())
    samplers[1].loads(tmp_path / "sampler")
    np.random.seed(1)
    expected = buffer.sample()
    np.random.seed(1)
    assert torch.equal(other.sample()["x"], expected["x"])
