"""The packed storage: TorchRL's content, in TorchRL's buffers, with TorchRL's parts."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from rows import assert_all_equal, assert_equal, buffer_of, by_seed, goes_on, rows, through_a_file
from tensordict import TensorDict
from torchrl.data import (
    ImmutableDatasetWriter,
    LazyTensorStorage,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)
from torchrl.data.replay_buffers import Sequence
from torchrl.envs import (
    DTypeCastTransform,
    MultiStepTransform,
    RenameTransform,
    RewardScaling,
)

from composerl.data import PackedStorage, PrioritizedSampler


def both(use, fill=30, kind=TensorDictReplayBuffer, size=20, **parts):
    """What comes of it with our storage, and with TorchRL's."""
    results = []
    for storage in (PackedStorage(size), LazyTensorStorage(size)):
        by_seed(0)
        made = {name: part() if callable(part) else part for name, part in parts.items()}
        buffer = kind(storage=storage, **{"batch_size": 12} | made)
        for k in range(0, fill, 5):
            buffer.extend(rows(k, 5))
        results.append(use(buffer))
    return results


@pytest.mark.parametrize("seed", range(5))
def test_the_content_is_torchrl_s_whatever_is_written(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(5, 40))
    ours = buffer_of(size)
    theirs = TensorDictReplayBuffer(storage=LazyTensorStorage(size), batch_size=12)
    t = 0
    for _ in range(30):
        number = int(rng.integers(1, size + 1))
        batch = rows(t, number)
        assert torch.equal(ours.extend(batch.clone()), theirs.extend(batch))
        t += number
        assert len(ours) == len(theirs)
        assert_equal(ours[:], theirs[:])
        by_seed(t)
        drawn = ours.sample()
        by_seed(t)
        assert_equal(drawn, theirs.sample(), but=())


@pytest.mark.parametrize("fill", [10, 30])
@pytest.mark.parametrize(
    "index",
    [
        slice(None),
        slice(1, 8, 2),
        2,
        -1,
        [1, 7, 3],
        range(3),
        torch.tensor([4, 2]),
        np.array([5, 6]),
        torch.tensor([[1, 2], [3, 4]]),
        torch.arange(10) > 6,
    ],
    ids=str,
)
def test_rows_are_read_by_any_index(index, fill):
    if isinstance(index, torch.Tensor) and index.dtype == torch.bool and fill == 30:
        index = torch.arange(20) > 6
    assert_equal(*both(lambda buffer: buffer[index], fill))


@pytest.mark.parametrize("fill", [10, 30])
@pytest.mark.parametrize(
    ("index", "number"),
    [
        (3, None),
        (-1, None),
        (np.int64(4), None),
        ([1, 2], 2),
        ([0, 5, 2], 3),  # as far apart as three in a row
        (range(2, 4), 2),
        (slice(2, 4), 2),
        (torch.tensor([7, 3]), 2),
        (np.array([7, 3]), 2),
        (torch.arange(20) < 2, 2),
    ],
    ids=str,
)
def test_rows_are_written_to_any_index(index, number, fill):
    def write(buffer):
        buffer[index] = rows(100, 1)[0] if number is None else rows(100, number)
        assert len(buffer) == min(fill, 20)
        return buffer.storage._storage[: max(fill, 20)] if fill == 30 else buffer[:]

    assert_equal(*both(write, fill))


def test_writing_to_an_index_does_not_move_the_ring():
    def write(buffer):
        buffer[[15, 2]] = rows(100, 2)
        buffer.extend(rows(200, 2))
        return buffer[:]

    assert_equal(*both(write))
    assert_equal(*both(write, fill=20))


def test_one_row_a_list_and_a_lazy_stack_are_written():
    assert_equal(*both(lambda b: (b.add(rows(50, 1)[0]), b[:])[1]))
    assert_equal(*both(lambda b: (b.add(rows(50, 1)[0]), b[:])[1], fill=0))
    stack = TensorDict.lazy_stack(list(rows(40, 6).unbind(0)))
    assert_equal(*both(lambda b: (b.extend(stack.clone()), b[:])[1]))
    several = list(rows(40, 6).unbind(0))
    assert_equal(*both(lambda b: (b.extend(several), b[:])[1], kind=ReplayBuffer))


def test_a_buffer_of_any_kind_hands_out_rows():
    assert_equal(*both(lambda buffer: buffer.sample(), kind=ReplayBuffer))
    batch, info = buffer_of(20, rows(0, 9), batch_size=4).sample(return_info=True)
    assert torch.equal(info["index"], batch["index"])
    assert torch.equal(batch["action"], batch["index"])
    pair = buffer_of(20, rows(0, 5)), buffer_of(20, rows(10, 5))
    drawn = ReplayBufferEnsemble(*pair, batch_size=8, sample_from_all=True).sample()
    assert set(drawn["action"][0].tolist()) <= set(range(5))
    assert set(drawn["action"][1].tolist()) <= set(range(10, 15))


