"""Rows of metrics: means since the row before, exact wherever a checkpoint comes in between."""

from __future__ import annotations

import re
import time

import pytest
import torch

from composerl.bookkeeping.rows import PENDING, Diverged, Rows


def test_tensors_are_averaged_and_numbers_are_the_latest():
    """Of 1, 2 and 6 the mean is 3; epsilon is what it was last; names without / are train/."""
    rows = Rows()
    for step, value in enumerate((1.0, 2.0, 6.0)):
        rows.add(step, {"loss_q": torch.tensor(value), "judge/acc": torch.tensor([value])})
        rows.add(step, {"epsilon": 0.5 - step / 10, "collect/return": value})
    assert rows.take() == {
        "train/loss_q": 3.0, "judge/acc": 3.0, "train/epsilon": 0.3, "collect/return": 6.0,
    }  # fmt: skip
    rows.add(3, {"loss_q": torch.tensor(8.0)})
    assert rows.take() == {"train/loss_q": 8.0}
    assert rows.take() == {}


def test_the_same_bits_wherever_the_state_is_saved():
    values = torch.randn(3 * PENDING, generator=torch.Generator().manual_seed(0)).exp()
    straight, resumed = Rows(), Rows()
    for step, value in enumerate(values):
        straight.add(step, {"loss_q": value})
        resumed.add(step, {"loss_q": value})
        if step % 37 == 0:
            state, resumed = resumed.state_dict(), Rows()
            resumed.load_state_dict(state)
    assert straight.take() == resumed.take()


def test_a_loss_that_is_no_number_is_told_with_its_step():
    rows = Rows()
    for step in range(5):
        rows.add(step, {"loss_q": torch.tensor(float("nan") if step == 3 else 1.0)})
    with pytest.raises(Diverged, match="train/loss_q is nan at step 3"):
        rows.read()
    rows = Rows()
    rows.add(0, {"advantage": torch.tensor(float("inf"))})
    assert rows.take() == {"train/advantage": float("inf")}


def test_logging_costs_microseconds():
    """About 6 for ten metrics, of an update's thousand or more; CPU time, the fastest of five."""
    metrics = {f"loss_{i}": torch.tensor(float(i)) for i in range(10)}

    def once():
        rows, start = Rows(), time.process_time()
        for step in range(4 * PENDING):
            rows.add(step, metrics)
        return (time.process_time() - start) / (4 * PENDING)

    assert min(once() for _ in range(5)) < 30e-6


@pytest.mark.parametrize(
    ("value", "told"),
    [("abc", "'abc'"), ([1.0], "[1.0]"), (torch.zeros(3), "a tensor of shape (3,)")],
)
def test_what_is_no_number_is_named(value, told):
    rows = Rows()
    rows.add(1, {"fine": 1.0, "mine": value})
    with pytest.raises(
        ValueError, match=re.escape(f"run.log: 'mine' must be one number, got {told}")
    ):
        rows.read()
