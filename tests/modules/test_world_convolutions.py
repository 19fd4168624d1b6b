"""Convolutions for few channels: the same as PyTorch's, gradients included."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from composerl.modules.world_convolutions import Doubling, Halving


@pytest.mark.parametrize("channels", [(3, 8), (8, 3), (16, 8), (8, 16), (20, 24)])
@pytest.mark.parametrize("kind", ["halving", "doubling", "apart"])
@pytest.mark.parametrize("last", [True, False])
def test_the_same_as_pytorch_s(kind, channels, last):
    torch.manual_seed(0)
    x = torch.randn(3, channels[0], 6, 10, dtype=torch.float64)
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    layer = Halving(*channels) if kind == "halving" else Doubling(*channels, kind == "doubling")
    layer.double()
    plain = F.conv2d if kind == "halving" else F.conv_transpose2d
    weight, bias = layer.weight, layer.bias
    out, expected = layer(x), plain(x, weight, bias, 2, 0 if kind == "apart" else 1)
    torch.testing.assert_close(out, expected)
    grad = torch.randn_like(expected)
    found = torch.autograd.grad(out, [x, weight, bias], grad)
    for gradient, other in zip(
        found, torch.autograd.grad(expected, [x, weight, bias], grad), strict=True
    ):
        torch.testing.assert_close(gradient, other)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected.detach())


def test_autocast_has_pytorch_s_own():
    layer, x = Doubling(16, 8), torch.randn(2, 16, 4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert layer.weight.grad is not None
