"""Sequences: contiguous slices of one environment each, and the latents kept with them."""

from __future__ import annotations

import pytest
import torch
from rows import assert_all_equal, assert_equal, buffer_of, by_seed, through_a_file
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from composerl.data import Latents, PackedStorage, SequenceSampler


def records(start, steps, lanes=1, episode=5):
    """Record t of lane i has reward t and action i; its pixels are (t, i) too, modulo 256.

    Step by step, as they are stored.
    """
    t = torch.arange(start, start + steps).repeat_interleave(lanes)
    lane = torch.arange(lanes).repeat(steps)
    pixels = torch.stack([t % 256, lane], -1).to(torch.uint8)
    return TensorDict(
        {
            "observation": pixels.view(-1, 2, 1, 1).expand(-1, -1, 3, 3),
            "action": lane,
            "reward": t.float(),
            "first": t % episode == 0,
            "terminal": t % episode == episode - 1,
        },
        [lanes * steps],
    )


def replay(size, slices, length, lanes=1, latents=None, kind=PackedStorage):
    parts = {} if latents is None else {"transform": latents}
    return TensorDictReplayBuffer(
        storage=kind(size), sampler=SequenceSampler(length, lanes), batch_size=slices, **parts
    )


def check(batch, newest, lanes, kept):
    """Slices are successive in time, of one lane, with flags and pixels of their own record."""
    t = batch["reward"].long()
    assert torch.equal(t[:, 1:], t[:, :-1] + 1)
    assert torch.equal(batch["action"], batch["action"][:, :1].expand_as(t))
    assert torch.equal(batch["first"], t % 5 == 0)
    assert torch.equal(batch["terminal"], t % 5 == 4)
    assert batch["observation"].dtype == torch.uint8
    told = batch["observation"][:, :, :, 1, 2].long()
    assert torch.equal(told, torch.stack([t % 256, batch["action"]], -1))
    assert t.max() <= newest
    assert t.min() > newest - kept
    assert batch["action"].max() < lanes


@pytest.mark.parametrize("kind", [PackedStorage, LazyTensorStorage])
@pytest.mark.parametrize("chunk", [1, 4, 12])
@pytest.mark.parametrize(("lanes", "more"), [(1, 0), (3, 0), (3, 2)])
def test_slices_are_contiguous_whatever_the_write_head_does(lanes, more, chunk, kind):
    """A ring of 50 a lane, or nearly 51, filled five times over: no slice leads over the seam."""
    torch.manual_seed(0)
    buffer = replay(50 * lanes + more, 64, 9, lanes, kind=kind)
    for k in range(0, 250, chunk):
        buffer.extend(records(k, chunk, lanes))
        if k + chunk >= 10:
            batch = buffer.sample()
            assert batch.shape == (64, 10)
            check(batch, k + chunk - 1, lanes, 50 + bool(more))
    assert len(buffer) == 50 * lanes + more


def test_the_same_rows_as_with_torchrl_s_storage():
    drawn = []
    for kind in (PackedStorage, LazyTensorStorage):
        torch.manual_seed(0)
        buffer = replay(40, 6, 4, 2, kind=kind)
        batches = []
        for k in range(0, 60, 6):
            buffer.extend(records(k, 6, 2))
            batches.append(buffer.sample())
        drawn.append(batches)
    assert_all_equal(*drawn)


def test_every_slice_is_as_likely_as_every_other():
    """3 lanes, 25 records, slices of 1 + 4: 21 starts a lane, 63 in all."""
    torch.manual_seed(0)
    buffer = replay(3 * 25, 63 * 400, 4, 3)
    buffer.extend(records(0, 20, 3))
    buffer.extend(records(20, 12, 3))
    batch = buffer.sample()
    starts = batch["reward"][:, 0].long() * 3 + batch["action"][:, 0]
    assert starts.min() == 7 * 3
    counts = torch.bincount(starts - 21, minlength=63)
    assert len(counts) == 63
    assert counts.min() > 300
    assert counts.max() < 500


def test_the_first_flag_is_the_records_own_and_never_marks_a_slice():
    torch.manual_seed(0)
    buffer = replay(100, 32, 3)
    buffer.extend(records(1, 60, episode=1000))
    assert not buffer.sample()["first"].any()


def test_too_little_is_said_and_the_least_is_enough():
    buffer = replay(100, 4, 7, 2)
    with pytest.raises(RuntimeError, match=r"0 records of each environment.*takes 8"):
        buffer.sample()
    buffer.extend(records(0, 7, 2))
    with pytest.raises(RuntimeError, match=r"7 records of each environment.*takes 8.*collect more"):
        buffer.sample()
    buffer.extend(records(7, 1, 2))
    batch = buffer.sample()
    assert torch.equal(batch["reward"], torch.arange(8.0).expand(4, -1))


def leave(buffer, latents, batch):
    """Latents that tell the record."""
    deter = batch["reward"].unsqueeze(-1).expand(-1, -1, 5)
    stoch = torch.nn.functional.one_hot(batch["reward"].long().unsqueeze(-1) % 3, 3)
    written = {"deter": deter, "stoch": stoch.expand(-1, -1, 2, 3)}
    latents.write(buffer, batch.clone(False).update(written))