def test_emptied_it_starts_anew():
    def again(buffer):
        buffer.empty()
        assert len(buffer) == 0
        buffer.extend(rows(60, 3))
        return buffer[:]

    ours, theirs = both(again)
    assert_equal(ours, theirs)
    assert ours["action"].tolist() == [60, 61, 62]


@pytest.mark.parametrize(
    "make",
    [
        SamplerWithoutReplacement,
        lambda: SliceSampler(slice_len=3, traj_key=("collector", "traj_ids"), strict_length=False),
        lambda: SliceSampler(num_slices=4, end_key=("next", "done"), strict_length=False),
        lambda: SliceSamplerWithoutReplacement(slice_len=2, end_key=("next", "done")),
        lambda: PrioritizedSampler(20, 0.6, 0.4),
    ],
    ids=["without", "slices by id", "slices by end", "slices without", "prioritized"],
)
@pytest.mark.parametrize("fill", [15, 35])
def test_samplers_of_torchrl_draw_the_same(make, fill):
    assert_all_equal(*both(lambda b: [b.sample() for _ in range(3)], fill, sampler=make))
    assert_all_equal(*both(goes_on, fill, sampler=make))


def test_a_slice_is_of_one_episode():
    sampler = SliceSampler(slice_len=4, traj_key=("collector", "traj_ids"))
    buffer = buffer_of(30, *(rows(k, 5) for k in range(0, 45, 5)), sampler=sampler, batch_size=80)
    drawn = buffer.sample().reshape(20, 4)
    ids = drawn["collector", "traj_ids"]
    assert torch.equal(ids, ids[:, :1].expand(-1, 4))
    assert torch.equal(drawn["action"][:, 1:], drawn["action"][:, :-1] + 1)


def test_a_pass_without_replacement_has_every_row_once():
    buffer = buffer_of(20, rows(0, 20), sampler=SamplerWithoutReplacement(), batch_size=5)
    seen = torch.cat([batch["action"] for batch in buffer])
    assert sorted(seen.tolist()) == list(range(20))
    assert_equal(
        *both(lambda b: torch.stack(list(b)), sampler=SamplerWithoutReplacement, batch_size=5)
    )


@pytest.mark.parametrize(
    "transform",
    [
        lambda: RenameTransform(["obs"], ["observation"], ["obs"], ["observation"]),
        lambda: DTypeCastTransform(
            torch.float32, torch.float64, in_keys=["observation"], in_keys_inv=["observation"]
        ),
        lambda: MultiStepTransform(3, 0.9),
        lambda: RewardScaling(0.0, 10.0, in_keys=[("next", "reward")]),
    ],
    ids=["rename", "cast", "n-step", "scale"],
)
def test_transforms_act_on_what_is_written_and_on_what_is_sampled(transform):
    def use(buffer):
        return TensorDict({"stored": buffer.storage.get(slice(None)), "drawn": buffer.sample()})

    but = [("stored", "index")]
    assert_equal(*both(use, transform=transform), but)


def test_an_inverse_transform_decides_what_is_stored():
    cast = DTypeCastTransform(
        torch.float16, torch.float32, in_keys=["observation"], in_keys_inv=["observation"]
    )
    buffer = buffer_of(20, rows(0, 9), transform=cast)
    assert buffer.storage.column("observation").dtype == torch.float16
    assert buffer.sample()["observation"].dtype == torch.float32


def test_sequences_and_writers_of_torchrl():
    assert_equal(*both(lambda b: b.sample(), sample_unit=lambda: Sequence(length=3)))
    best = both(lambda b: b[:], writer=lambda: TensorDictMaxValueWriter(rank_key="action"))
    assert_equal(*best)
    storage = PackedStorage(20)
    storage.set(range(12), rows(0, 12))
    fixed = TensorDictReplayBuffer(storage=storage, writer=ImmutableDatasetWriter(), batch_size=4)
    assert fixed.sample()["action"].max() < 12
    with pytest.raises(RuntimeError, match="allow writing"):
        fixed.extend(rows(0, 1))


def test_another_generator_and_prefetching():
    drawn = []
    for storage in (PackedStorage(20), LazyTensorStorage(20)):
        buffer = buffer_of(20, rows(0, 20), storage=storage, prefetch=1)  # more draw in any order
        buffer.set_rng(torch.Generator().manual_seed(5))
        drawn.append(torch.stack([buffer.sample() for _ in range(4)]))
    assert_equal(*drawn, but=())


def test_copies_and_pickles_are_buffers_of_their_own():
    one = buffer_of(20, rows(0, 5))
    for other in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        other.extend(rows(5, 3))
        assert len(one) == 5
        assert_equal(other[:], rows(0, 8))
        assert other.sample()["action"].max() < 8


