"""Replay: CPU microseconds to sample, to look ahead, to draw by priorities and set them, to extend.

Each in a stock ``TensorDictReplayBuffer`` with our blocks or TorchRL's, and written by hand on
plain tensors. TorchRL's prioritized sampler needs its C++ extension, which torch 2.13 does not
load; by hand, a draw is by a running sum over all priorities.

    OMP_NUM_THREADS=1 python tests/benchmarks/replay.py
"""

from __future__ import annotations

from typing import Any

import torch
from common import Found, Step, in_turns, main, settle
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from composerl.data import NStep, PackedStorage, PrioritizedSampler

SIZES, BATCHES, ENVS, GAMMA = (10_000, 100_000, 1_000_000), (64, 256), 8, 0.99
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

    uniform = {"by hand": hand.uniform, "composerl": ours.sample, "TorchRL": torchrl.sample}
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
            "composerl": lambda: ours.extend(step),
            "composerl, prioritized": lambda: prioritized.extend(step),
            "TorchRL": lambda: torchrl.extend(step),
        },
    }  # fmt: skip


def measure(rounds: int) -> Found:
    """All sizes of buffers and batches."""
    settle()
    found: Found = {}
    for size in SIZES:
        torch.manual_seed(0)
        rows = transitions(size)
        for batch in BATCHES:
            for name, ways in cases(rows, batch).items():
                base = "by hand" if "by hand" in ways else "TorchRL"
                calls = 100 if size < 1_000_000 else 30
                case = f"{name}, {size} rows, batches of {batch}"
                found[case] = in_turns(ways, rounds, calls, base=base)
    return found


if __name__ == "__main__":
    main(measure, __doc__)
