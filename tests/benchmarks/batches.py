"""Random batches of HalfCheetah's and CartPole's sizes."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor

from composerl.envs.spaces import Spaces

BOX = Spaces(obs_shape=(17,), low=(-1.0,) * 6, high=(1.0,) * 6)
DISCRETE = Spaces(obs_shape=(4,), num_actions=2)
MEMBERS = 7


def continuous(rows: int) -> TensorDict:
    """HalfCheetah's transitions."""
    return _transitions(torch.rand(rows, 6) * 2 - 1, 17)


def discrete(rows: int) -> TensorDict:
    """CartPole's transitions."""
    return _transitions(torch.randint(2, (rows,)), 4)


def minibatch(rows: int) -> TensorDict:
    """What PPO has of a rollout of CartPole."""
    data = {"observation": torch.randn(rows, 4), "action": torch.randint(2, (rows,))}
    data["action_log_prob"] = -0.7 + 0.1 * torch.randn(rows)
    data |= {"advantage": torch.randn(rows, 1), "value_target": torch.randn(rows, 1)}
    return TensorDict({**data, "state_value": torch.randn(rows, 1)}, [rows])


def pairs(rows: int) -> TensorDict:
    """Pairs of the policy and of an expert, for GAIL's judge."""
    both = [{"observation": torch.randn(rows, 4), "action": torch.randint(2, (rows,))}
            for _ in range(2)]  # fmt: skip
    return TensorDict({**both[0], "expert": both[1]}, [rows])


def of_members(rows: int) -> TensorDict:
    """HalfCheetah's transitions, rows of its own for each member of an ensemble."""
    return continuous(MEMBERS * rows).reshape(MEMBERS, rows)


def _transitions(action: Tensor, obs: int) -> TensorDict:
    rows = len(action)
    no = torch.zeros(rows, 1, dtype=torch.bool)
    following = {
        "observation": torch.randn(rows, obs),
        "reward": torch.randn(rows, 1),
        "done": no,
        "terminated": no.clone(),
        "truncated": no.clone(),
    }
    data = {"observation": torch.randn(rows, obs), "action": action}
    return TensorDict({**data, "next": following}, [rows])
