"""Observations of several arrays, by their names: joined as the environment's own are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from composerl.envs.spaces import Spaces

__all__ = ["join_parts"]


def join_parts(observation: Mapping[str, Any], spaces: Spaces) -> np.ndarray:
    """One observation or a batch of them, a dictionary of its parts, as one array."""
    names, shapes = spaces.obs_parts, spaces.obs_part_shapes
    if names is None or shapes is None:
        parts = ", ".join(map(str, observation))
        why = "" if names is None else ": the policy was saved without the shapes of its parts"
        raise ValueError(
            f"observation must be one array, {spaces.obs_shape}, got a dictionary of {parts}{why}"
        )
    found = dict(_leaves(observation, names))
    if set(found) != set(names):
        raise ValueError(
            f"observation must have the parts {', '.join(names)}, got {', '.join(found) or 'none'}"
        )
    arrays = {name: _numbers(found[name], name) for name in names}
    batches = set()
    for (name, array), shape in zip(arrays.items(), shapes, strict=True):
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
    (batch,) = batches
    flat = zip(arrays.values(), shapes, strict=True)
    return np.concatenate([array.reshape(*batch, math.prod(shape)) for array, shape in flat], -1)


def _leaves(
    parts: Mapping[str, Any], names: tuple[str, ...], above: str = ""
) -> Iterator[tuple[str, Any]]:
    for key, part in parts.items():
        name = f"{above}/{key}" if above else str(key)
        # A list is an array, unless the environment has a Tuple there.
        if isinstance(part, (list, tuple)) and any(
            known.startswith(f"{name}/_index_") for known in names
        ):
            part = {f"_index_{index}": value for index, value in enumerate(part)}
        if isinstance(part, Mapping):
            yield from _leaves(part, names, name)
        else:
            yield name, part


def _numbers(part: Any, name: str) -> np.ndarray:
    try:
        array = np.asarray(part)
    except ValueError as error:
        raise ValueError(f"{name} of observation is no rectangular array: {error}") from None
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} of observation must be numbers, got dtype {array.dtype}")
    return array
