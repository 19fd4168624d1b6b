"""Observations of several arrays, by their names: joined as the environment's own are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from composerl.envs.packing import is_image, named_arrays, pack
from composerl.envs.spaces import Spaces

__all__ = ["join_parts"]


def join_parts(observation: Mapping[str, Any] | tuple[Any, ...], spaces: Spaces) -> np.ndarray:
    """One observation or a batch of them, a dictionary (or tuple) of its parts, as one array."""
    layout, names = spaces.obs_layout or spaces.joined_from, spaces.part_names
    if layout is None:
        parts = ", ".join(map(str, observation))
        why = ": the policy was saved without the shapes of its parts" if names else ""
        raise ValueError(
            f"observation must be one array, {spaces.obs_shape}, got a dictionary of {parts}{why}"
        )
    found = dict(named_arrays(observation, names))
    if set(found) != set(names):
        raise ValueError(
            f"observation must have the parts {', '.join(names)}, got {', '.join(found) or 'none'}"
        )
    arrays = {name: _numbers(found[name], name, is_image(shape)) for name, shape in layout}
    batches = set()
    for name, shape in layout:
        array = arrays[name]
        more = array.ndim - len(shape)
        if more not in (0, 1) or array.shape[more:] != shape:
            rows = ", ".join(map(str, ("batch", *shape)))
            raise ValueError(
                f"{name} of observation has shape {array.shape}, expected {shape} or ({rows})"
            )
        batches.add(array.shape[:more])
    if len(batches) > 1:
        told = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ValueError(f"parts of observation are of batches that differ: {told}")
    if spaces.obs_layout is not None:
        return pack(layout, arrays)
    (batch,) = batches
    return np.concatenate([arrays[n].reshape(*batch, math.prod(s)) for n, s in layout], -1)


def _numbers(part: Any, name: str, image: bool) -> np.ndarray:
    try:
        array = np.asarray(part)
    except ValueError as error:
        raise ValueError(f"{name} of observation is no rectangular array: {error}") from None
    if (array.dtype != np.uint8) if image else (array.dtype.kind not in "iuf"):
        expected = "uint8 pixels" if image else "numbers"
        raise TypeError(f"{name} of observation must be {expected}, got dtype {array.dtype}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} of observation must be finite, got NaN or infinity")
    return array
