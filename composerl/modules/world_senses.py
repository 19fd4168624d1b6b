"""What a world model makes of observations: images, vectors, or both."""

from collections.abc import Mapping
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn
from torchrl.modules.functional import symlog

from composerl.envs.packing import Layout, channels_first, is_image, slices
from composerl.modules.world_images import ImageDecoder, ImageEncoder, PooledDecoder, PooledEncoder
from composerl.modules.world_parts import Head, dense_layers
from composerl.modules.world_size import WorldSize

__all__ = ["Inputs", "MixedDecoder", "MixedEncoder", "Seen", "VectorDecoder",
           "VectorEncoder", "decoder_of", "encoder_of", "inputs_of"]  # fmt: skip

Seen = Tensor | Mapping[str, Tensor]
"""Observations: one tensor, or where they have parts a tensor for each of these."""

Inputs = Tensor | tuple[Tensor, ...]
"""What is read and predicted of observations: of several arrays each image, then all vectors."""


class VectorEncoder(nn.Module):
    """Vectors ``(n, length)``, of which a symlog was taken, to features ``(n, out_dim)``."""

    def __init__(self, length: int, size: WorldSize) -> None:
        super().__init__()
        self.layers = dense_layers(length, [size.units] * size.layers)
        self.out_dim = size.units

    def forward(self, vector: Tensor) -> Tensor:
        """Encode a batch of vectors."""
        return self.layers(vector)


class VectorDecoder(Head):
    """Features ``(n, in_dim)`` to vectors ``(n, length)``: means of what the encoder reads."""

    def __init__(self, length: int, size: WorldSize) -> None:
        super().__init__(size.features, length, size.units, size.layers)


class MixedEncoder(nn.Module):
    """Images, each by an encoder of its own, and the vectors, joined, to features side by side."""

    def __init__(self, layout: Layout, size: WorldSize) -> None:
        super().__init__()
        self.parts = nn.ModuleList(encoder_of(shape, size) for shape in _shapes(layout))
        self.out_dim = sum(int(cast(Any, part).out_dim) for part in self.parts)

    def forward(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """Encode a batch of each."""
        return torch.cat([part(x) for part, x in zip(self.parts, inputs, strict=True)], -1)


class MixedDecoder(nn.Module):
    """From states to what :class:`MixedEncoder` reads."""

    def __init__(self, layout: Layout, size: WorldSize) -> None:
        super().__init__()
        self.parts = nn.ModuleList(decoder_of(shape, size) for shape in _shapes(layout))

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        """Decode a batch of features."""
        return tuple(part(features) for part in self.parts)


def encoder_of(shape: tuple[int, ...], size: WorldSize, layout: Layout | None = None) -> nn.Module:
    """The encoder of such observations; its ``out_dim`` is the length of the features."""
    if layout is not None:
        return MixedEncoder(layout, size)
    if len(shape) != 3:
        return VectorEncoder(prod(shape), size)
    return (PooledEncoder if size.pooled else ImageEncoder)(shape, size.depth)


def decoder_of(shape: tuple[int, ...], size: WorldSize, layout: Layout | None = None) -> nn.Module:
    """From states to such observations."""
    if layout is not None:
        return MixedDecoder(layout, size)
    if len(shape) != 3:
        return VectorDecoder(prod(shape), size)
    if size.pooled:
        return PooledDecoder(size, shape)
    return ImageDecoder(size.features, shape, size.depth)


def inputs_of(x: Seen, dtype: torch.dtype, layout: Layout | None = None) -> Inputs:
    """What is read and predicted of observations ``(n, ...)``.

    Images as floats in [0, 1], channels_last; the symlog of vectors. With a layout, observations
    are bytes, or tensors by the names of their parts.
    """
    if layout is not None:
        return _inputs_of_parts(_apart(x, layout) if isinstance(x, Tensor) else x, dtype, layout)
    if not isinstance(x, Tensor):
        raise TypeError(f"observations must be one tensor, got {', '.join(x)}")
    return _plain_inputs(x, dtype)


def _plain_inputs(x: Tensor, dtype: torch.dtype) -> Tensor:
    if x.ndim != 4:
        return symlog(x.flatten(1).to(dtype))
    x = x.contiguous(memory_format=torch.channels_last)
    return x.to(dtype).mul_(1 / 255) if x.dtype == torch.uint8 else x


def _apart(rows: Tensor, layout: Layout) -> dict[str, Tensor]:
    """The parts of rows of bytes ``(n, bytes)``."""
    found = {}
    for (name, shape), place in zip(layout, slices(layout), strict=True):
        part = rows[:, place]
        if not is_image(shape):  # a copy: floats cannot begin at any byte
            part = part.clone(memory_format=torch.contiguous_format).view(torch.float32)
        found[name] = part.unflatten(1, shape) if shape else part.squeeze(1)
    return found


def _inputs_of_parts(
    parts: Mapping[str, Tensor], dtype: torch.dtype, layout: Layout
) -> tuple[Tensor, ...]:
    images, vectors = [], []
    for name, shape in layout:
        part = parts[name]
        if is_image(shape):
            images.append(
                _plain_inputs(part if channels_first(shape) else part.permute(0, 3, 1, 2), dtype)
            )
        else:
            vectors.append(part.reshape(part.shape[0], prod(shape)))
    return (*images, _plain_inputs(torch.cat(vectors, 1), dtype)) if vectors else tuple(images)


def _shapes(layout: Layout) -> list[tuple[int, ...]]:
    """Of each image, channels first, and of all vectors together."""
    shapes = [shape for _, shape in layout if is_image(shape)]
    images = [shape if channels_first(shape) else (shape[2], *shape[:2]) for shape in shapes]
    length = sum(prod(shape) for _, shape in layout if not is_image(shape))
    return [*images, (length,)] if len(shapes) < len(layout) else images