@pytest.mark.parametrize("with_latents", [False, True])
@pytest.mark.parametrize("stored", [0, 3, 30, 77])
@pytest.mark.parametrize("kind", [PackedStorage, LazyTensorStorage])
def test_its_state_goes_on_exactly(stored, with_latents, kind, tmp_path):
    def make():
        latents = Latents({"deter": (5,), "stoch": ((2, 3), torch.uint8)}) if with_latents else None
        return replay(100, 8, 5, 2, latents, kind), latents

    def go_on(buffer, latents):
        torch.manual_seed(1)
        batches = []
        for k in range(stored, stored + 70, 7):
            buffer.extend(records(k, 7, 2))
            batches.append(buffer.sample())
            if with_latents:
                leave(buffer, latents, batches[-1])
        return batches

    torch.manual_seed(0)
    one, other = make(), make()
    for k in range(stored):
        one[0].extend(records(k, 1, 2))
        if k > 5 and with_latents:
            leave(*one, one[0].sample())
    through_a_file(tmp_path, one[0], other[0])
    assert len(other[0]) == len(one[0]) == min(stored, 50) * 2
    assert_all_equal(go_on(*other), go_on(*one))


def test_a_wrapped_state_can_be_sampled_at_once(tmp_path):
    """The newest row is part of it, and may be anywhere."""
    one, other = replay(40, 8, 5), replay(40, 8, 5)
    one.extend(records(0, 40))
    one.extend(records(40, 17))
    through_a_file(tmp_path, one, other)
    by_seed(0)
    expected = one.sample()
    by_seed(0)
    assert_equal(other.sample(), expected, but=())
    check(expected, 56, 1, 40)


def test_slices_that_share_records_leave_the_latents_of_one_of_them():
    """The last one's, in every part, also where torch writes with several threads."""
    torch.manual_seed(0)
    latents = Latents({"deter": (512,), "stoch": (512,)})
    buffer = replay(200, 16, 64, latents=latents)
    buffer.extend(records(0, 200))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in range(5):
            batch = buffer.sample()
            number = torch.arange(16.0).view(16, 1, 1).expand(16, 65, 512)
            latents.write(buffer, batch.set("deter", number).set("stoch", number))
            last = torch.full((200,), -1.0)
            for k, places in enumerate(batch["index"][:, 2:]):
                last[places] = k
            for part in ("deter", "stoch"):
                written = buffer[:][part][last >= 0].float()
                assert torch.equal(written, last[last >= 0].unsqueeze(1).expand_as(written))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("kind", [PackedStorage, LazyTensorStorage])
def test_latents_stay_with_their_records_until_these_go(kind):
    torch.manual_seed(0)
    latents = Latents({"deter": (2,), "stoch": ((3, 4), torch.uint8)})
    buffer = replay(2 * 20, 16, 4, 2, latents, kind)
    buffer.extend(records(0, 20, 2))
    batch = buffer.sample()
    assert not batch["known"].any()
    assert not batch["deter"].any()
    assert batch["deter"].dtype == torch.float16
    assert batch["stoch"].dtype == torch.uint8
    written = {}
    for _ in range(30):
        batch = buffer.sample()
        for i, j in torch.cartesian_prod(torch.arange(16), torch.arange(5)).tolist():
            key = (batch["action"][i, j].item(), batch["reward"][i, j].item())
            assert batch["known"][i, j].item() == (key in written)
            if key in written:
                assert torch.equal(batch["deter"][i, j], written[key])
                assert batch["stoch"][i, j].sum() == 3
        # the record decides its latent here, so that a record in two slices has one
        deter = torch.stack([batch["action"], batch["reward"] / 8], -1).requires_grad_()
        stoch = torch.eye(4)[:3].expand(16, 5, 3, 4)
        latents.write(buffer, batch.set("deter", deter).set("stoch", stoch))
        inner = batch[:, 2:].flatten()  # a slice's first record is its context, told from zeros
        for row in zip(inner["action"].tolist(), inner["reward"].tolist(),
                       inner["deter"].detach().half(), strict=True):  # fmt: skip
            written[row[:2]] = row[2]
    assert len(written) == 36  # all but the two oldest records of each environment
    buffer.extend(records(20, 6, 2))
    for _ in range(5):
        batch = buffer.sample()
        assert torch.equal(batch["known"], (batch["reward"] < 20) & (batch["reward"] > 1))
        assert not batch["deter"][~batch["known"]].any()


def test_a_batch_that_is_stored_is_left_as_it_was():
    """The buffer notes where it went, and no more."""
    batch = records(0, 6)
    before = set(batch.keys())
    buffer_of(20, batch, transform=Latents({"deter": (3,)}))
    assert set(batch.keys()) - {"index"} == before


def test_bad_arguments_and_records_are_refused():
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        SequenceSampler(0)
    with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
        SequenceSampler(4, 0)
    with pytest.raises(ValueError, match="latents must not be named 'reward'"):
        Latents({"reward": (2,)})
    buffer = replay(20, 2, 4)
    buffer.extend(records(0, 4))
    with pytest.raises(ValueError, match=r"rows lack \('first',\)"):
        buffer.extend(records(0, 4).exclude("first"))
    with pytest.raises(ValueError, match="21 rows does not fit into 20"):
        buffer.extend(records(4, 21))
    other = records(4, 2).set("observation", torch.zeros(2, 3, 4, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"'observation',\) has shape \(3, 4\)"):
        buffer.extend(other)
    latents = Latents({"deter": (3,)})
    kept = replay(20, 2, 4, latents=latents)
    kept.extend(records(0, 6))
    with pytest.raises(ValueError, match=r"deter must have shape \(2, 5, 3\), got \(2, 5, 2\)"):
        latents.write(kept, kept.sample().set("deter", torch.zeros(2, 5, 2)))
    for size in (18, 40):
        with pytest.raises(ValueError, match=f"this one takes {size}: use the same"):
            replay(size, 2, 4).load_state_dict(kept.state_dict())
