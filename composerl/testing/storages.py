"""Checks that a storage does what TorchRL's replay buffers expect of one."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import TensorDictReplayBuffer
from torchrl.data.replay_buffers import Storage

from composerl.testing.checks import assert_same, error_of, needs, run, seed

__all__ = ["STORAGE_CHECKS", "check_storage", "steps"]

Make = Callable[[], Storage]
ROWS = 12


def check_storage(make: Make, *, only: str | None = None) -> None:
    """Raise an AssertionError that says what a TorchRL storage does and this one does not.

    Args:
        make: makes a new storage, empty, for at least 12 rows; or one that holds some already,
            always the same, to which none can be added.
        only: the name of one check, of ``STORAGE_CHECKS``; ``unittest.SkipTest`` is raised if it
            does not concern this storage.
    """
    if not isinstance(storage := make(), Storage):
        raise TypeError(f"make must return a TorchRL Storage, got a {type(storage).__name__}")
    run(_CHECKS, only, lambda: (make,))


def steps(start: int, number: int) -> TensorDict:
    """Transitions of one environment, of entries of all kinds: everything in row t tells t."""
    t = torch.arange(start, start + number)
    value = t.float().unsqueeze(1)
    first, last, odd = (x.unsqueeze(1) for x in (t % 8 == 0, t % 8 == 7, t // 8 % 2 == 1))
    ends = {"terminated": last & ~odd, "truncated": last & odd, "done": last}
    return TensorDict(
        {
            "observation": torch.cat([value, -value], 1),
            "pixels": (t % 256).to(torch.uint8).reshape(-1, 1, 1).expand(-1, 2, 3).clone(),
            "precise": t.double().unsqueeze(1) / 3,
            "action": t.clone(),
            "is_init": first,
            "collector": {"traj_ids": t // 8},
            "next": {"observation": torch.cat([value + 1, -value - 1], 1), "reward": value / 8}
            | ends,
        },
        [number],
    )


def _buffer(make: Make, rows: int = ROWS) -> TensorDictReplayBuffer:
    """A stock buffer around it, with rows in it."""
    buffer = TensorDictReplayBuffer(storage=make(), batch_size=6)
    if not len(buffer):
        buffer.extend(steps(0, rows))
    return buffer


def _needs_empty(make: Make) -> None:
    needs(not len(make()), "a storage that can be written to")


def _capacity(make: Make) -> int:
    _needs_empty(make)
    capacity = make().max_size
    needs(capacity <= 10_000, "a capacity that is reached in a test")
    return capacity


def _content(make: Make) -> None:
    _needs_empty(make)
    buffer = TensorDictReplayBuffer(storage=make(), batch_size=6)
    assert len(buffer) == 0, "a new storage must have the length 0"
    buffer.extend(steps(0, 7))
    buffer.add(steps(7, 1)[0])
    buffer.extend(steps(8, 4))
    assert len(buffer) == ROWS, f"12 rows were written, but its length is {len(buffer)}"
    assert_same(buffer[:], steps(0, ROWS), "what comes out of what was written")


def _index_forms(make: Make) -> None:
    buffer = _buffer(make)
    content = buffer[:]
    mask = torch.arange(len(content)) % 3 == 1
    forms: dict[str, Any] = {
        "an integer": 2,
        "a slice": slice(1, 5),
        "a range": range(1, 4),
        "a list": [3, 0, 3],
        "a tensor": torch.tensor([3, 0, 3]),
        "a tensor of negative numbers": torch.tensor([-1, -2]),
        "a numpy array": torch.tensor([2, 1]).numpy(),
        "a mask": mask,
        "a matrix": torch.tensor([[0, 1], [2, 3]]),
    }
    for name, index in forms.items():
        like = list(index) if isinstance(index, range) else index
        try:
            found = buffer[index]
        except Exception as error:
            raise AssertionError(f"{name} is refused as an index: {error}") from error
        assert_same(found, content[like], f"what {name} gives")


def _wrap_around(make: Make) -> None:
    capacity = _capacity(make)
    buffer = TensorDictReplayBuffer(storage=make(), batch_size=6)
    parts = steps(0, capacity + 5).split(7)
    for part in parts:
        buffer.extend(part)
    assert len(buffer) == capacity, f"it takes {capacity} rows, but its length is {len(buffer)}"
    expected = torch.cat([steps(capacity, 5), steps(5, capacity - 5)])
    assert_same(buffer[:], expected, "what is left when the newest rows have replaced the oldest")


def _overwriting(make: Make) -> None:
    _needs_empty(make)
    buffer = _buffer(make)
    expected = steps(0, ROWS)
    for place in (torch.tensor([1, 4]), slice(6, 8)):
        buffer.storage[place] = steps(50, 2)
        expected[place] = steps(50, 2)
        assert_same(buffer[:], expected, f"the content after storage[{place}] = rows")


def _samples(make: Make) -> None:
    buffer = _buffer(make)
    content = buffer[:].clone()
    for draw in range(2):
        seed(draw)
        batch = buffer.sample()
        assert_same(batch, content[batch["index"]], "a sample")
        seed(draw)
        assert_same(buffer.sample(), batch, "a sample with the same seed")
        batch.zero_()
        assert_same(buffer[:], content, "the content after a sample was written to")


def _generator(make: Make) -> None:
    samples = []
    for number in range(2):
        buffer = _buffer(make)
        buffer.set_rng(torch.Generator().manual_seed(0))
        seed(number)
        samples.append(buffer.sample())
    assert_same(samples[1], samples[0], "a sample by the same generator of the buffer")


def _state_dict(make: Make) -> None:
    buffers = _buffer(make), TensorDictReplayBuffer(storage=make(), batch_size=6)
    writable = not len(buffers[1])
    if writable and buffers[0].storage.max_size <= 10_000:
        buffers[0].extend(steps(ROWS, buffers[0].storage.max_size - 5))
    buffers[1].load_state_dict(deepcopy(buffers[0].state_dict()))
    assert_same(buffers[1][:], buffers[0][:], "the content of a storage that loaded the state")
    samples: list[TensorDictBase] = []
    for buffer in buffers:
        if writable:
            buffer.extend(steps(90, 3))
        seed(0)
        samples.append(buffer.sample())
    assert_same(buffers[1][:], buffers[0][:], "what is written after the state was loaded")
    assert_same(samples[1], samples[0], "a sample after the state was loaded")


def _copies(make: Make) -> None:
    buffer = _buffer(make)
    content, copy = buffer[:].clone(), deepcopy(buffer.storage)
    assert len(copy) == len(buffer), "a copy must have the length of what it is of"
    if not len(make()):
        buffer.storage[torch.tensor([1, 4])] = steps(50, 2)
    assert_same(
        TensorDictReplayBuffer(storage=copy)[:], content, "a copy, whose own is written to,"
    )


def _emptying(make: Make) -> None:
    _needs_empty(make)
    buffer = _buffer(make)
    buffer.empty()
    assert len(buffer) == 0, f"emptied, it has the length {len(buffer)}"
    assert error_of(buffer.sample), "a sample of nothing must be refused"
    buffer.extend(steps(30, 5))
    assert_same(buffer[:], steps(30, 5), "what is written to an emptied storage")


_CHECKS = {
    "content": _content,
    "index_forms": _index_forms,
    "wrap_around": _wrap_around,
    "overwriting": _overwriting,
    "samples": _samples,
    "generator": _generator,
    "state_dict": _state_dict,
    "copies": _copies,
    "emptying": _emptying,
}
STORAGE_CHECKS = tuple(_CHECKS)
