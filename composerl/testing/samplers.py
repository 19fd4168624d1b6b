"""Checks that a sampler does what TorchRL's replay buffers expect of one."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import LazyTensorStorage, PrioritizedSampler, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import Sampler

from composerl.testing.checks import assert_same, error_of, needs, run, seed
from composerl.testing.storages import steps

__all__ = ["SAMPLER_CHECKS", "check_sampler"]

CAPACITY, BATCH = 40, 8


class _Makes:
    """Stock buffers around new samplers."""

    def __init__(self, make: Callable[[], Sampler], batch_size: int) -> None:
        self.make, self.batch_size = make, batch_size

    def buffer(self, rows: int = CAPACITY) -> TensorDictReplayBuffer:
        """A buffer with rows in it, of which the newest may have replaced the oldest."""
        storage = LazyTensorStorage(CAPACITY)
        made = TensorDictReplayBuffer(
            storage=storage, sampler=self.make(), batch_size=self.batch_size
        )
        for part in steps(0, rows).split(5):
            made.extend(part)
        return made


def check_sampler(
    make: Callable[[], Sampler], *, batch_size: int = BATCH, only: str | None = None
) -> None:
    """Raise an AssertionError that says what a TorchRL sampler does and this one does not.

    Args:
        make: makes a new sampler, for a storage of 40 rows. They have TorchRL's keys, among them
            ``("next", "done")`` and ``("collector", "traj_ids")``, in episodes of 8.
        batch_size: of the buffers that it is used in.
        only: the name of one check, of ``SAMPLER_CHECKS``; ``unittest.SkipTest`` is raised if it
            does not concern this sampler.
    """
    if not isinstance(sampler := make(), Sampler):
        raise TypeError(f"make must return a TorchRL Sampler, got a {type(sampler).__name__}")
    run(_CHECKS, only, lambda: (_Makes(make, batch_size),))


def _draw(buffer: TensorDictReplayBuffer, number: int) -> list[TensorDictBase]:
    """Samples, with priorities given back if they are asked for."""
    samples = []
    for _ in range(number):
        batch = buffer.sample()
        samples.append(batch.clone())
        if isinstance(buffer.sampler, PrioritizedSampler):
            batch["td_error"] = 0.1 + batch["action"] % 5
            buffer.update_tensordict_priority(batch)
    return samples


def _assert_all_same(
    found: list[TensorDictBase], expected: list[TensorDictBase], what: str
) -> None:
    for a, b in zip(found, expected, strict=True):
        assert_same(a, b, what)


def _index(buffer: TensorDictReplayBuffer, rows: int) -> Tensor:
    index, info = buffer.sampler.sample(buffer.storage, buffer.batch_size)
    assert isinstance(info, dict), (
        f"sample must return a dictionary besides the index, got {info!r}"
    )
    index = torch.as_tensor(index[0] if isinstance(index, tuple) and len(index) == 1 else index)
    assert not index.is_floating_point(), f"an index must be of integers, got {index.dtype}"
    assert bool((index >= 0).all() and (index < rows).all()), (
        f"the index must be in [0, {rows}), got {index.min()} to {index.max()}"
    )
    assert len(index) == buffer.batch_size, f"{buffer.batch_size} were asked for, got {len(index)}"
    return index


def _indices(makes: _Makes) -> None:
    for rows in (25, CAPACITY, CAPACITY + 5):
        buffer = makes.buffer(rows)
        for _ in range(5):
            _index(buffer, len(buffer))


def _rows(makes: _Makes) -> None:
    buffer = makes.buffer()
    content = buffer[:].exclude("index")
    batch: TensorDictBase = torch.cat([buffer.sample() for _ in range(5)])
    stored = content[batch["index"].reshape(batch.shape)]
    assert_same(batch, stored, "a sample, compared to the rows at its index,")


def _coverage(makes: _Makes) -> None:
    for rows in (24, CAPACITY + 8):  # whole episodes
        buffer = makes.buffer(rows)
        drawn: set[int] = set()
        for _ in range(100):
            drawn |= set(_index(buffer, len(buffer)).reshape(-1).tolist())
        never = sorted(set(range(len(buffer))) - drawn)
        assert not never, f"of {len(buffer)} rows, these are never drawn: {never}"


def _slices(makes: _Makes) -> None:
    buffer = makes.buffer(CAPACITY + 5)
    length = getattr(buffer.sampler, "slice_len", None)
    for _ in range(20):
        times = buffer.sample()["action"]
        if length is not None:
            times = times.reshape(-1, length)
        needs(times.ndim == 2, "slices")
        assert bool((times[:, 1:] - times[:, :-1] == 1).all()), (
            f"the rows of a slice must follow each other, got {times.tolist()}"
        )


def _seeds(makes: _Makes) -> None:
    buffers = makes.buffer(), makes.buffer()
    samples = []
    for buffer in buffers:
        seed(0)
        samples.append(_draw(buffer, 6))
    _assert_all_same(samples[1], samples[0], "a sample with the same seed")


def _generator(makes: _Makes) -> None:
    samples = []
    for number in range(2):
        buffer = makes.buffer()
        buffer.set_rng(torch.Generator().manual_seed(0))
        seed(number)
        samples.append(_draw(buffer, 6))
    _assert_all_same(samples[1], samples[0], "a sample by the same generator of the buffer")


def _state_dict(makes: _Makes) -> None:
    buffer, other = makes.buffer(CAPACITY + 5), makes.buffer(CAPACITY + 5)
    seed(0)
    _draw(buffer, 3)
    other.load_state_dict(deepcopy(buffer.state_dict()))
    samples = []
    for each in (buffer, other):
        seed(1)
        before = _draw(each, 4)
        each.extend(steps(90, 3))
        samples.append(before + _draw(each, 4))
    _assert_all_same(samples[1], samples[0], "a sample after the state was loaded")


def _emptying(makes: _Makes) -> None:
    buffer = makes.buffer()
    _draw(buffer, 2)
    buffer.empty()
    assert error_of(buffer.sample), "a sample of nothing must be refused"
    buffer.extend(steps(0, 16))
    for _ in range(10):
        _index(buffer, 16)


def _priorities(makes: _Makes) -> None:
    buffer = makes.buffer()
    needs(isinstance(buffer.sampler, PrioritizedSampler), "priorities")
    buffer.update_priority(torch.arange(CAPACITY), torch.full((CAPACITY,), 1e-3))
    buffer.update_priority(torch.tensor([7]), torch.tensor([1e3]))
    seed(0)
    batches = [buffer.sample() for _ in range(20)]
    often = torch.cat([batch["index"] == 7 for batch in batches])
    share = often.float().mean().item()
    assert share > 0.5, (
        f"a row of a million times the others' priority makes {share:.0%} of samples"
    )
    weights = torch.cat([batch["priority_weight"] for batch in batches])
    if not often.all():
        assert weights[often].max() < weights[~often].min(), "what is drawn often must weigh less"


_CHECKS: dict[str, Any] = {
    "indices": _indices,
    "rows": _rows,
    "coverage": _coverage,
    "slices": _slices,
    "seeds": _seeds,
    "generator": _generator,
    "state_dict": _state_dict,
    "emptying": _emptying,
    "priorities": _priorities,
}
SAMPLER_CHECKS = tuple(_CHECKS)
