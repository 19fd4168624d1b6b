"""Replay: CPU microseconds to sample, to look ahead, to draw by priorities and set them, to extend.

Each in a stock ``TensorDictReplayBuffer`` with our blocks or TorchRL's, and written by hand on
plain tensors. TorchRL's prioritized sampler needs its C++ extension, which torch 2.13 does not
load; by hand, a draw is by a running sum over all priorities.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from composerl.data import NStep, PackedStorage, PrioritizedSampler

from .timing import Case, Step

SIZES, BATCH, ENVS, GAMMA = (10_000, 100_000, 1_000_000), 256, 8, 0.99
ALPHA, BETA, EPS = 0.6, 0.4, 1e-8


def transitions(rows: int, size: int = 4) -> TensorDict:
    """Of eight environments that take turns; one step in 200 ends an episode."""
    ends = torch.rand(rows, 1) < 0.005
    ids = ends.reshape(-1, ENVS).long().cumsum(0) * ENVS + torch.arange(ENVS)
    following = {
        "observation": torch.randn(rows, size), "reward": torch.randn(rows, 1), "done": ends,
        "terminated": ends.clone(), "truncated": torch.zeros_like(ends),
    }  # fmt: skip
    data = {"observation": torch.randn(rows, size), "action": torch.randint(0, 2, (rows,))}
    return TensorDict(
        {**data, "collector": {"traj_ids": ids.reshape(-1)}, "next": following}, [rows]
    )


def stock(rows: TensorDict, storage: Any, batch: int, **parts: Any) -> TensorDictReplayBuffer:
    """A full buffer of these rows."""
    buffer = TensorDictReplayBuffer(storage=storage(len(rows)), batch_size=batch, **parts)
    buffer.extend(rows)
    if "sampler" in parts:
        buffer.update_priority(torch.arange(len(rows)), torch.rand(len(rows)))
    return buffer


class ByHand:
    """Columns in a dict; a ring of full length whose newest row is the last."""

    def __init__(self, rows: TensorDict, batch: int) -> None:
        self.columns = dict(rows.flatten_keys().items())
        self.rows, self.batch = len(rows), batch
        self.places = cycle(range(0, self.rows, ENVS))
        self.powers = (torch.rand(self.rows) + EPS).double() ** ALPHA

    def gather(self, index: torch.Tensor) -> dict[str, torch.Tensor]:
        return {key: column[index] for key, column in self.columns.items()} | {"index": index}

    def uniform(self) -> dict[str, torch.Tensor]:
        return self.gather(torch.randint(0, self.rows, (self.batch,)))

    def look_ahead(self, n: int) -> dict[str, torch.Tensor]:
        index = torch.randint(0, self.rows, (self.batch,))
        ahead = ENVS * torch.arange(n)
        path = (index[:, None] + ahead) % self.rows
        ids = self.columns["collector.traj_ids"][path]
        alive = (ids == ids[:, :1]) & (ahead <= self.rows - 1 - index[:, None])
        steps = alive.sum(1, keepdim=True)
        last = path.gather(1, steps - 1).squeeze(1)
        found = self.gather(index)
        for key in self.columns:
            if key.startswith("next."):
                found[key] = self.columns[key][last]
        reward = self.columns["next.reward"][:, 0][path]
        found["next.reward"] = (reward * alive * GAMMA ** torch.arange(n)).sum(1, keepdim=True)
        return found | {"steps_to_next_obs": steps}

    def extend(self, new: dict[str, torch.Tensor]) -> None:
        start = next(self.places)
        for key, value in new.items():
            self.columns[key][start : start + ENVS] = value

    def prioritized(self) -> dict[str, torch.Tensor]:
        ends = self.powers.cumsum(0)
        mass = torch.rand(self.batch, dtype=torch.float64) * ends[-1]
        index = torch.searchsorted(ends, mass, right=True).clamp_max_(self.rows - 1)
        weight = (self.powers[index] / self.powers.min()) ** -BETA
        return self.gather(index) | {"priority_weight": weight.float()}

    def update(self, index: torch.Tensor, priority: torch.Tensor) -> None:
        self.powers[index] = (priority + EPS).double() ** ALPHA


def cases(rows: TensorDict, batch: int) -> dict[str, dict[str, Step]]:
    """What is compared, by case and way."""
    size, hand = len(rows), ByHand(rows, batch)
    ours = stock(rows, PackedStorage, batch)
    ahead = {n: stock(rows, PackedStorage, batch, sample_unit=NStep(n, GAMMA, ENVS))
             for n in (3, 10)}  # fmt: skip
    prioritized = stock(
        rows, PackedStorage, batch, sampler=PrioritizedSampler(size, ALPHA, BETA)
    )  # fmt: skip
    torchrl = stock(rows, LazyTensorStorage, batch)
    drawn, step = prioritized.sample(), transitions(ENVS)
    drawn["td_error"] = torch.rand(batch)

    def set_priorities() -> None:
        prioritized.update_tensordict_priority(drawn)

    uniform = {"by hand": hand.uniform, "TorchRL": torchrl.sample, "composerl": ours.sample}
    columns = dict(step.flatten_keys().items())
    return {
        "uniform": uniform,
        **{f"{n} steps ahead": {"by hand": lambda n=n: hand.look_ahead(n), "composerl": one.sample}
           for n, one in ahead.items()},
        "prioritized": {
            "by hand": lambda: hand.update(hand.prioritized()["index"], drawn["td_error"]),
            "composerl": lambda: (prioritized.sample(), set_priorities()),
            "composerl, sample alone": prioritized.sample,
            "composerl, update alone": set_priorities,
        },
        "extend by 8": {
            "by hand": lambda: hand.extend(columns),
            "TorchRL": lambda: torchrl.extend(step),
            "composerl": lambda: ours.extend(step),
            "composerl, prioritized": lambda: prioritized.extend(step),
        },
    }  # fmt: skip


def name(what: str, size: int) -> str:
    """Of a case."""
    return f"{what}, {size:,} rows"


def benchmark() -> Iterator[Case]:
    """Replay: uniform and prioritized batches of 256, look-ahead, extend by 8; 1e4 to 1e6 rows."""
    for size in SIZES:
        torch.manual_seed(0)
        for what, ways in cases(transitions(size), BATCH).items():
            yield Case(name(what, size), ways)
