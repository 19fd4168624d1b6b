"""Transitions as numpy arrays: what every reader and generator returns."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from composerl.data.offline.checks import KEYS, clean, refuse
from composerl.envs.spaces import Spaces

__all__ = ["Dataset", "validate"]

_OPTIONAL = ("next_observations", "timeouts")
_TOLERANCE = 1e-4  # of an action's range: rounding in a file, not a dataset of another scale

Parts = tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Transitions in the order they were made; episode after episode.

    ``terminals`` are true ends, from which nothing is bootstrapped. ``timeouts`` are cuts (a time
    limit, the end of the file), from which it is. A terminal row's next observation may be a
    placeholder: the row's own observation.
    """

    observations: np.ndarray
    """(N, *shape), float32 or, for pixels, uint8."""
    actions: np.ndarray
    """(N, A) float32, or (N,) int64 where actions are discrete."""
    rewards: np.ndarray
    """(N,) float32."""
    next_observations: np.ndarray
    """Like ``observations``."""
    terminals: np.ndarray
    """(N,) bool."""
    timeouts: np.ndarray
    """(N,) bool; never true where ``terminals`` is."""
    dropped: int = 0
    """Rows left out because the observation that followed them is not known."""
    replaced: int = 0
    """Terminal rows whose next observation was another episode's, now a placeholder."""
    source: str = "dataset"
    """Where it comes from, for messages."""
    rows: np.ndarray | None = None
    """The row of the source that each row was, where rows were dropped."""
    reward_scale: float = 1.0
    """What the source's rewards were multiplied by."""
    obs_parts: Parts | None = None
    """Names and lengths of the arrays that an observation was joined from, where it was."""

    def __len__(self) -> int:
        return len(self.rewards)

    def arrays(self) -> dict[str, Any]:
        """The six arrays by name."""
        return {key: getattr(self, key) for key in KEYS}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the six arrays, their types and shapes; the source does not matter."""
        digest = hashlib.sha256()
        for key, array in self.arrays().items():
            array = np.ascontiguousarray(array)
            digest.update(f"{key} {array.dtype.str} {array.shape};".encode())
            digest.update(array.data)
        return digest.hexdigest()

    def episodes(self) -> np.ndarray:
        """(E, 2) integers: the first row of each episode and the row after its last."""
        stops = np.union1d(np.flatnonzero(self.terminals | self.timeouts) + 1, [len(self)])
        stops = stops[stops > 0]
        return np.stack([np.append(0, stops)[:-1], stops], axis=1)

    def returns(self) -> np.ndarray:
        """(E,) float64: the undiscounted sum of rewards of each episode."""
        return np.add.reduceat(self.rewards.astype(np.float64), self.episodes()[:, 0])

    def take(self, rows: np.ndarray) -> Dataset:
        """Those rows alone."""
        arrays = {key: array[rows] for key, array in self.arrays().items()}
        return replace(self, **arrays, rows=rows if self.rows is None else self.rows[rows])

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, np.ndarray], source: str, *, find_leaks: bool = True
    ) -> Dataset:
        """Check raw arrays, derive what is optional, and leave out rows without a successor.

        Args:
            arrays: ``observations``, ``actions``, ``rewards``, ``terminals`` and, optionally,
                ``next_observations`` and ``timeouts``.
            source: Named in messages.
            find_leaks: Look for episode ends whose next observation is the first of the following
                episode. Off for layouts in which that cannot be.
        """
        if missing := [key for key in KEYS if key not in arrays and key not in _OPTIONAL]:
            there = ", ".join(sorted(arrays)) or "nothing"
            raise ValueError(f"{source}: no {' or '.join(missing)} in the file; it has {there}")
        held = clean({key: arrays[key] for key in KEYS if key in arrays}, source)
        obs, terminals = held["observations"], held["terminals"]
        next_obs, timeouts = held.get("next_observations"), held.get("timeouts")
        if next_obs is not None and next_obs.shape != obs.shape:
            raise ValueError(
                f"{source}: next_observations has shape {next_obs.shape}, expected that of "
                f"observations, {obs.shape}"
            )
        if timeouts is None:
            timeouts = np.zeros(len(obs), dtype=bool)
            if next_obs is None:
                warnings.warn(
                    f"{source} has neither timeouts nor next_observations: episodes that were cut "
                    "by a time limit cannot be told apart and are read as one",
                    stacklevel=2,
                )
            else:
                timeouts[:-1] = ~_same(next_obs[:-1], obs[1:])
        timeouts[-1] = True
        timeouts &= ~terminals
        drop = np.zeros(len(obs), dtype=bool)
        replaced = 0
        if next_obs is None:
            drop = timeouts.copy()
            next_obs = np.concatenate([obs[1:], obs[-1:]])
            next_obs[terminals] = obs[terminals]
        elif find_leaks:
            ends = np.flatnonzero(terminals | timeouts)[:-1]  # the last row has no follower
            leaks = ends[_same(next_obs[ends], obs[ends + 1])]
            # The file's last row was written by the same shift: what it holds is a filler.
            if len(leaks) and len(leaks) == len(ends) and timeouts[-1]:
                leaks = np.append(leaks, len(obs) - 1)
            drop[leaks] = timeouts[leaks]
            lost = leaks[terminals[leaks]]
            if len(lost):
                next_obs = next_obs.copy()  # never write into the caller's array
                next_obs[lost] = obs[lost]
            replaced = len(lost)
        # The row before a dropped one is the last of its episode now.
        before = np.flatnonzero(drop[1:])
        timeouts[before] |= ~terminals[before]
        held.update(next_observations=next_obs, timeouts=timeouts)
        made = cls(**held, replaced=replaced, source=source)
        if not drop.any():
            return made
        if drop.all():
            raise ValueError(
                f"{source}: none of the {len(obs)} rows has a next observation of its own episode"
            )
        return replace(made.take(np.flatnonzero(~drop)), dropped=int(drop.sum()))


def validate(dataset: Dataset, env: Any) -> Dataset:
    """Return the dataset fit for an environment, or say which row of which key is not.

    Actions that leave the action space by rounding only are clipped to it; observations that were
    joined from several arrays are brought into the environment's order.

    Args:
        dataset: as it was read.
        env: a :class:`~composerl.envs.Spaces`, or what has them: a TorchRL or gymnasium
            environment, which are only looked at, or an id or factory, which is opened for it.
    """
    spaces = Spaces.of(env).require_one_array("a dataset")
    dataset = _in_order(dataset, spaces.obs_parts)
    source = dataset.source
    arrays = clean(dataset.arrays(), source, dataset.rows)
    for key in ("observations", "next_observations"):
        _compare_shapes(source, key, arrays[key], spaces.obs_shape)
        if spaces.obs_dtype == "uint8" and arrays[key].dtype != np.uint8:
            wrong = (arrays[key] < 0) | (arrays[key] > 255) | (arrays[key] % 1 != 0)
            refuse(wrong, arrays[key], key, "expected a pixel, 0 to 255", source, dataset.rows)
        arrays[key] = arrays[key].astype(spaces.obs_dtype, copy=False)
    arrays["actions"] = _fit_actions(arrays["actions"], dataset, spaces)
    arrays["timeouts"] = arrays["timeouts"] & ~arrays["terminals"]
    return replace(dataset, **arrays)


def _in_order(dataset: Dataset, names: tuple[str, ...] | None) -> Dataset:
    """The dataset with the parts of its observations in another order, where both are known."""
    if dataset.obs_parts is None or names is None:
        return dataset
    sizes = dict(dataset.obs_parts)
    if set(sizes) != set(names):
        raise ValueError(
            f"{dataset.source}: observations has the parts {', '.join(sizes)}, but the "
            f"environment's have {', '.join(names)}; it is a dataset of another environment"
        )
    if tuple(sizes) == names:
        return dataset
    stops = dict(zip(sizes, np.cumsum(list(sizes.values())), strict=True))
    columns = np.concatenate([np.arange(stops[n] - sizes[n], stops[n]) for n in names])
    return replace(
        dataset,
        observations=dataset.observations[:, columns],
        next_observations=dataset.next_observations[:, columns],
        obs_parts=tuple((name, sizes[name]) for name in names),
    )


def _fit_actions(actions: np.ndarray, dataset: Dataset, spaces: Spaces) -> np.ndarray:
    source, integers = dataset.source, actions.dtype == np.int64
    if integers != spaces.discrete:
        has, needs = ("integers", "floats") if integers else ("floats", "integers")
        raise ValueError(
            f"{source}: actions are {has}, but the environment's are {needs}; it is a dataset of "
            "another environment"
        )
    _compare_shapes(source, "actions", actions, () if spaces.discrete else (spaces.action_dim,))
    if spaces.discrete:
        wrong = (actions < 0) | (actions >= spaces.action_dim)
        expected = f"expected an integer from 0 to {spaces.action_dim - 1}"
        refuse(wrong, actions, "actions", expected, source, dataset.rows)
        return actions
    low, high = np.asarray(spaces.low, np.float64), np.asarray(spaces.high, np.float64)
    margin = np.where(np.isfinite(high - low), _TOLERANCE * (high - low), 0.0)
    wrong = (actions < low - margin) | (actions > high + margin)
    expected = f"outside the action space from {low.tolist()} to {high.tolist()}"
    refuse(wrong, actions, "actions", expected, source, dataset.rows)
    return np.clip(actions, low.astype(np.float32), high.astype(np.float32))


def _compare_shapes(source: str, key: str, array: np.ndarray, needed: tuple[int, ...]) -> None:
    if array.shape[1:] != needed:
        raise ValueError(
            f"{source}: {key} has rows of shape {array.shape[1:]}, but the environment's have "
            f"{needed}; it is a dataset of another environment"
        )


def _same(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(N,) bool: whether whole rows are equal."""
    return (left == right).all(axis=tuple(range(1, left.ndim)))
