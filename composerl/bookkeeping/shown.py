"""What a policy is shown by its user: rows of a batch, or refused in a sentence that says why.

Environments and collectors show a policy what is known to be right; a user's arrays may be of any
shape, type and order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from composerl.envs.masks import MASK
from composerl.envs.parts import join_parts
from composerl.envs.spaces import Spaces

__all__ = ["rows_of"]


def rows_of(observation: Any, mask: Any, spaces: Spaces) -> tuple[Tensor | TensorDict, bool]:
    """Observations as a batch, with their masks where there are any; and whether it is only one."""
    rows, single = _observations(observation, spaces)
    return (rows if mask is None and not spaces.masked else _masked(rows, mask, spaces)), single


def _observations(observation: Any, spaces: Spaces) -> tuple[Tensor, bool]:
    shape = spaces.obs_shape
    several = (Mapping, tuple) if spaces.obs_layout is not None else Mapping
    if isinstance(observation, several):
        observation = join_parts(observation, spaces)
    try:
        array = observation if isinstance(observation, Tensor) else np.asarray(observation)
    except ValueError as error:
        raise ValueError(f"observation is no rectangular array of numbers: {error}") from None
    if isinstance(array, Tensor):
        numeric = array.dtype != torch.bool and not array.is_complex()
    else:
        numeric = array.dtype.kind in "iuf"
    if not numeric:
        raise TypeError(f"observation must be numbers, got dtype {array.dtype}")
    single = tuple(array.shape) == shape
    if not single and tuple(array.shape[1:]) != shape:
        raise ValueError(
            f"observation has shape {tuple(array.shape)}, expected {shape} or (batch, "
            f"{', '.join(map(str, shape))})"
        )
    dtype = getattr(torch, spaces.obs_dtype)
    if dtype == torch.uint8 and array.dtype not in (torch.uint8, np.uint8):
        raise TypeError(f"observation must be uint8 pixels, got dtype {array.dtype}")
    if isinstance(array, np.ndarray):
        array = np.array(array, dtype=spaces.obs_dtype)  # any stride, order or width
    obs = torch.as_tensor(array).to(dtype=dtype)
    if dtype.is_floating_point and not torch.isfinite(obs).all():
        raise ValueError("observation must be finite, got NaN or infinity")
    return (obs.unsqueeze(0) if single else obs), single


def _masked(obs: Tensor, mask: Any, spaces: Spaces) -> TensorDict:
    """Observations and their masks, as a masked environment shows them."""
    size = (len(obs), spaces.action_dim)
    if not spaces.masked:
        raise ValueError("this policy takes no mask: its environment has none")
    if mask is None:
        raise ValueError("this policy needs a mask: its environment says what is allowed")
    flags = torch.as_tensor(mask)
    if flags.dtype.is_floating_point or tuple(flags.shape) not in (size, size[1:]):
        raise ValueError(
            f"mask must be flags of shape {size[1:]} or {size}, got {flags.dtype} of shape "
            f"{tuple(flags.shape)}"
        )
    if not flags.bool().any(-1).all():
        raise ValueError("mask allows no action in some row")
    return TensorDict({"observation": obs, MASK: flags.bool().expand(size)}, size[:1])
