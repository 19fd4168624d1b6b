"""Two buffers as one: an exact share in every batch, each with its own parts and state."""

from __future__ import annotations

import pytest
import torch
from rows import assert_equal, buffer_of, by_seed, rows, through_a_file
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
from torchrl.envs import RewardScaling

from composerl.data import (
    DatasetStorage,
    LatestStorage,
    MixedReplayBuffer,
    NStep,
    PackedStorage,
    WholeEpisodes,
    generate,
)
from composerl.data.replay import storage as storage_module


def mixed(share, size=10, first=40, second=40, **parts):
    """Rows below 1000 are of the first buffer, the others of the second."""
    pair = [TensorDictReplayBuffer(storage=PackedStorage(1000)) for _ in range(2)]
    pair[0].extend(rows(0, first))
    if second:
        pair[1].extend(rows(1000, second))
    return MixedReplayBuffer(*pair, offline_fraction=share, batch_size=size)


@pytest.mark.parametrize(
    ("size", "share", "expected"),
    [(256, 0.05, 13), (256, 0.0, 0), (256, 1.0, 256), (10, 0.5, 5), (32, 0.1, 3), (10, 0.3, 3)],
)
def test_the_share_is_exact_in_every_batch(size, share, expected):
    """5 % of 256 are 12.8 rows: 13, in each batch and not only in the mean."""
    buffer = mixed(share, size)
    for _ in range(20):
        drawn = buffer.sample()
        assert drawn.shape == (size,)
        first = drawn["action"] < 1000
        assert first.sum() == expected
        assert first[:expected].all()  # then the others
        # all that is in a row is of that row
        assert torch.equal(drawn["observation"][:, 0], drawn["action"].float())
        assert torch.equal(drawn["next", "reward"].squeeze(-1), drawn["action"] / 8)
        assert torch.equal(drawn["index"], drawn["action"] % 1000)
    assert buffer.sample(2 * size)["action"].lt(1000).sum() == round(share * 2 * size)


def test_all_are_of_the_first_until_the_second_has_some():
    buffer = mixed(0.25, second=0)
    assert len(buffer) == 40
    assert buffer.sample()["action"].lt(1000).all()
    assert torch.equal(buffer.extend(rows(1000, 3)), torch.arange(3))
    assert len(buffer) == 43
    assert buffer.sample()["action"].lt(1000).sum() == round(2.5)


def test_the_keys_of_both_alone_are_sampled():
    """What only one of them has (ids of a collector, say) is left out."""
    real = buffer_of(50, rows(0, 40), batch_size=None)
    imagined = buffer_of(storage=LatestStorage(2), batch_size=None)
    imagined.extend(rows(1000, 20).exclude("collector", ("next", "truncated")))
    drawn = MixedReplayBuffer(real, imagined, batch_size=8).sample()
    assert set(drawn.keys()) == {"observation", "action", "next", "index"}
    assert set(drawn["next"].keys()) == {"observation", "reward", "terminated", "done"}
    assert drawn["next"].batch_size == (8,)


def test_buffers_keep_their_samplers_transforms_and_units():
    stock = buffer_of(
        0,
        rows(0, 20),
        storage=LazyTensorStorage(50),
        sampler=SamplerWithoutReplacement(),
        transform=RewardScaling(0.0, 8.0, in_keys=[("next", "reward")]),
        batch_size=5,
    )
    ahead = buffer_of(50, rows(1001, 3), sample_unit=NStep(3, 1.0), batch_size=5)
    buffer = MixedReplayBuffer(stock, ahead, batch_size=10)
    drawn = torch.cat([buffer.sample() for _ in range(4)])
    first = drawn["action"] < 1000
    assert sorted(drawn["action"][first].tolist()) == list(range(20))
    assert torch.equal(drawn["next", "reward"][first].squeeze(-1), drawn["action"][first].float())
    expected = {1001: 3006 / 8, 1002: 2005 / 8, 1003: 1003 / 8}
    for row in drawn[~first]:
        assert row["next", "reward"].item() == expected[row["action"].item()]


def test_a_joined_batch_is_free_to_write_to():
    buffer = mixed(0.5)
    kept = buffer.online_buffer[:].clone()
    drawn = buffer.sample()
    drawn["td_error"] = torch.ones(10)
    drawn["next"]["reward"].fill_(99.0)
    assert_equal(buffer.online_buffer[:], kept)
    assert drawn.to(torch.float64)["observation"].dtype == torch.float64
    assert isinstance(drawn, TensorDict)


def test_its_state_is_that_of_both(tmp_path):
    one, other = mixed(0.3), mixed(0.3, first=7, second=0)
    one.extend(rows(1100, 60))
    through_a_file(tmp_path, one, other)
    for step in range(4):
        by_seed(step)
        expected = one.sample()
        by_seed(step)
        assert_equal(other.sample(), expected, but=())
        one.extend(rows(2000 + step, 1))
        other.extend(rows(2000 + step, 1))
    assert_equal(other.online_buffer[:], one.online_buffer[:])


def test_another_dataset_is_refused():
    def make(seed):
        data = generate("Pendulum-v1", "random", 200, seed)
        offline = TensorDictReplayBuffer(storage=DatasetStorage(data))
        return MixedReplayBuffer(offline, buffer_of(100))

    make(0).load_state_dict(make(0).state_dict())
    with pytest.raises(ValueError, match="the dataset is not the one of the checkpoint"):
        make(0).load_state_dict(make(1).state_dict())


def test_the_cost_of_a_step_does_not_grow_with_what_is_stored(monkeypatch):
    """Counted in rows that are read or written: at 2,000 stored ones as at 200,000."""
    touched = []
    gather, values = PackedStorage._gather, PackedStorage._values

    def counted_gather(self, index, tables):
        touched.append(index.numel())
        return gather(self, index, tables)

    def counted_values(self, column, data):
        touched.append(len(data))
        return values(self, column, data)

    monkeypatch.setattr(PackedStorage, "_gather", counted_gather)
    monkeypatch.setattr(PackedStorage, "_values", counted_values)
    whole = storage_module.nested

    def rounds(stored):
        online = TensorDictReplayBuffer(storage=PackedStorage(300_000), transform=WholeEpisodes())
        for k in range(0, stored, 1000):
            online.extend(rows(k, 1000, episode=100))
        offline = buffer_of(stored, rows(0, stored), batch_size=None)
        buffer = MixedReplayBuffer(offline, online, batch_size=64)
        assert len(online) == stored
        made = []

        def counted_nested(columns, shape):
            made.append(shape.numel())
            return whole(columns, shape)

        monkeypatch.setattr(storage_module, "nested", counted_nested)
        touched.clear()
        for k in range(stored, stored + 250):  # two episodes end
            buffer.extend(rows(k, 1, episode=100))
            buffer.sample()
        monkeypatch.setattr(storage_module, "nested", whole)
        assert len(online) == stored + 200
        return sum(touched), sum(made)

    small, large = rounds(2000), rounds(200_000)
    assert small == large
    assert small[0] == 250 * 64 + 200 * 7  # the samples, and each row once with its seven columns


def test_bad_arguments():
    pair = buffer_of(10), buffer_of(10)
    with pytest.raises(ValueError, match=r"offline_fraction must be in \[0, 1\], got 1.5"):
        MixedReplayBuffer(*pair, offline_fraction=1.5)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        MixedReplayBuffer(*pair, batch_size=0)
