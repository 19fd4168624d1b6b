"""Sequence replay: contiguous slices of one environment each, their latents, its state."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from tensordict import TensorDict

from composerl.bookkeeping.checkpoint import load_tree, save_tree
from composerl.data import SequenceReplay


def records(start, steps, lanes=1, episode=5):
    """Record t of lane i has reward t and action i; its pixels are (t, i) too, modulo 256."""
    t = torch.arange(start, start + steps).expand(lanes, -1)
    lane = torch.arange(lanes).unsqueeze(1).expand(-1, steps)
    pixels = torch.stack([t % 256, lane], -1).to(torch.uint8)
    return TensorDict(
        {
            "observation": pixels.view(lanes, steps, 2, 1, 1).expand(-1, -1, -1, 3, 3),
            "action": lane.clone(),
            "reward": t.float(),
            "first": t % episode == 0,
            "terminal": t % episode == episode - 1,
        },
        [lanes, steps],
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


@pytest.mark.parametrize("chunk", [1, 4, 12])
@pytest.mark.parametrize("lanes", [1, 3])
def test_slices_are_contiguous_whatever_the_write_head_does(lanes, chunk):
    """A ring of 50 a lane, filled five times over: no slice leads over the seam."""
    torch.manual_seed(0)
    replay = SequenceReplay(50 * lanes + lanes - 1, 64, 9)
    for k in range(0, 250, chunk):
        replay.extend(records(k, chunk, lanes))
        if k + chunk >= 10:
            batch = replay.sample()
            assert batch.shape == (64, 10)
            check(batch, k + chunk - 1, lanes, 50)
    assert len(replay) == 50 * lanes


def test_every_slice_is_as_likely_as_every_other():
    """3 lanes, 25 records, slices of 1 + 4: 21 starts a lane, 63 in all."""
    torch.manual_seed(0)
    replay = SequenceReplay(3 * 25, 63 * 400, 4)
    replay.extend(records(0, 20, 3))
    replay.extend(records(20, 12, 3))
    batch = replay.sample()
    starts = batch["reward"][:, 0].long() * 3 + batch["action"][:, 0]
    assert starts.min() == 7 * 3
    counts = torch.bincount(starts - 21, minlength=63)
    assert len(counts) == 63
    assert counts.min() > 300
    assert counts.max() < 500


def test_the_first_flag_is_the_records_own_and_never_marks_a_slice():
    torch.manual_seed(0)
    replay = SequenceReplay(100, 32, 3)
    replay.extend(records(1, 60, episode=1000))
    assert not replay.sample()["first"].any()


def test_too_little_is_said_and_the_least_is_enough():
    replay = SequenceReplay(100, 4, 7)
    with pytest.raises(RuntimeError, match=r"0 records of each environment.*takes 8"):
        replay.sample()
    replay.extend(records(0, 7, 2))
    with pytest.raises(RuntimeError, match=r"7 records of each environment.*takes 8.*collect more"):
        replay.sample()
    replay.extend(records(7, 1, 2))
    batch = replay.sample()
    assert torch.equal(batch["reward"], torch.arange(8.0).expand(4, -1))


@pytest.mark.parametrize("latents", [False, True])
@pytest.mark.parametrize("stored", [0, 3, 30, 77])
def test_its_state_is_its_content_and_goes_on_exactly(stored, latents, tmp_path):
    torch.manual_seed(0)

    def make():
        shapes = {"deter": (5,), "stoch": ((2, 3), torch.uint8)} if latents else None
        return SequenceReplay(100, 8, 5, latents=shapes)

    def leave(replay, batch):
        if latents:
            deter = batch["reward"].unsqueeze(-1).expand(-1, -1, 5)
            stoch = torch.nn.functional.one_hot(batch["reward"].long().unsqueeze(-1) % 3, 3)
            written = {"deter": deter, "stoch": stoch.expand(-1, -1, 2, 3)}
            replay.write_latents(batch.clone(False).update(written))

    def go_on(replay):
        torch.manual_seed(1)
        batches = []
        for k in range(stored, stored + 70, 7):
            replay.extend(records(k, 7, 2))
            batches.append(replay.sample())
            leave(replay, batches[-1])
        return torch.stack(batches)

    one = make()
    for k in range(stored):
        one.extend(records(k, 1, 2))
        if k > 5:
            leave(one, one.sample())
    save_tree(tmp_path / "state", "checkpoint", deepcopy(one.state_dict()))
    other = make()
    other.load_state_dict(load_tree(tmp_path / "state", "checkpoint"))
    assert len(other) == len(one) == min(stored, 50) * 2
    a, b = go_on(one), go_on(other)
    assert set(a.keys()) == set(b.keys())
    for key in a.keys():  # noqa: SIM118
        assert torch.equal(a[key], b[key]), key


def test_a_state_takes_room_for_the_content_only():
    def size(replay):
        return sum(table.nbytes for table in replay.state_dict()["tables"].values())

    small, large = SequenceReplay(1000, 2, 3), SequenceReplay(1_000_000, 2, 3)
    for replay in (small, large):
        replay.extend(records(0, 20, 2))
    # pixels 18, action 8, reward 4, two flags
    assert size(small) == size(large) == 40 * (18 + 8 + 4 + 2)
    large.extend(records(20, 20, 2))
    assert size(large) == 80 * (18 + 8 + 4 + 2)


def test_slices_that_share_records_leave_the_latents_of_one_of_them():
    """The last one's, in every part, also where torch writes with several threads."""
    torch.manual_seed(0)
    replay = SequenceReplay(200, 16, 64, latents={"deter": (512,), "stoch": (512,)})
    replay.extend(records(0, 200))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in range(5):
            batch = replay.sample()
            number = torch.arange(16.0).view(16, 1, 1).expand(16, 65, 512)
            replay.write_latents(batch.set("deter", number).set("stoch", number))
            last = torch.full((200,), -1.0)
            for k, rows in enumerate(batch["index"][:, 1:]):
                last[rows] = k
            for part in ("deter", "stoch"):
                written = replay._tables[part][last >= 0].float()
                assert torch.equal(written, last[last >= 0].unsqueeze(1).expand_as(written))
    finally:
        torch.set_num_threads(threads)


