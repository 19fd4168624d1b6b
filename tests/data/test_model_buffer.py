"""The model buffer: an exact real share, the latest rollouts only, content in the state."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from composerl.bookkeeping.checkpoint import load_tree, save_tree
from composerl.data import ModelBuffer, ReplayBuffer

KEYS = ("observation", "action")


def rows(number, value, terminated=False):
    """Transitions whose numbers all are ``value``."""

    def full(width):
        return torch.full((number, width), float(value))

    ends = {key: torch.full((number, 1), terminated) for key in ("terminated", "done")}
    following = {"observation": full(3), "reward": full(1), **ends}
    following["truncated"] = torch.zeros(number, 1, dtype=torch.bool)
    return TensorDict({"observation": full(3), "action": full(1), "next": following}, [number])


def buffers(**options):
    real = ReplayBuffer(100, 8)
    real.extend(rows(40, 1))
    return real, ModelBuffer(real, **options)


@pytest.mark.parametrize(
    ("batch", "share", "expected"),
    [(256, 0.05, 13), (256, 0.0, 0), (256, 1.0, 256), (10, 0.5, 5), (32, 0.1, 3)],
)
def test_real_share_is_exact_in_every_batch(batch, share, expected):
    """5 % of 256 are 12.8 rows: 13, in each batch and not only in the mean."""
    _, buffer = buffers(batch_size=batch, real_share=share)
    buffer.extend(rows(500, -1, terminated=True))
    for _ in range(20):
        drawn = buffer.sample()
        assert drawn.shape == (batch,)
        real = drawn["observation"][:, 0] == 1
        assert real.sum() == expected
        assert torch.equal(drawn["next", "terminated"].squeeze(-1), ~real)
        for key in (*KEYS, ("next", "observation"), ("next", "reward")):
            assert torch.equal(drawn[key][:, 0] == 1, real)


def test_all_real_until_something_is_imagined():
    _, buffer = buffers(batch_size=16)
    assert len(buffer) == 0
    assert (buffer.sample()["observation"] == 1).all()
    assert buffer.sample().shape == (16,)


def test_keeps_the_latest_rollouts_whatever_their_size():
    _, buffer = buffers(batch_size=200, real_share=0.0, keep=3)
    for value, number in ((2, 50), (3, 10), (4, 70), (5, 20)):
        buffer.extend(rows(number, value))
    assert len(buffer) == 100
    seen = torch.cat([buffer.sample()["action"].squeeze(-1) for _ in range(50)])
    assert set(seen.tolist()) == {3, 4, 5}
    for value, share in ((3, 0.1), (4, 0.7), (5, 0.2)):
        assert (seen == value).float().mean() == pytest.approx(share, abs=0.03)
    buffer = buffers(keep=1)[1]
    buffer.extend(rows(5, 2))
    buffer.extend(rows(6, 3))
    assert len(buffer) == 6


def test_the_imagined_keys_alone_are_sampled():
    """What only real rows have (ids of a collector, say) is left out."""
    real = ReplayBuffer(100, 8)
    real.extend(rows(40, 1).set("extra", torch.ones(40, 1)))
    buffer = ModelBuffer(real, batch_size=8, real_share=0.5)
    buffer.extend(rows(10, 2))
    assert "extra" not in buffer.sample().keys()  # noqa: SIM118


def test_state_goes_through_a_file_and_goes_on_exactly(tmp_path):
    real, buffer = buffers(batch_size=32, keep=2)
    for value in (2, 3, 4):
        buffer.extend(rows(20, value))
    save_tree(tmp_path / "x.safetensors", "checkpoint", buffer.state_dict())
    other = ModelBuffer(real, batch_size=32, keep=2)
    other.load_state_dict(load_tree(tmp_path / "x.safetensors", "checkpoint"))
    for step in range(3):
        torch.manual_seed(step)
        expected = buffer.sample()
        torch.manual_seed(step)
        got = other.sample()
        assert all(torch.equal(got[key], expected[key]) for key in expected.keys(True, True))
        buffer.extend(rows(7, 10 + step))
        other.extend(rows(7, 10 + step))
    assert len(other) == len(buffer) == 14


def test_an_empty_state_empties_it():
    _, buffer = buffers(batch_size=4)
    empty = buffer.state_dict()
    buffer.extend(rows(5, 2))
    buffer.load_state_dict(empty)
    assert len(buffer) == 0
    assert (buffer.sample()["observation"] == 1).all()


def test_bad_arguments():
    real = ReplayBuffer(10, 4)
    for options, message in (
        ({"real_share": 1.5}, "real_share"),
        ({"batch_size": 0}, "batch_size"),
        ({"keep": 0}, "keep"),
    ):
        with pytest.raises(ValueError, match=message):
            ModelBuffer(real, **options)
    for batch in (rows(4, 1).reshape(2, 2), rows(0, 1)):
        with pytest.raises(ValueError, match=r"shape \(rows,\) are needed"):
            ModelBuffer(real).extend(batch)
