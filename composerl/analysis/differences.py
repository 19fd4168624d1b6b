"""Where two trees of numbers, tensors and text part."""

import math
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

__all__ = ["first_difference"]


def first_difference(a: Any, b: Any, where: str = "") -> str | None:
    """Where and by how much ``b`` differs from ``a``, at the first place that does; else None."""
    if isinstance(a, TensorDictBase) and isinstance(b, TensorDictBase):
        a, b = a.to_dict(), b.to_dict()
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return _tensors(a, b, where)
    if isinstance(a, dict) and isinstance(b, dict):
        if alone := [key for key in (*a, *b) if key not in a or key not in b]:
            return f"{where}{alone[0]} is in one of them only"
        return _first((a[key], b[key], f"{where}{key}: ") for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        pairs = zip(a, b, strict=False)
        found = _first((x, y, f"{where}{i}: ") for i, (x, y) in enumerate(pairs))
        lengths = f"{where}one has {len(a)} items, the other {len(b)}"
        return found or (lengths if len(a) != len(b) else None)
    same = a == b or (_nan(a) and _nan(b))
    return None if type(a) is type(b) and same else f"{where}{a!r} and {b!r}"


def _first(pairs: Any) -> str | None:
    return next((found for pair in pairs if (found := first_difference(*pair))), None)


def _nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _tensors(a: Tensor, b: Tensor, where: str) -> str | None:
    if a.shape != b.shape or a.dtype != b.dtype:
        kinds = [f"{x.dtype} {tuple(x.shape)}" for x in (a, b)]
        return f"{where}{kinds[0]} and {kinds[1]}"
    x, y = (tensor.detach().cpu().contiguous() for tensor in (a, b))
    if not x.numel() or torch.equal(*(t.reshape(-1).view(torch.uint8) for t in (x, y))):
        return None
    other = (x != y).sum().item()
    largest = (x.double() - y.double()).abs().max().item()
    return f"{where}{other} of {x.numel()} numbers differ, by {largest:.3g} at most"