def test_latents_stay_with_their_records_until_these_go():
    torch.manual_seed(0)
    replay = SequenceReplay(2 * 20, 16, 4, latents={"deter": (2,), "stoch": ((3, 4), torch.uint8)})
    replay.extend(records(0, 20, 2))
    batch = replay.sample()
    assert not batch["known"].any()
    assert not batch["deter"].any()
    assert batch["deter"].dtype == torch.float16
    assert batch["stoch"].dtype == torch.uint8
    written = {}
    for _ in range(30):
        batch = replay.sample()
        for i, j in torch.cartesian_prod(torch.arange(16), torch.arange(5)).tolist():
            key = (batch["action"][i, j].item(), batch["reward"][i, j].item())
            assert batch["known"][i, j].item() == (key in written)
            if key in written:
                assert torch.equal(batch["deter"][i, j], written[key])
                assert batch["stoch"][i, j].sum() == 3
        # the record decides its latent here, so that a record in two slices has one
        deter = torch.stack([batch["action"], batch["reward"] / 8], -1).requires_grad_()
        stoch = torch.eye(4)[:3].expand(16, 5, 3, 4)
        replay.write_latents(batch.set("deter", deter).set("stoch", stoch))
        inner = batch[:, 1:].flatten()  # a slice's first record is its context
        for row in zip(inner["action"].tolist(), inner["reward"].tolist(),
                       inner["deter"].detach().half(), strict=True):  # fmt: skip
            written[row[:2]] = row[2]
    assert len(written) == 38  # all but the oldest record of each environment
    replay.extend(records(20, 6, 2))
    for _ in range(5):
        batch = replay.sample()
        assert torch.equal(batch["known"], (batch["reward"] < 20) & (batch["reward"] > 0))
        assert not batch["deter"][~batch["known"]].any()


def test_bad_arguments_and_records_are_refused():
    for arguments, words in [
        ((100, 0, 4), "batch_size must be at least 1, got 0"),
        ((100, 2, 0), "length must be at least 1, got 0"),
        ((4, 2, 4), r"capacity must be at least 1 \+ length = 5.*got 4"),
    ]:
        with pytest.raises(ValueError, match=words):
            SequenceReplay(*arguments)
    with pytest.raises(ValueError, match="latents must not be named 'reward'"):
        SequenceReplay(100, 2, 4, latents={"reward": (2,)})
    with pytest.raises(ValueError, match=r"capacity must be at least 3 .* = 15, got 14"):
        SequenceReplay(14, 2, 4).extend(records(0, 2, 3))
    replay = SequenceReplay(20, 2, 4)
    with pytest.raises(ValueError, match=r"records must have shape \(environments, time\)"):
        replay.extend(records(0, 4)[0])
    with pytest.raises(ValueError, match="records lack 'first'"):
        replay.extend(records(0, 4).exclude("first"))
    wide = records(0, 4)
    wide["reward"] = wide["reward"].unsqueeze(-1)
    with pytest.raises(ValueError, match=r"records' reward must have shape.*\(1, 4, 1\)"):
        replay.extend(wide)
    replay.extend(records(0, 4, 2))
    with pytest.raises(ValueError, match="records of 2 environments were stored before, got 1"):
        replay.extend(records(4, 4))
    with pytest.raises(ValueError, match="11 records of each environment do not fit into 10"):
        replay.extend(records(4, 11, 2))
    other = records(4, 2, 2)
    other["observation"] = torch.zeros(2, 2, 3, 4, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"records' observation has shape \(3, 4\)"):
        replay.extend(other)
    with pytest.raises(ValueError, match="made without latents"):
        replay.write_latents(records(0, 5, 2))
    kept = SequenceReplay(20, 2, 4, latents={"deter": (3,)})
    kept.extend(records(0, 6))
    with pytest.raises(ValueError, match=r"deter must have shape \(2, 5, 3\), got \(2, 5, 2\)"):
        kept.write_latents(kept.sample().set("deter", torch.zeros(2, 5, 2)))
    with pytest.raises(ValueError, match="use the same latents"):
        kept.load_state_dict(replay.state_dict())
    replay.extend(records(4, 8, 2))
    for capacity in (18, 40):
        with pytest.raises(ValueError, match=f"20 records and another capacity than {capacity}"):
            SequenceReplay(capacity, 2, 4).load_state_dict(replay.state_dict())
