"""What the tests of replay share: rows that can be told apart, and buffers compared."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import ReplayBuffer, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import Sampler

from composerl.bookkeeping.trees import load_tree, save_tree
from composerl.data import PackedStorage


def rows(start: int, number: int, episode: int = 7) -> TensorDict:
    """Steps start, start + 1, ... of one environment: all that is in row t tells t.

    Every ``episode``-th step ends one, every second time by truncation.
    """
    t = torch.arange(start, start + number)
    value = t.float().unsqueeze(1)
    last, odd = t % episode == episode - 1, t // episode % 2 == 1
    return TensorDict(
        {
            "observation": torch.cat([value, -value], 1),
            "action": t.clone(),
            "collector": {"traj_ids": t // episode},
            "next": {
                "observation": torch.cat([value + 1, -value - 1], 1),
                "reward": value / 8,
                "terminated": (last & ~odd).unsqueeze(1),
                "truncated": (last & odd).unsqueeze(1),
                "done": last.unsqueeze(1),
            },
        },
        [number],
    )


class EveryRow(Sampler):
    """Draws each row once, in the order of storage."""

    def sample(self, storage: Any, batch_size: int) -> tuple[torch.Tensor, dict]:
        return torch.arange(len(storage)), {}

    def _empty(self) -> None:
        pass

    def dumps(self, path: Any) -> None:
        pass

    def loads(self, path: Any) -> None:
        pass

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state_dict: Any) -> None:
        pass


def buffer_of(size: int = 20, *batches: TensorDictBase, **parts: Any) -> TensorDictReplayBuffer:
    """A stock buffer around our storage, with these batches in it."""
    parts = {"batch_size": 12} | parts
    parts.setdefault("storage", PackedStorage(size or 1))
    buffer = TensorDictReplayBuffer(**parts)
    for batch in batches:
        buffer.extend(batch)
    return buffer


def by_seed(number: int) -> None:
    """Both generators that draw rows."""
    torch.manual_seed(number)
    np.random.seed(number)


def assert_equal(ours: TensorDictBase, theirs: TensorDictBase, but: Iterable = ("index",)) -> None:
    """The same entries, to the bit. TorchRL's storage may have ``index`` besides."""
    ours, theirs = ours.exclude(*but), theirs.exclude(*but)
    assert ours.batch_size == theirs.batch_size
    assert set(ours.keys(True, True)) == set(theirs.keys(True, True))
    for key in theirs.keys(True, True):
        assert ours[key].dtype == theirs[key].dtype, key
        assert torch.equal(ours[key], theirs[key]), key


def assert_all_equal(ours: list, theirs: list) -> None:
    """The same batches, with the same rows of the storage."""
    assert len(ours) == len(theirs) > 0
    for left, right in zip(ours, theirs, strict=True):
        assert_equal(left, right, but=())


def through_a_file(folder: Path, one: Any, other: Any) -> None:
    """The state of one into the other, by way of a checkpoint."""
    save_tree(folder / "state.safetensors", "checkpoint", one.state_dict())
    other.load_state_dict(load_tree(folder / "state.safetensors", "checkpoint"))


def goes_on(buffer: ReplayBuffer, start: int = 100, rounds: int = 6) -> list[TensorDictBase]:
    """What a buffer hands out from here on, with priorities given back if it asks for them."""
    by_seed(1)
    samples = []
    for k in range(rounds):
        buffer.extend(rows(start + 3 * k, 3))
        batch = buffer.sample()
        samples.append(batch.clone())
        batch["td_error"] = torch.rand(len(batch))
        buffer.update_tensordict_priority(batch)
    return samples
