"""Prioritized replay on every supported torch."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrl import torchrl_logger as logger
from torchrl.data import PrioritizedSampler as _TorchRLSampler
from torchrl.data.replay_buffers.samplers import prioritized as _torchrl

__all__ = ["PrioritizedSampler"]

_SIZE = 128


class _Groups:
    """A list of numbers and the reduction of each group of them: a tree of two levels.

    It has the methods of TorchRL's segment trees that a sampler uses. Writing a number reduces
    its group anew, so that no rounding error ever builds up, and everything is done for a whole
    batch in a few operations on small matrices: on a CPU as fast as seventeen levels of a tree.
    """

    neutral: float

    def __init__(self, capacity: int) -> None:
        groups = math.ceil(capacity / _SIZE)
        self.leaves = torch.full((groups, _SIZE), self.neutral)
        self.tops = torch.full((groups,), self.neutral, dtype=torch.float64)

    def reduce(self, x: Tensor) -> Tensor:
        """Over the last dimension, in float64."""
        raise NotImplementedError

    def __getitem__(self, index: Tensor | int) -> Tensor:
        return self.leaves.view(-1)[index]

    def __setitem__(self, index: Tensor | int, value: Tensor | float) -> None:
        index = torch.as_tensor(index).reshape(-1)
        self.leaves.view(-1)[index] = torch.as_tensor(value, dtype=torch.float32)
        changed = index // _SIZE
        self.tops[changed] = self.reduce(self.leaves[changed])

    def query(self, start: int, stop: int) -> float:
        """The reduction of the numbers in [start, stop); TorchRL only asks from the start on."""
        whole, rest = divmod(stop, _SIZE)
        parts = [self.reduce(self.tops[:whole])] if whole else []
        if rest:
            parts.append(self.reduce(self.leaves[whole, :rest]))
        return self.reduce(torch.stack(parts)).item()


class _SumGroups(_Groups):
    neutral = 0.0

    def reduce(self, x: Tensor) -> Tensor:
        return x.sum(-1, dtype=torch.float64)

    def scan_lower_bound(self, mass: np.ndarray | Tensor) -> Tensor:
        """For each mass the first index at which the running sum exceeds it."""
        mass = torch.as_tensor(mass, dtype=torch.float64)
        ends = self.tops.cumsum(0)
        group = torch.searchsorted(ends, mass, right=True).clamp_max_(len(ends) - 1)
        left = mass - (ends[group] - self.tops[group])
        inside = self.leaves[group].cumsum(-1, dtype=torch.float64)
        # A mass within rounding of its group's end belongs to the group's last number.
        offset = torch.searchsorted(inside, left.unsqueeze(-1), right=True).squeeze(-1)
        return group * _SIZE + offset.clamp_max_(_SIZE - 1)


class _MinGroups(_Groups):
    neutral = float("inf")

    def reduce(self, x: Tensor) -> Tensor:
        return x.amin(-1).double()


class PrioritizedSampler(_TorchRLSampler):
    """TorchRL's ``PrioritizedSampler``, also where its C++ extension does not load.

    Paper: Schaul et al. 2015, https://arxiv.org/abs/1511.05952. Row i is drawn with probability
    :math:`p_i^\\alpha / \\sum_k p_k^\\alpha`, its weight is
    :math:`(p_i^\\alpha / \\min_k p_k^\\alpha)^{-\\beta}`; new rows get the largest priority so far.

    All of that is TorchRL's code; only its segment trees are replaced, by tensors, if they are
    missing (torch 2.13). Its state is made of tensors and numbers only, so that it can be part
    of a checkpoint.

    Args:
        max_capacity: rows of the storage.
        alpha: 0 draws uniformly, 1 in proportion to the priorities.
        beta: 0 does not correct for the drawing, 1 corrects fully.
    """

    def __init__(self, max_capacity: int, alpha: float, beta: float, **kwargs: Any) -> None:
        level = logger.level
        # It would warn that prioritized replay may not work without the extension: here it does.
        logger.setLevel("ERROR")
        try:
            super().__init__(max_capacity, alpha, beta, **kwargs)
        finally:
            logger.setLevel(level)

    _max_priority: Any  # of TorchRL: the largest priority so far and its row, or None

    def _init(self) -> None:
        if _torchrl.SumSegmentTreeFp32 is not None:
            super()._init()
            return
        self._sum_tree = _SumGroups(self.max_size)
        self._min_tree = _MinGroups(self.max_size)
        self._max_priority = None

    def state_dict(self) -> dict[str, Any]:
        """Priorities (to the power alpha) and the largest one so far."""
        every = torch.arange(self.max_size)
        stored = torch.as_tensor(self._sum_tree[every])
        largest, row = self._max_priority
        return {
            "alpha": self.alpha,
            "beta": self.beta,
            # Rows never written are zero and come last, unless the storage is full.
            "priorities": stored[: int((stored > 0).sum())].clone(),
            "largest": None if largest is None else float(largest),
            "largest_row": None if row is None else int(row),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._alpha, self._beta = state_dict["alpha"], state_dict["beta"]
        self._init()
        priorities = state_dict["priorities"]
        if len(priorities):
            rows = torch.arange(len(priorities))
            self._sum_tree[rows] = priorities
            self._min_tree[rows] = priorities
        if state_dict["largest"] is not None:
            largest = torch.tensor(state_dict["largest"])
            self._max_priority = (largest, torch.tensor(state_dict["largest_row"]))
