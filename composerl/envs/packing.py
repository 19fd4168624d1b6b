"""Observations of images and vectors together, as one row of bytes.

Collectors, replays, checkpoints and workers pass observations on as one array each. Images stay
uint8 in it, vectors are the bytes of their float32, so that nothing is lost and nothing widened;
who reads observations takes them apart by the layout, which :class:`~composerl.envs.Spaces` holds.
"""

from collections.abc import Collection, Iterator, Mapping
from math import prod
from typing import Any

import gymnasium as gym
import numpy as np

__all__ = ["Layout", "PackedBox", "channels_first", "first_image", "is_image", "named_arrays",
           "pack", "packed_space", "slices", "unpack"]  # fmt: skip

Layout = tuple[tuple[str, tuple[int, ...]], ...]
"""Name and shape of each part, in order; those of three dimensions are images of uint8."""

WIDTH = np.dtype(np.float32).itemsize


class PackedBox(gym.spaces.Box):
    """The bytes that a Dict or Tuple with images in it was packed to, and their layout."""

    layout: Layout


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether a part of that shape is an image, and not a vector."""
    return len(shape) == 3


def channels_first(shape: tuple[int, ...]) -> bool:
    """Whether an image has its channels first: gymnasium's have them last, and they are few."""
    return shape[0] < shape[2]


def slices(layout: Layout) -> list[slice]:
    """The bytes of each part in a row."""
    ends = np.cumsum([prod(s) * (1 if is_image(s) else WIDTH) for _, s in layout]).tolist()
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def packed_space(leaves: Mapping[str, gym.Space]) -> PackedBox:
    """The space of the bytes of Boxes, by their names."""
    layout = tuple((name, tuple(leaf.shape or ())) for name, leaf in leaves.items())
    for (name, shape), leaf in zip(layout, leaves.values(), strict=True):
        if len(shape) > 2 and not (is_image(shape) and leaf.dtype == np.uint8):
            raise ValueError(
                f"{name} of an observation has shape {shape} and type {leaf.dtype}: what has more "
                "than two dimensions must be an image of uint8, with its channels first or last"
            )
    made = PackedBox(0, 255, (slices(layout)[-1].stop,), np.uint8)
    made.layout = layout
    return made


def named_arrays(
    observation: Any, names: Collection[str], above: str = ""
) -> Iterator[tuple[str, Any]]:
    """What a Dict or Tuple holds, by its joined ``names``.

    A list or tuple is an array, as a Box's observation may come, unless there is a Tuple of that
    name.
    """
    if isinstance(observation, (list, tuple)):
        inside = f"{above}/_index_" if above else "_index_"
        if any(name.startswith(inside) for name in names):
            observation = {f"_index_{index}": part for index, part in enumerate(observation)}
    if not isinstance(observation, Mapping):
        yield above, observation
        return
    for key, part in observation.items():
        yield from named_arrays(part, names, f"{above}/{key}" if above else str(key))


def pack(layout: Layout, observation: Any) -> np.ndarray:
    """A Dict or Tuple, or a batch of them, as bytes ``(..., bytes)``."""
    found = dict(named_arrays(observation, [name for name, _ in layout]))
    rows = []
    for name, shape in layout:
        part = np.asarray(found[name], np.uint8 if is_image(shape) else np.float32, order="C")
        rows.append(part.reshape(*part.shape[: part.ndim - len(shape)], prod(shape)).view(np.uint8))
    return np.concatenate(rows, -1)


def unpack(layout: Layout, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of bytes ``(..., bytes)`` as the arrays that they were packed from."""
    found = {}
    for (name, shape), place in zip(layout, slices(layout), strict=True):
        part = np.ascontiguousarray(rows[..., place])
        part = part if is_image(shape) else part.view(np.float32)
        found[name] = part.reshape(*rows.shape[:-1], *shape)
    return found


def first_image(layout: Layout, row: np.ndarray) -> np.ndarray:
    """The first image in a row of bytes, ``(channels, height, width)``."""
    image = next(x for x in unpack(layout, row).values() if x.dtype == np.uint8)
    return image if channels_first(image.shape) else image.transpose(2, 0, 1)
