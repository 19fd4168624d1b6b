"""Benchmarks compare the same work: an update by hand gives the numbers of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from benchmarks.limit import IQLLimit
from benchmarks.updates import KINDS


def two_updates(way: Callable[[], Any]) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(2)
    return [dict(way().items()) for _ in range(2)]  # TD3's policy moves at the second


def same(one: list[dict[str, torch.Tensor]], ours: list[dict[str, torch.Tensor]]) -> None:
    assert set(one[-1]) == {key for key in ours[-1] if not key.startswith("lr")}
    for mine, theirs in zip(one, ours, strict=True):
        for key, value in mine.items():
            torch.testing.assert_close(value, theirs[key], rtol=2e-4, atol=2e-5, msg=key)


@pytest.mark.parametrize("name", KINDS)
def test_by_hand_is_the_same_update(name: str) -> None:
    kind = KINDS[name]
    torch.manual_seed(1)
    batch = kind.batch(kind.rows)
    same(two_updates(kind.by_hand(16, batch)), two_updates(kind.ours(16, batch)))


def test_gradients_derived_by_hand_are_those_of_autograd() -> None:
    kind = KINDS["iql"]
    batch = kind.batch(kind.rows)
    limit = IQLLimit(kind.made(16), batch, 16)
    limit.compiled = limit._step
    same(two_updates(limit), two_updates(kind.ours(16, batch)))
