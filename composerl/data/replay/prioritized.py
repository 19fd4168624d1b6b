"""Prioritized replay on every supported torch."""

from typing import Any

import numpy as np
import torch
from torchrl import torchrl_logger as logger
from torchrl.data import PrioritizedSampler as _TorchRLSampler
from torchrl.data import Storage, TensorStorage
from torchrl.data.replay_buffers.samplers import prioritized as _torchrl

__all__ = ["PrioritizedSampler"]


class _Tree:
    """A list of numbers, what each pair of them comes to, each pair of those, and so on.

    Node i of a flat array has the nodes 2i and 2i + 1 below it. Writing numbers works out anew all
    that is above them, so that no rounding error ever builds up. A whole batch goes one level up
    or down at a time, in a few operations of numpy. The levels above the one of ``width`` nodes
    are left out: to reduce that one takes no longer than to go through some of them.
    """

    neutral: float
    combine: np.ufunc
    width: int

    def __init__(self, capacity: int) -> None:
        self.size = max(self.width, 1 << (capacity - 1).bit_length())
        self.levels = (self.size // self.width).bit_length() - 1
        self.nodes = np.full(2 * self.size, self.neutral)

    @property
    def top(self) -> np.ndarray:
        """What successive parts of the numbers come to."""
        return self.nodes[self.width : 2 * self.width]

    def __getitem__(self, index: Any) -> Any:
        return self.nodes[self.size + np.asarray(index)]

    def __setitem__(self, index: Any, value: Any) -> None:
        nodes, node = self.nodes, self.size + np.asarray(index)
        nodes[node] = value
        left, right = nodes[::2], nodes[1::2]
        for _ in range(self.levels):
            node >>= 1
            nodes[node] = self.combine(left[node], right[node])


class _SumTree(_Tree):
    neutral, combine, width = 0.0, np.add, 1 << 10

    def find(self, shares: np.ndarray) -> np.ndarray:
        """For each share of the sum, in [0, 1), the number in which the running sum gets there."""
        ends = self.top.cumsum()
        if not ends[-1] < np.inf:
            raise RuntimeError(f"priorities must be finite numbers, their sum is {ends[-1]}")
        mass = shares * ends[-1]
        node = np.minimum(ends.searchsorted(mass, "right"), self.width - 1)
        mass -= ends[node] - self.top[node]
        node += self.width
        left = self.nodes[::2]
        for _ in range(self.levels):
            below = left[node]
            beyond = mass >= below
            mass -= below * beyond
            node += node
            node += beyond
        # A share within rounding of a sum's end is of the last number that counts.
        while not (counts := self.nodes[node] > 0).all():
            node = np.where(counts, node, node - 1)
        return node - self.size


class _MinTree(_Tree):
    neutral, combine, width = np.inf, np.minimum, 1 << 14


class PrioritizedSampler(_TorchRLSampler):
    """TorchRL's ``PrioritizedSampler``, also where its C++ extension does not load.

    Paper: Schaul et al. 2015, https://arxiv.org/abs/1511.05952. Row i is drawn with probability
    :math:`p_i^\\alpha / \\sum_k p_k^\\alpha`, its weight is
    :math:`(p_i^\\alpha / \\min_k p_k^\\alpha)^{-\\beta}`; new rows get the largest priority so far.

    Where the extension is missing (torch 2.13), trees of numpy take the place of its segment trees,
    and drawing rows and setting priorities go straight to them. Its state is made of tensors and
    numbers only, so that it can be part of a checkpoint.

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
        self._number = np.float64 if self.dtype == torch.float64 else np.float32
        self._sum_tree = _SumTree(self.max_size)
        self._min_tree = _MinTree(self.max_size)
        self._max_priority = None

    def sample(self, storage: Storage, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """Rows of the storage, and their weights."""
        if not isinstance(self._sum_tree, _SumTree):
            return super().sample(storage, batch_size)
        if not (stored := len(storage)):
            raise RuntimeError("the storage is empty: extend the buffer before sampling")
        least = self._min_tree.top.min()
        if not least > 0:
            raise RuntimeError(f"priorities must be positive numbers, the least is {least}")
        if self._rng is None:
            shares = np.random.random_sample(batch_size)
        else:
            shares = torch.rand(batch_size, dtype=torch.float64, generator=self._rng).numpy()
        rows = np.minimum(self._sum_tree.find(shares), stored - 1)
        weights = (self._sum_tree[rows] / least) ** -self._beta
        index: Any = torch.from_numpy(rows)
        weight = torch.from_numpy(weights.astype(self._number))
        device = getattr(storage, "device", None)
        if isinstance(device, torch.device) and device.type != "cpu":
            index, weight = index.to(device), weight.to(device)
        if storage.ndim > 1:
            index = torch.unravel_index(index, storage.shape)
        return index, {"priority_weight": weight}

    def update_priority(
        self, index: Any, priority: Any, *, storage: TensorStorage | None = None
    ) -> None:
        """Set the priorities of rows."""
        given = torch.as_tensor(priority).detach().to("cpu", torch.float64).numpy()
        rows = torch.as_tensor(index).to("cpu", torch.int64).numpy()
        if (
            not isinstance(self._sum_tree, _SumTree)
            or self._max_priority_within_buffer
            or rows.ndim != 1
            or given.shape not in (rows.shape, ())
            or not len(rows)
            or rows.min() < 0
        ):  # rows that a writer left out, a storage of several dimensions: TorchRL sees to that
            super().update_priority(index, priority, storage=storage)
            return
        best = given.argmax()
        largest = float(given.flat[best])
        if self._max_priority[0] is None or largest > self._max_priority[0].item():
            self._max_priority = (torch.tensor(largest), torch.tensor(rows[best]))
        values = ((given + self._eps) ** self._alpha).astype(self._number)
        self._sum_tree[rows] = values
        self._min_tree[rows] = values

    def state_dict(self) -> dict[str, Any]:
        """Priorities (to the power alpha) and the largest one so far."""
        every = torch.arange(self.max_size)
        stored = torch.as_tensor(self._sum_tree[every]).to(self.dtype)
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
