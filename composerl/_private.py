"""What composerl does through a private name of another library, in one place.

All private names that it uses, and what to do when an upgrade breaks one, are in
``tests/private_names.py``.
"""

from typing import Any

import torch
from tensordict import TensorDict

__all__ = ["unchecked_tensordict"]


def unchecked_tensordict(
    values: dict[str, Any], shape: torch.Size, names: list[Any] | None = None
) -> TensorDict:
    """A TensorDict of entries that are known to fit.

    The public constructor checks each of them, for as long as all else takes in a sample or in a
    short rollout.
    """
    return TensorDict._new_unsafe(values, shape, names=names)
