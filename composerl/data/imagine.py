"""Imagined data: what a learned model says would happen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, ModelBasedEnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from composerl.spaces import Spaces

__all__ = ["ModelEnv", "Termination", "imagine"]

#: (observation, action, next observation), all ``(rows, ...)`` -> whether the episode is over,
#: ``(rows,)``.
Termination = Callable[[Tensor, Tensor, Tensor], Tensor]

#: Branches that are rolled out at a time: the activations of the networks stay in the cache.
CHUNK = 2048


@torch.no_grad()
def imagine(
    dynamics: TensorDictModule,
    policy: nn.Module,
    observation: Tensor,
    length: int = 1,
    *,
    termination: Termination | None = None,
) -> TensorDict:
    """Branched rollouts: from each observation the policy acts ``length`` steps in the model.

    A branch that terminates ends there. The last step of one that does not is truncated.

    Args:
        dynamics: reads ``observation`` and ``action``, writes ``("next", "observation")``,
            ``("next", "reward")`` and, if there is no ``termination``, maybe
            ``("next", "terminated")``: :func:`composerl.modules.ensemble`, or your own.
        policy: its ``explore`` (observation -> random action) if it has one, else a TensorDictModule
            that writes ``action``.
        observation: where the branches start, ``(branches, obs)``.
        length: steps of each branch, at least 1.
        termination: decides when an episode is over, in place of the model.

    Returns: all transitions ``(rows,)`` in TorchRL's layout, without gradients.
    """
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    if observation.ndim != 2:
        raise ValueError(f"observation must be (branches, obs), got {tuple(observation.shape)}")
    steps: list[TensorDictBase] = []
    for now in observation.split(CHUNK):
        for step in range(length):
            action = _act(policy, now)
            following = predict(dynamics, now, action, termination)
            terminated, next_observation = following["terminated"], following["observation"]
            following["truncated"] = (
                ~terminated if step == length - 1 else torch.zeros_like(terminated)
            )
            following["done"] = terminated | following["truncated"]
            steps.append(
                TensorDict(
                    {"observation": now, "action": action, "next": following}, now.shape[:1]
                )
            )
            now = next_observation[~terminated.squeeze(-1)]
            if not len(now):
                break
    return torch.cat(steps)
