"""Episodes that are stored when they are over."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs import Transform

__all__ = ["WholeEpisodes"]

#: What a stored row has, besides ``mc_return``.
_KEYS = ("observation", "action", *(("next", k) for k in
         ("observation", "reward", "terminated", "truncated", "done")))  # fmt: skip


class WholeEpisodes(Transform):
    """Holds the steps of an episode back until it is over: a ``transform=`` of a replay buffer.

    Then its rows go into the buffer together, with ``mc_return`` if ``gamma`` is given: the
    discounted return from there on, which is not known before. An episode that was cut counts as
    if nothing came after the cut. If a batch does not go on where the last one ended (the
    environment could not be brought back to where it was), the episode ends there, truncated.

    The steps under way are part of the buffer's ``state_dict``. It is for one environment, whose
    batches are ``(time,)``.

    Args:
        gamma: discount of ``mc_return``; None leaves that out.
    """

    def __init__(self, gamma: float | None = None) -> None:
        super().__init__()
        if gamma is not None and not 0 <= gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], got {gamma}")
        self.gamma = gamma
        self._steps: list[TensorDictBase] = []

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Samples are left as they are."""
        return tensordict

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase | None:
        if tensordict.ndim != 1:
            raise ValueError(
                f"a batch of one environment, (time,), is needed, got {tuple(tensordict.shape)}"
            )
        over: list[TensorDict] = []
        for step in tensordict.select(*_KEYS).unbind(0):
            if self._steps and not torch.equal(
                self._steps[-1]["next", "observation"], step["observation"]
            ):
                last = self._steps[-1] = self._steps[-1].clone()
                last["next", "truncated"] = ~last["next", "terminated"]
                last["next", "done"] = torch.ones_like(last["next", "done"])
                over.append(self._close())
            self._steps.append(step)
            if step["next", "done"].item():
                over.append(self._close())
        return TensorDict.cat(over) if over else None

    def _close(self) -> TensorDict:
        episode = TensorDict.maybe_dense_stack(self._steps).contiguous()
        self._steps = []
        if self.gamma is not None:
            episode["mc_return"] = _returns(episode["next", "reward"], self.gamma)
        return episode

    def get_extra_state(self) -> dict[str, Any]:
        """The steps under way."""
        steps = TensorDict.maybe_dense_stack(self._steps).contiguous() if self._steps else None
        return {"steps": [] if steps is None else [steps.get(key) for key in _KEYS]}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`get_extra_state` returned."""
        columns = state["steps"]
        self._steps = []
        if columns:
            rows = TensorDict({}, [len(columns[0])])
            for key, column in zip(_KEYS, columns, strict=True):
                rows.set(key, column)
            self._steps = list(rows.unbind(0))


def _returns(reward: Tensor, gamma: float) -> Tensor:
    """Discounted sums ``(time, 1)`` of what follows each reward, added up in float64."""
    total, sums = 0.0, []
    for gained in reversed(reward.squeeze(-1).tolist()):
        total = gained + gamma * total
        sums.append(total)
    return torch.tensor(sums[::-1], dtype=torch.float32).unsqueeze(1)
