"""The arrays of a batch of steps, and the TensorDict that they become."""

from __future__ import annotations

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.envs import Transform

from composerl.data.collect.inside import apply

__all__ = ["Steps"]


class Steps:
    """Buffers ``(environments, time, ...)`` that a rollout writes to.

    Args:
        seen: the environments' observations as the policy sees them.
        raw: type of the observations before the transforms.
        number: of steps of each environment.
    """

    def __init__(self, seen: np.ndarray, raw: np.dtype, number: int) -> None:
        shape = (len(seen), number)
        self.obs = np.empty((*shape, *seen.shape[1:]), seen.dtype)
        self.next_obs = np.empty(self.obs.shape, raw)
        self.reward = np.empty((*shape, 1), np.float32)
        self.terminated = np.zeros((*shape, 1), bool)
        self.truncated = np.zeros((*shape, 1), bool)
        self.ids = np.empty(shape, np.int64)
        self.said: list[dict[str, Tensor]] = []  # what the policy wrote, step by step

    def tensordict(
        self,
        of_observation: list[Transform],
        of_reward: list[Transform],
        *,
        ids: bool,
        single: bool,
    ) -> TensorDict:
        """The batch in TorchRL's layout.

        Args:
            of_observation: transforms of the next observations.
            of_reward: transforms of the rewards.
            ids: with the episodes' ids.
            single: without the dimension of the environments, of which there is one.
        """

        def tensor(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array[0] if single else array)

        size = torch.Size(self.ids.shape[1:] if single else self.ids.shape)
        names = ["time"] if single else [None, "time"]
        ends = {"terminated": tensor(self.terminated), "truncated": tensor(self.truncated)}
        ends["done"] = ends["terminated"] | ends["truncated"]
        root = {key: torch.zeros_like(value) for key, value in ends.items()}
        for key in self.said[0]:
            root[key] = torch.stack([said[key] for said in self.said], len(size) - 1)
        root["observation"] = tensor(self.obs)
        # Transforms of single numbers do to the batch what they do to each step. The public
        # constructor checks every entry again: for a short batch, as long as all else.
        root["next"] = TensorDict._new_unsafe(
            {
                "observation": apply(of_observation, tensor(self.next_obs)),
                "reward": apply(of_reward, tensor(self.reward)),
                **ends,
            },
            size,
            names=names,
        )
        if ids:
            traj_ids = {"traj_ids": tensor(self.ids)}
            root["collector"] = TensorDict._new_unsafe(traj_ids, size, names=names)
        return TensorDict._new_unsafe(root, size, names=names)