@pytest.mark.parametrize("kind", [PackedStorage, LazyTensorStorage])
@pytest.mark.parametrize("stored", [0, 10, 45])
@pytest.mark.parametrize(
    "make",
    [
        lambda: {},
        lambda: {"sampler": SamplerWithoutReplacement()},
        lambda: {"sampler": PrioritizedSampler(20, 0.6, 0.4)},
        lambda: {"sampler": SliceSampler(slice_len=2, end_key=("next", "done"))},
    ],
    ids=["random", "without", "prioritized", "slices"],
)
def test_a_state_goes_on_exactly(kind, stored, make, tmp_path):
    """Also that of TorchRL's storage, which has shapes, devices and unwritten memory in it."""

    def build():
        return buffer_of(storage=kind(20), **make())

    one = build()
    for k in range(0, stored, 5):
        one.extend(rows(k, 5))
        batch = one.sample()
        batch["td_error"] = torch.rand(len(batch))
        one.update_tensordict_priority(batch)
    other = build()
    through_a_file(tmp_path, one, other)
    assert len(other) == len(one) == min(stored, 20)
    if stored:
        assert_equal(other[:], one[:])
    assert_all_equal(goes_on(other), goes_on(one))
    assert_equal(other[:], one[:])


def test_a_folder_of_torchrl_s_goes_on(tmp_path):
    one, other = buffer_of(20, rows(0, 15), rows(15, 10)), buffer_of(20)
    one.dumps(tmp_path / "buffer")
    other.loads(tmp_path / "buffer")
    assert_equal(other[:], one[:])
    assert_all_equal(goes_on(other), goes_on(one))


def test_a_state_takes_room_for_the_content_only():
    def size(buffer):
        return sum(table.nbytes for table in buffer.state_dict()["_storage"]["tables"])

    small, large = buffer_of(100, rows(0, 20)), buffer_of(1_000_000, rows(0, 20))
    # two observations of two floats, a reward, an action, an id, three flags
    assert size(small) == size(large) == 20 * (5 * 4 + 2 * 8 + 3)
    large.extend(rows(20, 20))
    assert size(large) == 40 * (5 * 4 + 2 * 8 + 3)


def test_pixels_stay_bytes_and_an_empty_state_is_one():
    buffer, other = buffer_of(20, batch_size=4), buffer_of(20, batch_size=4)
    other.load_state_dict(buffer.state_dict())
    pixels = rows(0, 5)
    for where in (pixels, pixels["next"]):
        where["observation"] = torch.randint(0, 255, (5, 1, 8, 8), dtype=torch.uint8)
    other.extend(pixels)
    assert other.sample()["observation"].dtype == torch.uint8
    assert torch.equal(other[:]["observation"], pixels["observation"])
    assert other.add(pixels[0]) == 5
    other.load_state_dict(buffer.state_dict())
    assert len(other) == 0


def test_a_batch_is_free_to_write_to():
    buffer = buffer_of(20, rows(0, 9))
    before = buffer[:].clone()
    first = buffer.sample()
    kept = first.clone()
    first["priority"] = torch.ones(12)
    buffer.sample()["next", "reward"].fill_(99)
    assert_equal(first.exclude("priority"), kept, but=())
    assert_equal(buffer[:], before)


def test_keys_are_those_of_the_first_rows():
    buffer = buffer_of(20, rows(0, 3))
    buffer.extend(rows(3, 3).set("extra", torch.ones(3)))
    assert "extra" not in buffer.sample()
    with pytest.raises(ValueError, match=r"rows lack \('action',\)"):
        buffer.extend(rows(6, 3).exclude("action"))
    wide = rows(6, 3).set("observation", torch.zeros(3, 5))
    with pytest.raises(ValueError, match=r"'observation',\) has shape \(5,\).*but \(2,\)"):
        buffer.extend(wide)
    doubled = rows(6, 3).set("observation", torch.zeros(3, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"type torch.float64.*torch.float32 were stored before"):
        buffer.extend(doubled)


def test_misuse_is_said():
    with pytest.raises(ValueError, match="max_size must be at least 1, got 0"):
        PackedStorage(0)
    buffer = buffer_of(4)
    with pytest.raises(RuntimeError, match=r"storage|empty"):
        buffer.sample()
    with pytest.raises(ValueError, match="6 rows does not fit into 4"):
        buffer.extend(rows(0, 6))
    with pytest.raises(ValueError, match=r"got \(2, 2\): extend the buffer by batch.reshape"):
        buffer.extend(rows(0, 4).reshape(2, 2))
    buffer.extend(rows(0, 1))
    larger = buffer_of(8, rows(0, 8))
    with pytest.raises(ValueError, match="capacity of 8, this one takes 4"):
        buffer.load_state_dict(larger.state_dict())
    with pytest.raises(ValueError, match="capacity of 4, this one takes 8"):
        larger.load_state_dict(buffer.state_dict())
