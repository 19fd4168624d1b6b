"""Datasets made of datasets: whole episodes of them, mixed or chosen by their returns."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from composerl.data.offline.checks import KEYS
from composerl.data.offline.dataset import Dataset

__all__ = ["filter_episodes", "mix"]


def mix(first: Dataset, second: Dataset, share: float | None = None, *, seed: int = 0) -> Dataset:
    """Episodes of two datasets, those of the first before those of the second.

    Args:
        first: a dataset.
        second: one of the same environment.
        share: of the first's rows in the result, between 0 and 1. One dataset is taken whole, and
            of the other random episodes, until the share is as near as whole episodes come. None
            takes all of both.
        seed: of the choice of episodes.
    """
    for key in KEYS[:2]:
        one, other = (getattr(dataset, key) for dataset in (first, second))
        if one.shape[1:] != other.shape[1:] or one.dtype != other.dtype:
            raise ValueError(
                f"{key} of {first.source} are {one.dtype} of shape {one.shape[1:]}, those of "
                f"{second.source} {other.dtype} of shape {other.shape[1:]}: they do not mix"
            )
    if first.obs_parts != second.obs_parts and first.obs_parts and second.obs_parts:
        raise ValueError(
            f"the parts of observations are {first.obs_parts} in {first.source} and "
            f"{second.obs_parts} in {second.source}: they do not mix"
        )
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    if share is not None:
        if not 0 < share < 1:
            raise ValueError(f"share must be between 0 and 1, got {share}")
        rng, wanted = np.random.default_rng(seed), share / (1 - share)
        if len(first) > wanted * len(second):
            first = _some(first, wanted * len(second), rng)
        else:
            second = _some(second, len(first) / wanted, rng)
    arrays: dict[str, Any] = {
        key: np.concatenate([getattr(first, key), getattr(second, key)]) for key in KEYS
    }
    source = f"{first.source} and {second.source}"
    parts = first.obs_parts or second.obs_parts
    return Dataset(**arrays, source=source, obs_parts=parts)


def filter_episodes(
    dataset: Dataset,
    min_return: float | None = None,
    max_return: float | None = None,
    top: float | None = None,
) -> Dataset:
    """The episodes with returns in a range, in their order.

    Args:
        dataset: of which to choose.
        min_return: the least return that is kept.
        max_return: the largest.
        top: share of the episodes that are kept, the best of those in the range.
    """
    if min_return is None and max_return is None and top is None:
        raise ValueError("say what to keep: min_return, max_return or top")
    if top is not None and not 0 < top <= 1:
        raise ValueError(f"top must be a share of the episodes in (0, 1], got {top}")
    returns = dataset.returns()
    low = -math.inf if min_return is None else min_return
    high = math.inf if max_return is None else max_return
    kept = np.flatnonzero((returns >= low) & (returns <= high))
    if not len(kept):
        raise ValueError(
            f"{dataset.source}: none of {len(returns)} episodes has a return from {low:g} to "
            f"{high:g}; they have {returns.min():g} to {returns.max():g}"
        )
    if top is not None:
        best = np.argsort(-returns[kept], kind="stable")[: math.ceil(top * len(kept))]
        kept = kept[np.sort(best)]
    return _episodes(dataset, kept)


def _episodes(dataset: Dataset, chosen: np.ndarray) -> Dataset:
    rows = [np.arange(start, stop) for start, stop in dataset.episodes()[chosen]]
    return replace(dataset.take(np.concatenate(rows)), dropped=0, replaced=0)


def _some(dataset: Dataset, rows: float, rng: np.random.Generator) -> Dataset:
    """Random episodes that have so many rows, as nearly as whole ones do; at least one."""
    bounds = dataset.episodes()
    order = rng.permutation(len(bounds))
    sums = np.cumsum((bounds[:, 1] - bounds[:, 0])[order])
    number = int(np.abs(sums - rows).argmin()) + 1
    return _episodes(dataset, np.sort(order[:number]))
