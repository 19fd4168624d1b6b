"""What all checks share: the way they are run, and comparisons that say what was compared."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from typing import Any
from unittest import SkipTest

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

__all__ = ["assert_close", "assert_same", "error_of", "needs", "run", "seed"]


def run(
    checks: Mapping[str, Callable[..., None]],
    only: str | None,
    fresh: Callable[[], tuple[Any, ...]],
) -> None:
    """Call each check, or the one of that name, with things of its own.

    A check that has nothing to look at raises SkipTest, which pytest and unittest understand; when
    all are run, it is left out. No random number of the caller's is drawn.
    """
    if only is not None and only not in checks:
        raise ValueError(f"only must be one of {list(checks)}, got {only!r}")
    state = np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            for name in checks if only is None else [only]:
                seed(0)  # whatever was drawn before: a check finds the same each time
                with suppress(SkipTest) if only is None else nullcontext():
                    checks[name](*fresh())
    finally:
        np.random.set_state(state)


def needs(condition: object, what: str) -> None:
    """Leave a check that does not concern what it is given."""
    if not condition:
        raise SkipTest(f"does not apply without {what}")


def assert_close(a: Tensor, b: Tensor, what: str, tolerance: float = 1e-5) -> None:
    """An AssertionError that begins with ``what`` if the two differ."""
    if not torch.allclose(a, b, rtol=tolerance, atol=tolerance):
        if a.numel() == 1:
            raise AssertionError(f"{what}: {a.item():g} instead of {b.item():g}")
        raise AssertionError(f"{what}: off by {(a - b).abs().max().item():g}")


def error_of(call: Callable[[], object]) -> str:
    """The message of the error that a call ends in, empty if there is none."""
    try:
        call()
    except (ValueError, RuntimeError, KeyError) as error:
        return str(error)
    return ""


def assert_same(found: TensorDictBase, expected: TensorDictBase, what: str) -> None:
    """An AssertionError that names what ``expected`` has and ``found`` has not, to the bit."""
    assert found.shape == expected.shape, f"{what} has shape {found.shape}, not {expected.shape}"
    different = []
    for key in expected.keys(True, True):
        a, b = found.get(key, None), expected.get(key)
        if a is None or a.dtype != b.dtype or not torch.equal(a, b):
            different.append("/".join(key) if isinstance(key, tuple) else key)
    assert not different, f"{what} differs in {', '.join(sorted(different))}"


def seed(number: int) -> None:
    """Seed the generators that TorchRL's buffers draw from."""
    torch.manual_seed(number)
    np.random.seed(number)
