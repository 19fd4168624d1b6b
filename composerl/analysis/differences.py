"""Where two trees of numbers, tensors and text part."""

import math
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor

from composerl._schema import number, short

__all__ = ["Difference", "find_difference", "first_difference"]


class Difference(NamedTuple):
    """A place at which two trees part, and how."""

    where: str
    how: str

    def __str__(self) -> str:
        return f"{self.where}: {self.how}" if self.where else self.how


def first_difference(a: Any, b: Any) -> str | None:
    """Where and by how much ``b`` differs from ``a``, at the first place that does; else None."""
    found = find_difference(a, b)
    return None if found is None else str(found)


def find_difference(a: Any, b: Any, where: tuple[Any, ...] = ()) -> Difference | None:
    """The first place at which ``b`` differs from ``a``; None if they are equal, to the bit."""
    place = ": ".join(map(str, where))
    if isinstance(a, TensorDictBase) and isinstance(b, TensorDictBase):
        a, b = a.to_dict(), b.to_dict()
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        how = _tensors(a, b)
        return None if how is None else Difference(place, how)
    if isinstance(a, dict) and isinstance(b, dict):
        for key in {**a, **b}:  # in their order: what comes first is what is asked for
            if key not in a or key not in b:
                return Difference(place, f"{key} is in one of them only")
            if found := find_difference(a[key], b[key], (*where, key)):
                return found
        return None
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        pairs = enumerate(zip(a, b, strict=False))
        each = (find_difference(x, y, (*where, i)) for i, (x, y) in pairs)
        found = next(filter(None, each), None)
        lengths = Difference(place, f"one has {len(a)} items, the other {len(b)}")
        return found or (lengths if len(a) != len(b) else None)
    if type(a) is type(b) and (a == b or (_nan(a) and _nan(b))):
        return None
    apart = f", {abs(a - b):.3g} apart" if number(a) and number(b) and a != b else ""
    return Difference(place, f"{short(a)} and {short(b)}{apart}")


def _nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _tensors(a: Tensor, b: Tensor) -> str | None:
    if a.shape != b.shape or a.dtype != b.dtype:
        kinds = [f"{x.dtype} {tuple(x.shape)}" for x in (a, b)]
        return f"{kinds[0]} and {kinds[1]}"
    x, y = (tensor.detach().cpu().contiguous() for tensor in (a, b))
    if not x.numel() or torch.equal(*(t.reshape(-1).view(torch.uint8) for t in (x, y))):
        return None
    other = (x != y).sum().item()
    largest = (x.double() - y.double()).abs().max().item()
    return f"{other} of {x.numel()} numbers differ, by {largest:.3g} at most"
