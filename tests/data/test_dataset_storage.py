"""Datasets in replay buffers: read-only, drawn as TorchRL would, known by their fingerprint."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from rows import assert_all_equal, buffer_of, by_seed, rows, through_a_file
from torchrl.data import (
    ImmutableDatasetWriter,
    LazyTensorStorage,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
)
from torchrl.envs.transforms import RewardScaling

from composerl.data import Dataset, DatasetStorage, observation_stats

KEYS = {"observation", "action", "next", "index"}


@pytest.fixture
def data(raw):
    return Dataset.from_arrays(raw, "file")


def replay(data, batch_size=16, mc_gamma=None, **parts):
    storage = DatasetStorage(data, mc_gamma=mc_gamma)
    return TensorDictReplayBuffer(storage=storage, batch_size=batch_size, **parts)


def test_every_row_is_held_in_torchrl_layout(data, raw):
    content = replay(data)[:]
    following = content["next"]
    assert content.batch_size == (5,)
    assert torch.equal(content["observation"], torch.tensor(raw["observations"]))
    assert torch.equal(content["action"], torch.tensor(raw["actions"]))
    assert torch.equal(following["observation"], torch.tensor(raw["next_observations"]))
    assert following["reward"].tolist() == [[1], [2], [3], [4], [5]]
    assert following["terminated"].tolist() == [[False]] * 4 + [[True]]
    assert following["truncated"].tolist() == [[i == 2] for i in range(5)]
    assert following["done"].tolist() == [[i in (2, 4)] for i in range(5)]
    assert following["reward"].dtype == torch.float32


def test_a_sample_is_rows_of_the_dataset(data):
    """Every key of a sampled row comes from one row: observation, action and reward agree."""
    buffer = replay(data, 64)
    batch = buffer.sample()
    assert batch.batch_size == (64,)
    assert set(batch["index"].tolist()) == {0, 1, 2, 3, 4}
    for key in ("observation", "action", ("next", "reward"), ("next", "done")):
        assert torch.equal(batch[key], buffer[:][key][batch["index"]])
    assert torch.equal(batch["next", "observation"], batch["observation"] + 1)


@pytest.mark.parametrize("kind", ["floats", "discrete", "images"])
def test_draws_what_torchrl_s_storage_would(raw, kind):
    if kind != "floats":
        raw["actions"] = np.array([0, 1, 2, 3, 4])
    if kind == "images":
        for key in ("observations", "next_observations"):
            raw[key] = np.tile(raw[key].astype(np.uint8)[:, :, None, None], (1, 1, 2, 2))
    ours = replay(Dataset.from_arrays(raw, "file"))
    theirs = buffer_of(0, ours[:].clone(), storage=LazyTensorStorage(5), batch_size=16)
    drawn = []
    for buffer in (ours, theirs):
        by_seed(3)
        drawn.append([buffer.sample(), buffer.sample()])
    assert_all_equal(*drawn)
    for batch in drawn[0]:
        assert set(batch.keys()) == KEYS
        assert torch.equal(batch["observation"], torch.tensor(raw["observations"])[batch["index"]])
        assert torch.equal(batch["action"], torch.tensor(raw["actions"])[batch["index"]])


def test_a_batch_is_free_to_write_to(data):
    buffer = replay(data, 4)
    before = buffer[:].clone()
    first = buffer.sample()
    kept = first.clone()
    first["priority"] = torch.ones(4)
    buffer.sample()["next", "reward"].fill_(99)
    assert (first.exclude("priority") == kept).all()
    assert (buffer[:] == before).all()


def test_transforms_and_samplers_of_torchrl(data):
    buffer = replay(data, 5, sampler=SamplerWithoutReplacement())
    for _ in range(3):
        assert sorted(buffer.sample()["index"].tolist()) == [0, 1, 2, 3, 4]
    scaling = RewardScaling(loc=0.0, scale=10.0, in_keys=[("next", "reward")])
    batch = replay(data, 8, transform=scaling).sample()
    assert torch.equal(batch["next", "reward"][:, 0], 10.0 * (batch["index"] + 1))
    batch, info = replay(data, 3).sample(return_info=True)
    assert torch.equal(info["index"], batch["index"])
    slices = SliceSampler(slice_len=2, end_key=("next", "done"))
    index = replay(data, 40, sampler=slices).sample()["index"].reshape(20, 2)
    assert {tuple(pair) for pair in index.tolist()} == {(0, 1), (1, 2), (3, 4)}


def test_it_is_read_only(data):
    buffer = replay(data, 2)
    for write in (
        lambda: buffer.extend(rows(0, 2)),
        lambda: buffer.add(rows(0, 1)[0]),
        lambda: buffer.__setitem__(0, rows(0, 1)[0]),
    ):
        with pytest.raises(RuntimeError, match="a dataset is read-only"):
            write()
    assert len(buffer) == 5
    with pytest.raises(RuntimeError, match="allow writing"):
        replay(data, 2, writer=ImmutableDatasetWriter()).extend(buffer.sample())
    data.rewards[0] = 77.0
    assert buffer[:]["next", "reward"][0] == 1.0


def test_returns_that_follow_are_handed_out(raw):
    """gamma = 0.5, rewards doubled, within each episode."""
    data = Dataset(**raw)
    data = replace(data, rewards=2 * data.rewards)
    batch = replay(data, 64, mc_gamma=0.5).sample()
    assert batch["mc_return"].shape == (64, 1)
    expected = 2 * np.array([2.75, 3.5, 3.0, 6.5, 5.0])
    np.testing.assert_allclose(batch["mc_return"].squeeze(-1), expected[batch["index"]])
    assert "mc_return" not in replay(data, 4).sample()


def test_statistics_of_the_observations(data, raw):
    mean, std = observation_stats(data)
    np.testing.assert_allclose(mean, raw["observations"].mean(0), rtol=1e-6)
    np.testing.assert_allclose(std, raw["observations"].std(0), rtol=1e-6)
    assert (mean.dtype, std.dtype) == (torch.float32, torch.float32)


def test_std_has_a_floor(raw):
    raw["observations"][:, 1] = 4.0
    mean, std = observation_stats(Dataset.from_arrays(raw, "file"))
    assert mean[1] == 4.0
    assert std[1] == pytest.approx(1e-3)


def test_pixels_stay_bytes(raw):
    for key in ("observations", "next_observations"):
        raw[key] = raw[key].astype(np.uint8)
    data = Dataset.from_arrays(raw, "file")
    assert replay(data, 3).sample()["observation"].dtype == torch.uint8
    assert observation_stats(data)[0].tolist() == pytest.approx([4.8] * 3)


def test_state_is_the_fingerprint(data, tmp_path):
    storage = DatasetStorage(data)
    assert storage.state_dict() == {"fingerprint": data.fingerprint}
    through_a_file(tmp_path, replay(data), replay(data))
    other = DatasetStorage(replace(data, rewards=2 * data.rewards))
    with pytest.raises(ValueError, match="the dataset is not the one of the checkpoint"):
        other.load_state_dict(storage.state_dict())
    with pytest.raises(ValueError, match="the dataset is not the one of the checkpoint"):
        other.load_state_dict({})


def test_a_samplers_state_is_kept(data, tmp_path):
    torch.manual_seed(0)
    one, other = (replay(data, 2, sampler=SamplerWithoutReplacement()) for _ in range(2))
    seen = one.sample()["index"].tolist()
    through_a_file(tmp_path, one, other)
    assert not set(seen) & set(other.sample()["index"].tolist())


def test_it_can_be_pickled_for_workers(data):
    buffer = pickle.loads(pickle.dumps(replay(data, 4)))
    batch = buffer.sample()
    assert torch.equal(batch["next", "observation"], batch["observation"] + 1)
    assert buffer.storage.fingerprint == data.fingerprint


def test_an_empty_dataset_is_refused(raw):
    none = Dataset(**{key: value[:0] for key, value in raw.items()}, source="some.npz")
    with pytest.raises(ValueError, match=r"some.npz is empty, expected at least one row"):
        DatasetStorage(none)
