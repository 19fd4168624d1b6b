"""Batches from two buffers, in a fixed share."""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import ReplayBuffer

from composerl._private import unchecked_tensordict

__all__ = ["MixedReplayBuffer"]


class MixedReplayBuffer:
    """Two replay buffers as one: so many rows of the first in each batch, the rest of the second.

    TorchRL's ``OfflineToOnlineReplayBuffer`` does so with a dataset and a buffer that it makes
    itself, of a storage alone; it has no ``state_dict``, and takes no share of 0 or 1. This one
    takes any two buffers as they are, with their samplers and transforms.

    A batch has ``round(offline_fraction * batch_size)`` rows of the first buffer, then rows of the
    second; as long as the second is empty, all are of the first. For a dataset that is joined by
    what the agent experiences, and for real data that are joined by imagined ones. Keys that only
    one of the two has are left out.

    Args:
        offline: the first buffer.
        online: the second one, to which :meth:`extend` adds.

    Keyword Args:
        offline_fraction: share of the first in each batch, in [0, 1].
        batch_size: rows of a batch.
    """

    def __init__(
        self,
        offline: ReplayBuffer,
        online: ReplayBuffer,
        *,
        offline_fraction: float = 0.5,
        batch_size: int = 256,
    ) -> None:
        if not 0 <= offline_fraction <= 1:
            raise ValueError(f"offline_fraction must be in [0, 1], got {offline_fraction}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.offline_buffer = offline
        self.online_buffer = online
        self.offline_fraction = offline_fraction
        self.batch_size = batch_size

    def __len__(self) -> int:
        return len(self.offline_buffer) + len(self.online_buffer)

    def extend(self, batch: TensorDictBase) -> Tensor:
        """Add rows to the second buffer; returns where they went."""
        return self.online_buffer.extend(batch)

    def sample(self, batch_size: int | None = None) -> TensorDictBase:
        """A batch: first rows of the first buffer, then of the second."""
        size = self.batch_size if batch_size is None else batch_size
        first = round(self.offline_fraction * size)
        if first == size or not len(self.online_buffer):
            return self.offline_buffer.sample(size)
        if first == 0:
            return self.online_buffer.sample(size)
        return _join(self.offline_buffer.sample(first), self.online_buffer.sample(size - first))

    def state_dict(self) -> dict[str, Any]:
        """That of both buffers."""
        return {
            "offline": self.offline_buffer.state_dict(),
            "online": self.online_buffer.state_dict(),
            "offline_fraction": self.offline_fraction,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.offline_buffer.load_state_dict(state_dict["offline"])
        self.online_buffer.load_state_dict(state_dict["online"])
        self.offline_fraction = state_dict["offline_fraction"]


def _join(first: Any, second: Any) -> Any:
    """Rows of two tensors, or of two TensorDicts."""
    if not isinstance(first, TensorDictBase):
        return torch.cat([first, second])
    # As dictionaries: a TensorDict takes as long to find an entry as to join two columns.
    a, b = dict(first.items()), dict(second.items())
    joined = {key: _join(a[key], b[key]) for key in a if key in b}
    return unchecked_tensordict(joined, torch.Size([len(first) + len(second)]))
