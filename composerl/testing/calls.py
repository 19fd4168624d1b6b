"""What the checks of a loss share: calls that can be repeated, and comparisons that say of what."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.objectives import LossModule

__all__ = ["assert_close", "call", "error_of", "minimised"]


def call(loss: LossModule, batch: TensorDictBase, seed: int = 0) -> TensorDictBase:
    """The loss on a copy of the batch, with the same random numbers at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return loss(batch.clone())


def minimised(out: TensorDictBase) -> list[str]:
    """The outputs named ``loss_*``."""
    return [key for key in out.keys() if key.startswith("loss_")]  # noqa: SIM118


def assert_close(a: Tensor, b: Tensor, what: str, tolerance: float = 1e-5) -> None:
    """An AssertionError that begins with ``what`` if the two differ."""
    assert torch.allclose(a, b, rtol=tolerance, atol=tolerance), f"{what}: {a} != {b}"


def error_of(call: Callable[[], object]) -> str:
    """The message of the error that a call ends in, empty if there is none."""
    try:
        call()
    except (ValueError, RuntimeError, KeyError) as error:
        return str(error)
    return ""
