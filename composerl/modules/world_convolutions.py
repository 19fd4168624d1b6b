"""Convolutions that halve or double the sides of images, quick on CPUs where channels are few."""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

__all__ = ["Doubling", "Halving"]

#: Channels that a vector register holds: oneDNN is slow to make images of fewer.
_LANES = 16


class Halving(nn.Conv2d):
    """A convolution of 4 x 4 in strides of 2, of images in channels_last."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Halve a batch of images."""
        if _plain(x):
            return super().forward(x)
        return cast(Tensor, _Halve.apply(x, self.weight, self.bias))


class Doubling(nn.ConvTranspose2d):
    """A transposed convolution of 4 x 4 in strides of 2, or of 2 x 2 without ``overlap``."""

    def __init__(self, in_channels: int, out_channels: int, overlap: bool = True) -> None:
        size, padding = (4, 1) if overlap else (2, 0)
        super().__init__(in_channels, out_channels, size, 2, padding)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Double a batch of images."""
        if _plain(x):
            return super().forward(x, output_size)
        return cast(Tensor, _Double.apply(x, self.weight, self.bias))


def _plain(x: Tensor) -> bool:
    """Whether PyTorch's own convolution is the better one: for all but training on a CPU."""
    training = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return not training or x.device.type != "cpu" or torch.is_autocast_enabled("cpu")


class _Halve(torch.autograd.Function):
    """PyTorch's, but for the gradient of inputs with few channels, and the slow one of the bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight, bias, 2, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,), (x, weight) = grads, ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        of_x = _double(grad, weight, None) if ctx.needs_input_grad[0] else None
        return of_x, conv2d_weight(x, weight.shape, grad, 2, 1), grad.sum((0, 2, 3))


class _Double(torch.autograd.Function):
    """The same the other way: the gradient of doubling is halving."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _double(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,), (x, weight) = grads, ctx.saved_tensors
        grad, padding = grad.contiguous(memory_format=torch.channels_last), weight.shape[-1] // 4
        of_x = F.conv2d(grad, weight, None, 2, padding) if ctx.needs_input_grad[0] else None
        return of_x, conv2d_weight(grad, weight.shape, x, 2, padding), grad.sum((0, 2, 3))


def _double(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``conv_transpose2d`` with strides of 2, of kernels of 4 x 4 or of 2 x 2.

    Each pixel becomes four. Where channels are few these are computed together, as channels, and
    then put side by side: by a product if they do not overlap, else by a convolution of 3 x 3, in
    which every second weight of the kernel's rows and columns is for one of the four.
    """
    out, size = weight.shape[1], weight.shape[-1]
    if out >= _LANES:
        return F.conv_transpose2d(x, weight, bias, 2, size // 4)
    x = x.contiguous(memory_format=torch.channels_last)
    number, _, height, width = x.shape
    biases = None if bias is None else bias.repeat(4)
    if size == 2:
        kernel = weight.permute(0, 2, 3, 1).flatten(1)
        rows = x.permute(0, 2, 3, 1).flatten(0, 2)
        four = rows @ kernel if biases is None else torch.addmm(biases, rows, kernel)
    else:
        kernel = F.pad(weight, (1, 1, 1, 1)).unflatten(2, (3, 2)).unflatten(4, (3, 2)).flip(2, 4)
        kernel = kernel.permute(3, 5, 1, 0, 2, 4).reshape(4 * out, -1, 3, 3)
        four = F.conv2d(x, kernel, biases, 1, 1).permute(0, 2, 3, 1)
    pairs = four.reshape(number, height, width, 2, 2 * out).transpose(2, 3)
    return pairs.reshape(number, 2 * height, 2 * width, out).permute(0, 3, 1, 2)
