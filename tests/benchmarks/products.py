"""The matrix products of an update and nothing else: what no way of writing it can save."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from .timing import Step

aten = torch.ops.aten
PRODUCTS = {aten.mm, aten.addmm, aten.bmm, aten.baddbmm}


class _Noted(TorchDispatchMode):
    """Notes the products that are made while it lasts, with copies of what they are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., Any], Any, Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.overloadpacket in PRODUCTS:
            self.calls.append((func, tree_map(_copy, args), tree_map(_copy, kwargs or {})))
        return func(*args, **(kwargs or {}))


def _copy(x: object) -> object:
    return x.detach().clone() if isinstance(x, Tensor) else x


def products_of(update: Step) -> Step:
    """What makes the products of an update again, of the same shapes and strides."""
    with _Noted() as noted:
        update()
    calls = noted.calls
    if not calls:
        raise ValueError("the update has no products")

    @torch.no_grad()
    def again() -> None:
        for function, args, kwargs in calls:
            function(*args, **kwargs)

    return again
