"""Episodes that are stored when they are over."""

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import Transform

from composerl.data.replay.tables import Column, nested
from composerl.data.returns import returns_to_go

__all__ = ["WholeEpisodes"]

_SEEN: Column = ("observation",)
_NEXT: Column = ("next", "observation")
_REWARD: Column = ("next", "reward")
_ENDS: tuple[Column, ...] = (("next", "terminated"), ("next", "truncated"), ("next", "done"))
#: What a stored row has, besides ``mc_return``.
_COLUMNS: tuple[Column, ...] = (_SEEN, ("action",), _NEXT, _REWARD, *_ENDS)


class WholeEpisodes(Transform):
    """Holds the steps of an episode back until it is over: a ``transform=`` of a replay buffer.

    Then its rows go into the buffer together, with ``mc_return`` if ``gamma`` is given: the
    discounted return from there on, which is not known before. An episode that was cut counts as
    if the lowest reward came for ever after, or none if no reward is negative: it is what is
    gained at least. If a batch does not go on where the last one ended (the
    environment could not be brought back to where it was), the episode ends there, truncated.

    The steps under way are part of the buffer's ``state_dict``. It is for one environment, whose
    batches are ``(time,)``.

    Args:
        gamma: discount of ``mc_return``; None leaves that out.
        worst: the lowest reward that was seen elsewhere, as in a dataset; those of the episode
            itself count too.
    """

    def __init__(self, gamma: float | None = None, worst: float = 0.0) -> None:
        super().__init__()
        if gamma is not None and not 0 <= gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], got {gamma}")
        self.gamma, self.worst = gamma, worst
        self._steps: list[dict[Column, Tensor]] = []  # each a row of one

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Samples are left as they are."""
        return tensordict

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase | None:
        if tensordict.ndim != 1:
            raise ValueError(
                f"a batch of one environment, (time,), is needed, got {tuple(tensordict.shape)}"
            )
        terminated, truncated, done = _ENDS
        over: list[dict[Column, Tensor]] = []
        # Copies, as a collector may write to the same memory again. Not TensorDicts, which take
        # three times as long.
        batch = {column: tensordict.get(column).clone() for column in _COLUMNS}
        for t in range(len(tensordict)):
            step = {column: values[t : t + 1] for column, values in batch.items()}
            if self._steps:
                last = self._steps[-1]
                if not torch.equal(last[_NEXT], step[_SEEN]):
                    last[truncated] = ~last[terminated]
                    last[done] = torch.ones_like(last[done])
                    over.append(self._close())
            self._steps.append(step)
            if step[done].item():
                over.append(self._close())
        if not over:
            return None
        rows = _joined(over)
        return nested(rows, torch.Size([len(rows[done])]))

    def _close(self) -> dict[Column, Tensor]:
        episode = _joined(self._steps)
        self._steps = []
        if self.gamma is not None:
            rewards = episode[_REWARD].squeeze(-1).tolist()
            cut = not episode[_ENDS[0]][-1].item()
            sums = returns_to_go(rewards, self.gamma, min(self.worst, *rewards) if cut else 0.0)
            episode["mc_return",] = torch.tensor(sums, dtype=torch.float32).unsqueeze(1)
        return episode

    def get_extra_state(self) -> dict[str, Any]:
        """The steps under way."""
        return {"steps": list(_joined(self._steps).values()) if self._steps else []}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`get_extra_state` returned."""
        steps = zip(*(column.split(1) for column in state["steps"]), strict=True)
        self._steps = [dict(zip(_COLUMNS, step, strict=True)) for step in steps]


def _joined(parts: list[dict[Column, Tensor]]) -> dict[Column, Tensor]:
    return {column: torch.cat([part[column] for part in parts]) for column in parts[0]}
