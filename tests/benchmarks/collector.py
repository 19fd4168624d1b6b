"""Environment steps: TorchRL's Collector, ours, and a loop written by hand; one thread, CPU time.

The hand-written loop steps gymnasium's SyncVectorEnv with a plain network and stores the same
transitions in preallocated arrays.

    OMP_NUM_THREADS=1 python tests/benchmarks/collector.py [--env Pendulum-v1]
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from time import process_time

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector

from composerl.data import VectorCollector
from composerl.envs import make_env
from composerl.envs.spaces import Spaces
from composerl.modules import MLP


class Acting(nn.Module):
    """A small MLP; ``explore`` is what our collector calls, ``forward`` what TorchRL's does."""

    def __init__(self, spaces: Spaces) -> None:
        super().__init__()
        self.net = MLP(spaces.obs_dim, spaces.action_dim, (64, 64))
        self.discrete = spaces.discrete

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        out = self.net(obs)
        return out.argmax(-1) if self.discrete else out.tanh()


class Explorer(TensorDictModule):
    def explore(self, obs: torch.Tensor) -> torch.Tensor:
        return self.module(obs)


class HandWritten:
    """Like the loops of CleanRL: vector environment, arrays, the next observation looked after."""

    def __init__(self, env: str, number: int, steps: int, policy: Acting) -> None:
        self.envs = SyncVectorEnv(
            [lambda: gym.make(env)] * number, autoreset_mode=AutoresetMode.DISABLED
        )
        self.obs, _ = self.envs.reset(seed=0)
        self.steps, self.policy = steps, policy

    def next(self) -> dict[str, np.ndarray]:
        number, steps = self.envs.num_envs, self.steps
        space = self.envs.single_observation_space
        obs = np.empty((steps, number, *space.shape), np.float32)
        next_obs = np.empty_like(obs)
        reward = np.empty((steps, number), np.float32)
        terminated = np.empty((steps, number), bool)
        truncated = np.empty((steps, number), bool)
        actions = []
        for t in range(steps):
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100, help="of each environment in a batch")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    policy = Acting(Spaces.of(args.env))
    frames = args.num_envs * args.steps

    def make(kind: type, wrapper: type, **options: object) -> Collector:
        acting = wrapper(policy, ["observation"], ["action"])
        env = make_env(args.env, args.num_envs, seed=0)
        return kind(env, acting, frames_per_batch=frames, total_frames=-1, **options)

    variants = {
        "hand-written": HandWritten(args.env, args.num_envs, args.steps, policy),
        "composerl": make(VectorCollector, Explorer, seed=0),
        "TorchRL": make(Collector, TensorDictModule),
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    for round_ in range(args.rounds + 1):
        for name, collector in variants.items():
            start = process_time()
            collector.next()
            if round_:
                times[name].append((process_time() - start) / frames)
    print(f"{args.env}, {args.num_envs} environments, batches of {frames} steps, CPU time per step")
    for name, seconds in times.items():
        pairs = zip(seconds, times["hand-written"], strict=True)
        ratio = statistics.median(a / b for a, b in pairs)
        micro = statistics.median(seconds) * 1e6
        print(f"{name:14s} {micro:7.1f} us   {ratio:5.2f} of hand-written")


if __name__ == "__main__":
    main()
