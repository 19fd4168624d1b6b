"""The replay buffer of offline learning: a dataset that never changes, sampled quickly."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tensordict import TensorDictBase
from torchrl.data import ImmutableDatasetWriter, TensorDictReplayBuffer, TensorStorage
from torchrl.data.replay_buffers.samplers import RandomSampler, Sampler

from composerl.data.offline.behaviours import BEHAVIOURS
from composerl.data.offline.dataset import Dataset, validate
from composerl.data.offline.formats import read_dataset
from composerl.data.offline.generation import generate
from composerl.data.offline.statistics import monte_carlo_returns
from composerl.data.replay.tables import Home, Tables, layout
from composerl.envs.spaces import Spaces

_log = logging.getLogger(__name__)

__all__ = ["OfflineBuffer", "inner_bounds", "load_dataset"]

_INSIDE = 1e-5  # of half an action's range: atanh of a bound itself is infinite
_CHUNK = 8192


def load_dataset(
    dataset: str,
    env: str | Callable[[], gym.Env],
    *,
    batch_size: int = 256,
    size: int = 40_000,
    seed: int = 0,
    reward_scale: float = 1.0,
    reward_shift: float = 0.0,
    mc_gamma: float | None = None,
    device: str | torch.device = "cpu",
) -> OfflineBuffer:
    """A dataset for an environment, checked, as a replay buffer; says so if rows had to be dropped.

    Args:
        dataset: A behaviour (``random``, ``scripted``, ``noisy``, ``mixed``) or a file's path.
        env: The gymnasium id or factory that the dataset must fit.
        batch_size: Rows of a sample.
        size: Transitions to generate; a file is read whole.
        seed: Of the generated dataset; a file has none.
        reward_scale: Rewards become ``reward * reward_scale + reward_shift``.
        reward_shift: See ``reward_scale``.
        mc_gamma: If given, batches have ``mc_return``: the return from there on, so discounted.
        device: Where the data live and the batches come from.
    """
    path = Path(dataset).expanduser()
    is_path = path.suffix or os.sep in dataset or path.exists()
    if dataset in BEHAVIOURS or not is_path:
        data = generate(env, dataset, size, seed)
    else:
        data = read_dataset(path)
    spaces = Spaces.of(env)
    data = validate(data, spaces)
    if data.dropped or data.replaced:
        kept = f", {data.replaced} terminal ones kept without it" if data.replaced else ""
        _log.warning(
            f"{data.source}: {data.dropped} rows dropped, whose next observation is of another "
            f"episode or missing{kept}"
        )
    if not spaces.discrete:
        data = replace(data, actions=np.clip(data.actions, *inner_bounds(spaces)))
    return OfflineBuffer(
        data,
        batch_size=batch_size,
        reward_scale=reward_scale,
        reward_shift=reward_shift,
        mc_gamma=mc_gamma,
        device=device,
    )


class OfflineBuffer(TensorDictReplayBuffer):
    """A dataset as a read-only replay buffer with TorchRL's keys.

    Without a transform, and with the default sampler, a sample costs one draw and one gather per
    type of number; anything else takes TorchRL's way. Both draw the same rows from the global
    generator.

    Args:
        dataset: What it holds; copied.
        batch_size: Rows of a sample.
        reward_scale: Rewards become ``reward * reward_scale + reward_shift``.
        reward_shift: See ``reward_scale``.
        mc_gamma: If given, batches have ``mc_return`` ``(batch, 1)``, of the scaled rewards.
        device: Where the data live and the batches come from.
        sampler: Another TorchRL sampler, for example without replacement.
        transform: A TorchRL transform of the samples.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch_size: int = 256,
        reward_scale: float = 1.0,
        reward_shift: float = 0.0,
        mc_gamma: float | None = None,
        device: str | torch.device = "cpu",
        sampler: Sampler | None = None,
        transform: Any = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if not math.isfinite(reward_scale) or reward_scale == 0 or not math.isfinite(reward_shift):
            raise ValueError(
                "reward_scale must be finite and not 0, reward_shift finite, got "
                f"{reward_scale} and {reward_shift}"
            )
        if not len(dataset):
            raise ValueError(f"{dataset.source} is empty, expected at least one row")
        rewards = (dataset.rewards * reward_scale + reward_shift).astype(np.float32)
        scaled = replace(dataset, rewards=rewards)
        extra = {} if mc_gamma is None else {"mc_return": monte_carlo_returns(scaled, mc_gamma)}
        columns = {home: column.to(device) for home, column in _columns(scaled, extra).items()}
        self._tables = Tables.of(columns)
        # A lazy storage would log a line on the console when it is filled.
        super().__init__(
            storage=TensorStorage(self._tables.content()),
            sampler=RandomSampler() if sampler is None else sampler,
            writer=ImmutableDatasetWriter(),
            transform=transform,
            batch_size=batch_size,
        )
        self._options = {
            "batch_size": batch_size,
            "reward_scale": reward_scale,
            "reward_shift": reward_shift,
            "mc_gamma": mc_gamma,
            "device": device,
        }
        self._fingerprint = scaled.fingerprint
        self._dropped = dataset.dropped
        self._mean_return = float(dataset.returns().mean())
        self._filled = self._storage

    def like(self, dataset: Dataset) -> OfflineBuffer:
        """A buffer with other data and the same treatment of rewards, device and batches."""
        return OfflineBuffer(dataset, **self._options)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content, rewards as scaled."""
        return self._fingerprint

    @property
    def dropped(self) -> int:
        """Rows of the source left out because their next observation is not known."""
        return self._dropped

    @property
    def mean_return(self) -> float:
        """Mean undiscounted return of the episodes, in the environment's own rewards."""
        return self._mean_return

    # TorchRL's counters of the same name say nothing about a buffer that is never written.
    @cached_property
    def stats(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation (at least 0.001) of the observations, float32."""
        observations = self._storage.get(slice(None))["observation"]
        # In parts, as float64 pixels would take eight times the memory of the dataset.
        parts = observations.split(_CHUNK)
        mean = sum(part.double().sum(0) for part in parts) / len(observations)
        variance = sum((part.double() - mean).square().sum(0) for part in parts)
        std = (variance / len(observations)).sqrt().clamp_min(1e-3)
        return mean.float(), std.float()

    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        include_info: bool | None = None,
    ) -> TensorDictBase:
        """A batch of ``batch_size`` rows (that of the constructor by default), with ``index``."""
        plain = (
            type(self._sampler) is RandomSampler
            and self._storage is self._filled
            and self._rng is None
            and not len(self._transform)
            and not return_info
            and include_info is None
        )
        if not plain:
            return super().sample(batch_size, return_info, include_info)
        rows = self._batch_size if batch_size is None else batch_size
        # Drawn on the CPU, so that a run sees the same batches on every device.
        index = torch.randint(0, len(self._tables), (rows,)).to(self._tables.device)
        return layout(self._tables.rows(index), index.shape, index=index)

    def state_dict(self) -> dict[str, Any]:
        """The fingerprint, as the content is rebuilt from the config; a sampler's state if any."""
        state: dict[str, Any] = {"fingerprint": self.fingerprint}
        if sampler := self._sampler.state_dict():
            state["sampler"] = sampler
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse to go on with other data than the state was saved with."""
        saved = state_dict.get("fingerprint")
        if saved != self.fingerprint:
            raise ValueError(
                "the dataset is not the one of the checkpoint: its fingerprint is "
                f"{self.fingerprint[:12]}, but {str(saved)[:12]} was saved; check the dataset "
                "file, reward_scale and reward_shift"
            )
        if "sampler" in state_dict:
            self._sampler.load_state_dict(state_dict["sampler"])


def _columns(data: Dataset, extra: dict[str, np.ndarray]) -> dict[Home, torch.Tensor]:
    """The arrays as columns with TorchRL's keys; copies, as the dataset's are not ours."""
    terminated, truncated = torch.tensor(data.terminals), torch.tensor(data.timeouts)
    return {
        (False, "observation"): torch.tensor(data.observations),
        (False, "action"): torch.tensor(data.actions),
        (True, "observation"): torch.tensor(data.next_observations),
        (True, "reward"): torch.tensor(data.rewards)[:, None],
        (True, "terminated"): terminated[:, None],
        (True, "truncated"): truncated[:, None],
        (True, "done"): (terminated | truncated)[:, None],
        **{(False, key): torch.tensor(column)[:, None] for key, column in extra.items()},
    }


def inner_bounds(spaces: Spaces) -> tuple[np.ndarray, np.ndarray]:
    """The action bounds moved in by a hair, and by one float32 at least."""
    low, high = np.asarray(spaces.low), np.asarray(spaces.high)
    margin = np.where(np.isfinite(high - low), _INSIDE * 0.5 * (high - low), 0.0)
    least = np.nextafter(low.astype(np.float32), np.float32(np.inf))
    most = np.nextafter(high.astype(np.float32), np.float32(-np.inf))
    return (
        np.maximum((low + margin).astype(np.float32), least),
        np.minimum((high - margin).astype(np.float32), most),
    )
