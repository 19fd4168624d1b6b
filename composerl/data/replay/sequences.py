"""Replay of sequences, for models with memory: a sampler of slices, and latents kept with them."""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import ReplayBuffer, TensorStorage
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.envs import Transform

from composerl.data.replay.storage import newest_row

__all__ = ["Latents", "SequenceSampler"]

#: What a record has by itself, and a sample besides.
_TAKEN = ("observation", "action", "reward", "first", "terminal", "known", "index")


class SequenceSampler(Sampler):
    """Slices of successive rows of one environment, drawn uniformly: a TorchRL ``Sampler``.

    A slice is ``1 + length`` rows: one for context and ``length`` to train on. The buffer's
    ``batch_size`` counts slices, and a sample has the shape ``(slices, 1 + length)``. A slice may
    cross the end of an episode, which the next record's ``first`` tells, but never leads from the
    newest row to the oldest.

    TorchRL's ``SliceSampler`` takes about ten times as long and, by default, marks each slice's
    start as an episode's: a model with memory would be reset there.

    Args:
        length: rows of a slice, without its context.
        num_envs: environments that take turns in the storage, row by row: that of batches
            ``(environments, 1)`` which are stored by ``extend(batch.reshape(-1))``.
    """

    def __init__(self, length: int, num_envs: int = 1) -> None:
        for name, value in (("length", length), ("num_envs", num_envs)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.length = length
        self.num_envs = num_envs
        self._ahead = num_envs * torch.arange(1 + length)

    def sample(self, storage: TensorStorage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Rows ``(batch_size, 1 + length)`` of the storage."""
        rows = len(storage)
        starts = rows - self.length * self.num_envs
        if starts < 1:
            raise RuntimeError(
                f"there are {rows // self.num_envs} records of each environment, and a slice takes "
                f"{1 + self.length} (length {self.length} and one for context): collect more first"
            )
        start = torch.randint(0, starts, (batch_size, 1), generator=self._rng)
        return (newest_row(storage) + 1 + start + self._ahead) % rows, {}

    def state_dict(self) -> dict[str, Any]:
        """Nothing: slices are drawn by torch's generator."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore nothing."""

    def dumps(self, path: Any) -> None:
        """Write nothing, as there is no state."""

    def loads(self, path: Any) -> None:
        """Read nothing."""

    def _empty(self) -> None:
        """Nothing is remembered of what was stored."""


class Latents(Transform):
    """Latent states of a model, kept with the records: a ``transform=`` of a replay buffer.

    A slice that starts in the middle of an episode is to go on from a latent state, not from
    zeros. A record's latents are those *before* it, like its action: what the policy had in mind
    while acting, if the collector tells (``RecordCollector(latents=...)``), else zeros at first;
    and what training finds later, by :meth:`write`. ``known`` says whether there are any. Samples
    have both.

    Args:
        types: shape of each latent of a record, by name: kept as float16, or with the type if
            given as ``(shape, dtype)``; ``torch.uint8`` holds one-hot classes exactly.
    """

    def __init__(self, types: Mapping[str, Any]) -> None:
        super().__init__()
        self._types = {name: _shape_and_type(name, value) for name, value in types.items()}

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Samples are left as they are."""
        return tensordict

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        for name, (shape, dtype) in self._types.items():
            told = tensordict.get(name, None)
            if told is None:
                told = torch.zeros(*tensordict.shape, *shape, dtype=dtype)
            tensordict.set(name, told.to(dtype))
        if tensordict.get("known", None) is None:
            tensordict.set("known", torch.zeros(tensordict.shape, dtype=torch.bool))
        return tensordict

    def write(self, buffer: ReplayBuffer, batch: TensorDictBase) -> None:
        """Leave the latents that a loss has written into a sample with its records.

        Not with the context and the record after it: what is before these may have come from
        zeros, and better ones do when the record is further inside a slice. To be called before
        records are added, which may take the place of those sampled.
        """
        content = buffer.storage.get(slice(None))  # views of all rows
        index = batch["index"][:, 2:].cpu()
        for name, (row_shape, dtype) in self._types.items():
            values, places = batch[name], content.get(name)
            if values.shape != (*batch.shape, *row_shape):
                raise ValueError(
                    f"latent {name} must have shape {(*batch.shape, *row_shape)}, "
                    f"got {tuple(values.shape)}"
                )
            # Slices may share records: one after the other, as several threads would mix them.
            rows = values[:, 2:].detach().to(places.device, dtype)
            for at, slice_ in zip(index, rows, strict=True):
                places[at] = slice_
        content.get("known")[index] = True


def _shape_and_type(name: str, value: Any) -> tuple[tuple[int, ...], torch.dtype]:
    if name in _TAKEN:
        raise ValueError(f"latents must not be named {name!r}, which a sample has already")
    shape, dtype = value if isinstance(value[-1], torch.dtype) else (value, torch.float16)
    return tuple(shape), dtype
