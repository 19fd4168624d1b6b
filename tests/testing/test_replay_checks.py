"""Storages and samplers, ours and TorchRL's: what they are checked for, and what is found."""

from __future__ import annotations

from importlib.metadata import version
from unittest import SkipTest

import numpy as np
import pytest
import torch
from torchrl.data import (
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
)

from composerl.data import (
    Dataset,
    DatasetStorage,
    LatestStorage,
    PackedStorage,
    PrioritizedSampler,
    SequenceSampler,
)
from composerl.testing import SAMPLER_CHECKS, STORAGE_CHECKS, check_sampler, check_storage

#: Where what TorchRL's fail was seen.
SEEN = "0.14.1"


def dataset():
    ends = np.arange(30) % 10 == 9
    t = np.arange(30, dtype=np.float32)
    return Dataset(
        observations=t[:, None], actions=-t[:, None], rewards=t, next_observations=t[:, None] + 1,
        terminals=ends, timeouts=np.zeros(30, bool),
    )  # fmt: skip


STORAGES = {
    "PackedStorage": lambda: PackedStorage(20),
    "LatestStorage": lambda: LatestStorage(3),
    "DatasetStorage": lambda: DatasetStorage(dataset()),
    "LazyTensorStorage": lambda: LazyTensorStorage(20),
    "LazyMemmapStorage": lambda: LazyMemmapStorage(20),
    "ListStorage": lambda: ListStorage(20),
    "LazyStackStorage": lambda: LazyStackStorage(20),
}
SAMPLERS = {
    "PrioritizedSampler": lambda: PrioritizedSampler(40, 0.7, 0.5),
    "SequenceSampler": lambda: SequenceSampler(3),
    "RandomSampler": RandomSampler,
    "SamplerWithoutReplacement": SamplerWithoutReplacement,
    "SamplerWithoutReplacement(drop_last)": lambda: SamplerWithoutReplacement(drop_last=True),
    "SliceSampler": lambda: SliceSampler(slice_len=4),
    "SliceSampler(init_key=None)": lambda: SliceSampler(
        slice_len=4, init_key=None, truncated_key=None
    ),
}
#: What does not look at these: nothing else may be left out.
SKIPS = {
    "LatestStorage": {"wrap_around"},  # it has no capacity
    "DatasetStorage": {"content", "wrap_around", "overwriting", "emptying"},  # it is read-only
    "PrioritizedSampler": {"slices"},
    "RandomSampler": {"slices", "priorities"},
    "SamplerWithoutReplacement": {"slices", "priorities"},
    "SamplerWithoutReplacement(drop_last)": {"slices", "priorities"},
    "SequenceSampler": {"priorities"},
    "SliceSampler": {"priorities"},
    "SliceSampler(init_key=None)": {"priorities"},
}
#: What TorchRL's fail.
FAILS = {
    ("ListStorage", "index_forms"): "a mask is refused as an index",
    ("LazyStackStorage", "index_forms"): "a mask is refused as an index",
    # Its samples are views of what it holds: a loss that writes a priority writes it there.
    ("LazyStackStorage", "samples"): "the content after a sample was written to differs in action",
    # Its docstring says that the last batch of a round is filled up from the next one.
    ("SamplerWithoutReplacement", "indices"): "8 were asked for, got 1",
    # Every slice's start is an episode's, and its end a truncation, whatever is stored.
    ("SliceSampler", "rows"): "differs in is_init, next/done, next/truncated",
}


def found(check, make, only):
    """What a check says: nothing, that it does not apply, or what is wrong."""
    try:
        check(make, only=only)
    except SkipTest:
        return "skipped"
    except AssertionError as error:
        return str(error)
    return ""


CASES = [
    *((check_storage, STORAGES, name, only) for name in STORAGES for only in STORAGE_CHECKS),
    *((check_sampler, SAMPLERS, name, only) for name in SAMPLERS for only in SAMPLER_CHECKS),
]


@pytest.mark.parametrize(
    ("check", "kinds", "name", "only"), CASES, ids=[f"{case[2]}-{case[3]}" for case in CASES]
)
def test_each_check(check, kinds, name, only):
    fails = FAILS.get((name, only), "")
    if fails and version("torchrl") != SEEN:
        pytest.skip(f"seen with torchrl {SEEN}, this is {version('torchrl')}: look again at FAILS")
    said = found(check, kinds[name], only)
    expected = "skipped" if only in SKIPS.get(name, ()) else fails
    assert expected in said if expected else not said, said


# ---- the checks must notice what is wrong --------------------------------------------------


class Shrinking(PackedStorage):
    """Loses float64."""

    def set(self, cursor, data, *, set_cursor=True):
        data = data.apply(lambda x: x.float() if x.dtype == torch.float64 else x)
        super().set(cursor, data, set_cursor=set_cursor)


class Forgetful(PackedStorage):
    """Its state has no content."""

    def state_dict(self):
        return super().state_dict() | {"tables": [0 * t for t in super().state_dict()["tables"]]}


class Full(PackedStorage):
    """Takes nothing more when it is full."""

    def set(self, cursor, data, *, set_cursor=True):
        if not self._is_full:
            super().set(cursor, data, set_cursor=set_cursor)


class OffByOne(RandomSampler):
    """Never draws the last row."""

    def sample(self, storage, batch_size):
        return torch.randint(0, len(storage) - 1, (batch_size,), generator=self._rng), {}


class OwnSeed(RandomSampler):
    """Ignores the buffer's generator."""

    def sample(self, storage, batch_size):
        return torch.randint(0, len(storage), (batch_size,)), {}


class Restarting(SamplerWithoutReplacement):
    """Starts its round anew when its state is loaded."""

    def load_state_dict(self, state_dict):
        self._empty()


class OverTheSeam(SequenceSampler):
    """Slices lead from the newest row to the oldest."""

    def sample(self, storage, batch_size):
        start = torch.randint(0, len(storage), (batch_size, 1), generator=self._rng)
        return (start + self._ahead) % len(storage), {}


class Unweighted(PrioritizedSampler):
    """Draws uniformly."""

    def sample(self, storage, batch_size):
        index = torch.randint(0, len(storage), (batch_size,), generator=self._rng)
        return index, {"priority_weight": torch.ones(batch_size)}


@pytest.mark.parametrize(
    ("make", "only", "sentence"),
    [
        (lambda: Shrinking(20), "content", "differs in precise"),
        (lambda: Forgetful(20), "state_dict", "that loaded the state differs in"),
        (lambda: Full(20), "wrap_around", "newest rows have replaced the oldest differs in action"),
        (OffByOne, "coverage", r"of 24 rows, these are never drawn: \[23\]"),
        (OwnSeed, "generator", "by the same generator of the buffer differs"),
        (lambda: Restarting(drop_last=True), "state_dict", "after the state was loaded differs"),
        (lambda: OverTheSeam(3), "slices", "must follow each other"),
        (lambda: Unweighted(40, 0.7, 0.5), "priorities", "a million times the others' priority"),
    ],
)
def test_what_is_wrong_is_noticed(make, only, sentence):
    check = check_storage if isinstance(make(), PackedStorage) else check_sampler
    with pytest.raises(AssertionError, match=sentence):
        check(make, only=only)
    with pytest.raises(AssertionError):
        check(make)


def test_what_is_checked_must_be_of_the_kind():
    with pytest.raises(TypeError, match="make must return a TorchRL Storage, got a RandomSampler"):
        check_storage(RandomSampler)
    with pytest.raises(TypeError, match="make must return a TorchRL Sampler, got a ListStorage"):
        check_sampler(lambda: ListStorage(5))
