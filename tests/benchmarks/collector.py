"""Environment steps: loops written by hand, ours, TorchRL's; CPU microseconds of a step.

The plain loop steps the same environments one after the other with the same network, starts
episodes by the same seeds and gives the same tensors, in dicts: its batches equal ours, bit for
bit, which is tried before anything is measured. The unseeded one lets the environments go on with
their own random numbers, which no checkpoint could repeat: CartPole under an untrained network
starts an episode every nine steps. gymnasium's own vector of environments is there for comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector

from composerl.data import VectorCollector
from composerl.envs import make_env
from composerl.envs.opening import open_gym
from composerl.envs.spaces import Spaces
from composerl.modules import MLP

from .timing import Case

ENVS = (1, 8, 32, 64)
#: Environment, how many, steps of each in a batch.
CASES = [
    *(("CartPole-v1", number, 800 // number) for number in ENVS),
    *(("CartPole-v1", number, 1) for number in (8, 32)),
    *(("Pendulum-v1", number, 800 // number) for number in (8, 32)),
]


class Acting(nn.Module):
    """A small MLP."""

    def __init__(self, spaces: Spaces) -> None:
        super().__init__()
        self.net = MLP(spaces.obs_dim, spaces.action_dim, (64, 64))
        self.discrete = spaces.discrete

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        out = self.net(obs)
        return out.argmax(-1) if self.discrete else out.tanh()


class Explorer(TensorDictModule):
    """With what our collector calls."""

    def explore(self, obs: torch.Tensor) -> torch.Tensor:
        return self.module(obs)


class Plain:
    """What one would write: a loop over environments, and arrays."""

    def __init__(self, env: str, number: int, steps: int, policy: Acting, seeded: bool) -> None:
        self.envs = [open_gym(env) for _ in range(number)]
        self.steps, self.policy, self.seeded = steps, policy, seeded
        self.started = [0] * number
        self.returns, self.lengths = [0.0] * number, [0] * number
        self.finished: list[tuple[float, int]] = []
        self.obs = np.stack([self.start(i) for i in range(number)])
        self.ids, self.next_id = np.arange(number), number

    def start(self, i: int) -> np.ndarray:
        seed = None
        if self.seeded or not self.started[i]:
            state = np.random.SeedSequence([0, i, self.started[i]]).generate_state(1)
            seed = int(state[0])
        self.started[i] += 1
        return self.envs[i].reset(seed=seed)[0]

    def next(self) -> dict[str, Any]:
        shape = (len(self.envs), self.steps)
        obs = np.empty((*shape, *self.obs.shape[1:]), np.float32)
        next_obs = np.empty_like(obs)
        reward = np.empty((*shape, 1), np.float32)
        terminated, truncated = np.zeros((*shape, 1), bool), np.zeros((*shape, 1), bool)
        ids, actions = np.empty(shape, np.int64), []
        for t in range(self.steps):
            obs[:, t], ids[:, t] = self.obs, self.ids
            with torch.no_grad():
                action = self.policy(torch.from_numpy(self.obs))
            actions.append(action)
            moves = action.tolist() if self.policy.discrete else action.numpy()
            for i, env in enumerate(self.envs):
                seen, gained, ended, cut, _ = env.step(moves[i])
                next_obs[i, t], reward[i, t, 0] = seen, gained
                self.returns[i] += float(gained)
                self.lengths[i] += 1
                if ended or cut:
                    terminated[i, t, 0], truncated[i, t, 0] = ended, cut
                    self.finished.append((self.returns[i], self.lengths[i]))
                    self.returns[i], self.lengths[i] = 0.0, 0
                    seen = self.start(i)
                    self.ids[i], self.next_id = self.next_id, self.next_id + 1
                self.obs[i] = seen
        ends = {"terminated": terminated, "truncated": truncated, "done": terminated | truncated}
        flags = {key: np.zeros_like(flag) for key, flag in ends.items()}
        following = {"observation": next_obs, "reward": reward, **ends}
        root = {"observation": obs, "ids": ids, **flags}
        batch: dict[str, Any] = {key: torch.from_numpy(array) for key, array in root.items()}
        batch["action"] = torch.stack(actions, 1)
        batch["next"] = {key: torch.from_numpy(array) for key, array in following.items()}
        return batch


class Vectorised:
    """Like the loops of CleanRL: gymnasium's vector of environments."""

    def __init__(self, env: str, number: int, steps: int, policy: Acting) -> None:
        off = AutoresetMode.DISABLED
        self.envs = SyncVectorEnv([lambda: open_gym(env)] * number, autoreset_mode=off)
        self.obs, _ = self.envs.reset(seed=0)
        self.steps, self.policy = steps, policy

    def next(self) -> dict[str, Any]:
        shape = (self.steps, self.envs.num_envs)
        obs = np.empty((*shape, *self.obs.shape[1:]), np.float32)
        next_obs, reward = np.empty_like(obs), np.empty(shape, np.float32)
        terminated, truncated = np.empty(shape, bool), np.empty(shape, bool)
        actions = []
        for t in range(self.steps):
            obs[t] = self.obs
            with torch.no_grad():
                action = self.policy(torch.from_numpy(obs[t])).numpy()
            actions.append(action)
            self.obs, reward[t], terminated[t], truncated[t], _ = self.envs.step(action)
            next_obs[t] = self.obs
            done = terminated[t] | truncated[t]
            if done.any():
                self.obs, _ = self.envs.reset(options={"reset_mask": done})
        return {"obs": obs, "next": next_obs, "reward": reward, "action": np.stack(actions),
                "terminated": terminated, "truncated": truncated}  # fmt: skip


def the_same(plain: Plain, ours: VectorCollector) -> None:
    """Try some batches; episodes are numbered from where TorchRL begins."""
    first = None
    for _ in range(1 + 300 // plain.steps):
        theirs, batch = plain.next(), ours.next()
        ids = batch["collector", "traj_ids"]
        first = int(ids.min()) if first is None else first
        assert torch.equal(ids - first, theirs.pop("ids"))
        following = {("next", key): value for key, value in theirs.pop("next").items()}
        for key, value in (theirs | following).items():
            assert torch.equal(batch[key], value), key


def name(env: str, number: int, steps: int) -> str:
    """Of a case."""
    return f"{env}, {number} environments, batches of {steps} steps each"


def benchmark() -> Iterator[Case]:
    """A step of 1 to 64 environments with a small network, in batches."""
    for env, number, steps in CASES:
        torch.manual_seed(0)
        policy, frames = Acting(Spaces.of(env)), number * steps

        def made(kind: type, wrapper: type, **options: Any) -> Collector:
            acting = wrapper(policy, ["observation"], ["action"])  # noqa: B023
            return kind(
                make_env(env, number, seed=0), acting, frames_per_batch=frames,  # noqa: B023
                total_frames=-1, **options,
            )  # fmt: skip

        plain = Plain(env, number, steps, policy, seeded=True)
        ours = made(VectorCollector, Explorer, seed=0)
        the_same(plain, ours)
        ways = {
            "plain loop": plain.next,
            "plain loop, unseeded": Plain(env, number, steps, policy, seeded=False).next,
            "gymnasium's vector": Vectorised(env, number, steps, policy).next,
            "TorchRL": made(Collector, TensorDictModule).next,
            "composerl": ours.next,
        }
        yield Case(name(env, number, steps), ways, each=frames)
