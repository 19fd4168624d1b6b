"""A policy, asked about arrays of observations."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.collectors import RandomPolicy
from torchrl.envs import EnvBase

__all__ = ["Asking"]


class Asking:
    """Gives a policy the environments' observations, gives back what it writes, on the CPU.

    Args:
        policy: as the collector was given it; one with ``explore(observation) -> action`` is
            called by that when it is to explore.
        wrapped: the same, made to take TensorDicts.
        env: whose actions it gives.
    """

    def __init__(
        self, policy: Any, wrapped: Callable[[TensorDictBase], TensorDictBase], env: EnvBase
    ) -> None:
        self.policy, self.wrapped, self.env = policy, wrapped, env
        self.explore: Callable[[Tensor], Tensor] | None = getattr(policy, "explore", None)
        self.single = not env.batch_size
        self._zeros: dict[str, Tensor] | None = None

    @property
    def needs_no_more(self) -> bool:
        """Whether observations are all that the policy looks at."""
        if self.explore is not None or isinstance(self.policy, RandomPolicy):
            return True
        keys = getattr(self.wrapped, "in_keys", None)
        return keys is not None and list(keys) == ["observation"]

    @cached_property
    def device(self) -> torch.device:
        """Where the policy is; asked for late, as its weights may come after it was made."""
        parameters = self.policy.parameters() if isinstance(self.policy, nn.Module) else iter(())
        return next((p.device for p in parameters), torch.device("cpu"))

    def act(self, obs: np.ndarray, *, exploring: bool) -> dict[str, Tensor]:
        """What the policy writes for observations ``(environments, ...)``."""
        observation = torch.from_numpy(obs[0] if self.single else obs)
        if self.explore is not None and exploring:
            batch = observation.unsqueeze(0) if self.single else observation
            action = self.explore(batch.to(self.device)).cpu()
            return {"action": action.squeeze(0) if self.single else action}
        data = TensorDict({"observation": observation.clone()}, self.env.batch_size)
        out = self.wrapped(data.to(self.device)).cpu()
        return {key: value for key, value in out.items() if key != "observation"}

    def act_at_random(self, obs: np.ndarray, *, exploring: bool) -> dict[str, Tensor]:
        """Random actions, and zeros for all that the policy would have written besides."""
        if self._zeros is None:
            self._zeros = {}
            if self.explore is None or not exploring:
                with torch.random.fork_rng():  # no number of the run is drawn for this
                    said = self.act(obs, exploring=exploring)
                self._zeros = {k: torch.zeros_like(v) for k, v in said.items() if k != "action"}
        return {"action": self.env.action_spec.rand().cpu(), **self._zeros}
