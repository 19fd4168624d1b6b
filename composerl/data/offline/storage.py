"""A dataset as a storage of TorchRL replay buffers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from composerl.data.offline.dataset import Dataset
from composerl.data.offline.statistics import monte_carlo_returns
from composerl.data.replay.storage import PackedStorage
from composerl.data.replay.tables import Column, pack

__all__ = ["DatasetStorage", "observation_stats"]

_CHUNK = 8192


class DatasetStorage(PackedStorage):
    """A dataset with TorchRL's keys, read-only: a ``storage=`` of a replay buffer.

    A checkpoint (``state_dict``) holds its fingerprint alone, as the content is made again from
    the same file or behaviour; another content is refused.

    Args:
        dataset: what it holds; copied.

    Keyword Args:
        mc_gamma: if given, rows have ``mc_return`` ``(1,)``: the return from there on, so
            discounted.
        columns: further ones, an entry for each row; a checkpoint does not know of them.
        device: where the data live and the samples come from.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        mc_gamma: float | None = None,
        columns: Mapping[Column, np.ndarray] | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        if not len(dataset):
            raise ValueError(f"{dataset.source} is empty, expected at least one row")
        super().__init__(len(dataset), device=device)
        self.fingerprint = dataset.fingerprint
        held: dict[Column, np.ndarray] = {
            ("observation",): dataset.observations,
            ("action",): dataset.actions,
            ("next", "observation"): dataset.next_observations,
            ("next", "reward"): dataset.rewards[:, None],
            ("next", "terminated"): dataset.terminals[:, None],
            ("next", "truncated"): dataset.timeouts[:, None],
            ("next", "done"): (dataset.terminals | dataset.timeouts)[:, None],
        }
        if mc_gamma is not None:
            held["mc_return",] = monte_carlo_returns(dataset, mc_gamma)[:, None]
        held |= columns or {}
        # Copies, as the dataset's arrays are not ours.
        self._adopt(*pack({key: torch.tensor(x, device=device) for key, x in held.items()}))
        self._len = len(dataset)

    def set(self, cursor: Any, data: TensorDictBase, *, set_cursor: bool = True) -> None:
        """Refused."""
        raise RuntimeError("a dataset is read-only: extend another buffer, and mix the two")

    def state_dict(self) -> dict[str, Any]:
        """The fingerprint."""
        return {"fingerprint": self.fingerprint}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Refuse to go on with other data than the state was saved with."""
        saved = state_dict.get("fingerprint")
        if saved != self.fingerprint:
            raise ValueError(
                "the dataset is not the one of the checkpoint: its fingerprint is "
                f"{self.fingerprint[:12]}, but {str(saved)[:12]} was saved; check the dataset "
                "file, reward_scale and reward_shift"
            )


def observation_stats(dataset: Dataset) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (at least 0.001) of the observations, float32."""
    observations = torch.from_numpy(np.ascontiguousarray(dataset.observations))
    # In parts, as float64 pixels would take eight times the memory of the dataset.
    parts = observations.split(_CHUNK)
    zero = torch.zeros((), dtype=torch.float64)
    mean = sum((part.double().sum(0) for part in parts), zero) / len(observations)
    variance = sum(((part.double() - mean).square().sum(0) for part in parts), zero)
    return mean.float(), (variance / len(observations)).sqrt().clamp_min(1e-3).float()
