"""Matrix products on AMD's CPUs: by oneDNN, as MKL has AVX2 alone for them."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

#: Rows up to which MKL's products take no longer than oneDNN's.
_FEW = 24

__all__ = ["large_products", "small_products"]


@contextmanager
def large_products() -> Iterator[None]:
    """Have float products done by oneDNN where that is faster and rounds no coarser.

    PyTorch gives products of floats to MKL, which uses AVX-512 on Intel's CPUs only; on AMD's it
    takes twice as long as oneDNN for products with a hundred rows and more. For those with eight
    it is quicker. The one switch there is *allows* oneDNN bfloat16, which it then uses on CPUs that
    multiply tiles of it (AMX); elsewhere the products remain of floats, as :func:`_better` checks.
    """
    if not _better():
        yield
        return
    products = _switch()
    before = products.fp32_precision
    products.fp32_precision = "bf16"
    try:
        yield
    finally:
        products.fp32_precision = before


@contextmanager
def small_products(rows: int) -> Iterator[None]:
    """Within :func:`large_products`, have those of few rows done as elsewhere, which is quicker."""
    products = _switch()
    before = products.fp32_precision
    if before != "bf16" or rows > _FEW or not _better():
        yield
        return
    products.fp32_precision = "none"
    try:
        yield
    finally:
        products.fp32_precision = before


def _switch() -> Any:
    return torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


@cache
def _better() -> bool:
    """Whether this is AMD's, has AVX-512, and oneDNN loses no digits."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkldnn.enabled:
        return False
    if "AMD" not in str(torch.cpu.get_capabilities().get("cpu_name", "")):
        return False
    # 24 digits of which bfloat16 has 8; the product with the unit matrix is exact in floats. oneDNN
    # chooses by the shape how it multiplies.
    wholes = [torch.linspace(1, 2, n * n).view(n, n) for n in (64, 100, 512)]
    products = _switch()
    before = products.fp32_precision
    products.fp32_precision = "bf16"
    try:
        return all(torch.equal(x @ torch.eye(len(x)), x) for x in wholes)
    finally:
        products.fp32_precision = before
