"""Prioritized sampling, with TorchRL's trees or ours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import prioritized

from composerl.data import PrioritizedSampler
from composerl.data.replay.prioritized import _MinGroups, _SumGroups


@pytest.mark.parametrize("capacity", [1, 7, 128, 129, 1000])
def test_groups_against_plain_sums(capacity):
    rng = np.random.default_rng(0)
    values = np.zeros(capacity, np.float32)
    sums, mins = _SumGroups(capacity), _MinGroups(capacity)
    written = 0
    for _ in range(20):
        index = rng.integers(0, capacity, 8)
        index = np.unique(index)
        values[index] = rng.random(len(index)).astype(np.float32) + 0.01
        written = max(written, int(index.max()) + 1)
        for tree in (sums, mins):
            tree[torch.from_numpy(index)] = torch.from_numpy(values[index])
    stored = np.where(values > 0, values, np.inf)
    for stop in {1, capacity // 2 or 1, capacity}:
        assert sums.query(0, stop) == pytest.approx(values[:stop].astype(float).sum())
        assert mins.query(0, stop) == stored[:stop].min()
    total = values.astype(float).sum()
    mass = np.linspace(0, total * (1 - 1e-9), 50)
    expected = np.searchsorted(values.astype(float).cumsum(), mass, side="right")
    assert np.abs(sums.scan_lower_bound(mass).numpy() - expected).max() == 0


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
