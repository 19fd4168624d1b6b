"""What the episodes that ended in a collector came to: the ``collect/...`` metrics of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from tensordict import TensorDictBase

from composerl.data.collect.live import Live

__all__ = ["Finished"]


class Finished:
    """Returns and lengths of the latest finished episodes, and how many there were."""

    def __init__(self) -> None:
        self.latest: deque[tuple[float, int]] = deque(maxlen=20)
        self.number = 0
        self.achieved: dict[str, int] = {}  # in how many episodes each of them was
        self.judged = 0  # so many episodes told of them

    def add(self, live: Live, i: int, t: int, info: Mapping[str, Any] | None = None) -> None:
        """The episode in environment i, whose return and length count from zero again.

        It was the step t of the batch that ended it, and told ``info``.
        """
        self.note(live.returns[i], live.lengths[i])
        self.judge(info or {})
        live.returns[i], live.lengths[i] = 0.0, 0

    def note(self, gained: float, length: int) -> None:
        """An episode's return and length."""
        self.latest.append((gained, length))
        self.number += 1

    def judge(self, info: Mapping[str, Any]) -> None:
        """What the last step of an episode tells of ``achievements``, how often each was."""
        if "achievements" in info:
            self.judged += 1
            for name, times in info["achievements"].items():
                self.achieved[name] = self.achieved.get(name, 0) + (times > 0)

    def count(self, batch: TensorDictBase, live: Live) -> None:
        """Those that end in a batch of TorchRL's own rollout."""
        number = len(live.returns)
        reward = batch["next", "reward"].reshape(number, -1).tolist()
        done = batch["next", "done"].reshape(number, -1).tolist()
        for i in range(number):
            for t, (gained, end) in enumerate(zip(reward[i], done[i], strict=True)):
                live.returns[i] += gained
                live.lengths[i] += 1
                if end:
                    self.add(live, i, t)

    def metrics(self) -> dict[str, float]:
        """Means over the latest ones, and the number of all; achievements' shares of all."""
        found = {"collect/episodes": float(self.number)}
        if self.latest:
            returns, lengths = zip(*self.latest, strict=True)
            found["collect/return"] = float(np.mean(returns))
            found["collect/length"] = float(np.mean(lengths))
        if self.judged:
            shares = {name: n / self.judged for name, n in sorted(self.achieved.items())}
            found |= {f"achieved/{name}": share for name, share in shares.items()}
            # Crafter's: the geometric mean of 1 + percent, so that rare ones count.
            found["achieved/score"] = float(
                np.expm1(np.mean(np.log1p(100 * np.array([*shares.values()]))))
            )
        return found

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        return {
            "latest": [list(pair) for pair in self.latest],
            "number": self.number,
            "achieved": dict(self.achieved),
            "judged": self.judged,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.latest.clear()
        # TorchRL's collectors in other processes make tensors of them.
        self.latest.extend((float(gained), int(length)) for gained, length in state["latest"])
        self.number = int(state["number"])
        self.achieved = {name: int(n) for name, n in state.get("achieved", {}).items()}
        self.judged = int(state.get("judged", 0))
