"""Benchmarks compare the same work: an update by hand gives the numbers of ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from benchmarks import (
    checkpoints,
    collector,
    dreamer,
    imagination,
    mixture,
    replay,
    sequences,
    tables,
)
from benchmarks.limit import IQLLimit
from benchmarks.products import products_of
from benchmarks.timing import Case, in_turns
from benchmarks.updates import KINDS

from composerl import Update
from composerl.losses import DreamerLoss


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


def test_products_of_an_update_are_made_again() -> None:
    """Two layers: two products forward, and backward two for weights and one between them."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    again = products_of(lambda: net(torch.ones(5, 3)).sum().backward())
    with torch.profiler.profile() as profile:
        again()
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["aten::addmm"] + counts.get("aten::mm", 0) == 5
    assert not {"aten::relu", "aten::sum"} & {*counts}
    with pytest.raises(ValueError, match="no products"):
        products_of(lambda: torch.ones(2) + 1)


def test_dreamer_by_hand_has_our_losses() -> None:
    """Up to the latents drawn: by hand torch.distributions draws them."""
    batch = dreamer.records(9)
    ours = Update(DreamerLoss(*dreamer.networks("debug")), max_grad_norm=100.0)(batch)
    hand = dreamer.by_hand("debug", batch)()
    assert set(hand) == set(ours.keys()) - {"lr"}
    for key in ("loss_observation", "loss_reward", "loss_replay", "entropy"):
        torch.testing.assert_close(hand[key], ours[key], rtol=1e-3, atol=0)
    for key in ("loss_continue", "loss_dynamics", "loss_representation", "loss_value"):
        torch.testing.assert_close(hand[key], ours[key], rtol=0.1, atol=0)


def test_ratios_are_to_the_first_way_within_a_round() -> None:
    def work(n: int) -> Callable[[], float]:
        return lambda: float(sum(range(n)))

    found = in_turns(Case("sums", {"once": work(20_000), "thrice": work(60_000)}), rounds=5)
    assert found["once"]["ratio"] == found["once"]["high"] == 1.0
    assert 2 < found["thrice"]["ratio"] < 4.5
    assert found["thrice"]["low"] <= found["thrice"]["ratio"] <= found["thrice"]["high"]


@pytest.mark.parametrize("block", [checkpoints, collector, imagination, mixture, replay, sequences])
def test_the_ways_of_a_block_run(block: Any) -> None:
    """Each can be called again and again, and ours is compared with something."""
    cases = block.benchmark()  # held: with it go the files of a case
    found = in_turns(replace(next(cases), warmup=1), rounds=3, turn=0.0)
    assert next(iter(found.values()))["ratio"] == 1.0
    assert [name for name in found if name.startswith("composerl")]
    assert len(found) > 1
    assert all(figures["us"] > 0 for figures in found.values())


def test_the_page_of_speeds_is_made_of_the_results() -> None:
    assert tables.PAGE.read_text() == tables.page(tables.results())
