"""What a world model makes of observations: images, vectors, or both."""

from math import prod

from torch import Tensor, nn

from composerl.modules.world_images import ImageDecoder, ImageEncoder, PooledDecoder, PooledEncoder
from composerl.modules.world_parts import Head, dense_layers
from composerl.modules.world_size import WorldSize

__all__ = ["VectorDecoder", "VectorEncoder", "decoder_of", "encoder_of"]


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


def encoder_of(shape: tuple[int, ...], size: WorldSize) -> nn.Module:
    """The encoder of observations of this shape; its ``out_dim`` is the length of the features."""
    if len(shape) != 3:
        return VectorEncoder(prod(shape), size)
    return (PooledEncoder if size.pooled else ImageEncoder)(shape, size.depth)


def decoder_of(shape: tuple[int, ...], size: WorldSize) -> nn.Module:
    """From states to observations of this shape."""
    if len(shape) != 3:
        return VectorDecoder(prod(shape), size)
    if size.pooled:
        return PooledDecoder(size, shape)
    return ImageDecoder(size.features, shape, size.depth)
