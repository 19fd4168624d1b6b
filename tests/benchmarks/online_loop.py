"""The whole online loop of IQN and FQF: one environment step, one update; ours and tianshou's.

Batch 64, width 128, 32 quantiles, CartPole, one thread. tianshou lives in an environment of its
own (python -m venv V; V/bin/pip install torch==2.13.0 tianshou); both sides run in turn, in
processes of their own, and report updates per second of their CPU time.

    OMP_NUM_THREADS=1 python tests/benchmarks/online_loop.py --tianshou V/bin/python
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import warnings
from time import process_time

WARMUP, STEPS = 500, 1500


def ours(name: str, compiled: bool) -> float:
    """The loop of our recipes."""
    import torch
    from torch.optim import RMSprop
    from torchrl.data import TensorDictReplayBuffer

    from composerl import Update
    from composerl.bookkeeping.machine import keep_freed_memory
    from composerl.data import PackedStorage, VectorCollector
    from composerl.envs import make_env
    from composerl.envs.spaces import Spaces
    from composerl.losses import FQFLoss, IQNLoss
    from composerl.modules import fqf_network, iqn_network
    from composerl.optim.adam import FusedAdam

    torch.set_num_threads(1)
    keep_freed_memory()  # as a Run does
    spaces = Spaces.of("CartPole-v1")
    if name == "iqn":
        actor = iqn_network(spaces, (128, 128), num_acting_quantiles=32)
        loss = IQNLoss(actor.value_network, num_quantiles=32, num_target_quantiles=32)
        update = Update(loss, compile=compiled)
    else:
        actor = fqf_network(spaces, (128, 128), num_quantiles=32)
        loss = FQFLoss(actor.value_network, actor.fraction_network)
        optimizers = [
            FusedAdam(loss.value_network.parameters()),
            RMSprop(loss.fraction_network.parameters(), lr=1e-6),
        ]
        update = Update(loss, optimizer=optimizers, compile=compiled)
    actor.epsilon = 0.1
    buffer = TensorDictReplayBuffer(storage=PackedStorage(20_000), batch_size=64)
    # One update per environment step either way: eight of each in a turn.
    collector = VectorCollector(make_env("CartPole-v1", 8), actor, frames_per_batch=8, seed=0)

    def play(steps: int, *, train: bool) -> None:
        for _ in range(0, steps, 8):
            buffer.extend(collector.next().reshape(-1))
            for _ in range(8 if train else 0):
                update(buffer.sample())

    play(WARMUP, train=False)
    play(200, train=True)
    start = process_time()
    play(STEPS, train=True)
    return STEPS / (process_time() - start)


def theirs(name: str) -> float:
    """tianshou's collector, buffer and algorithm, driven as its trainers do."""
    import gymnasium as gym
    import torch
    from tianshou.algorithm.modelfree import fqf, iqn
    from tianshou.algorithm.optim import AdamOptimizerFactory, RMSpropOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import (
        FractionProposalNetwork,
        FullQuantileFunction,
        ImplicitQuantileNetwork,
    )
    from tianshou.utils.torch_utils import policy_within_training_step

    torch.set_num_threads(1)
    envs = DummyVectorEnv([lambda: gym.make("CartPole-v1")] * 8)
    space = gym.make("CartPole-v1").action_space
    trunk = Net(state_shape=4, action_shape=128, hidden_sizes=[])
    adam = AdamOptimizerFactory(lr=3e-4)
    options = {"preprocess_net": trunk, "action_shape": 2, "hidden_sizes": [128]}
    if name == "iqn":
        policy = iqn.IQNPolicy(
            model=ImplicitQuantileNetwork(**options), action_space=space, sample_size=32,
            online_sample_size=32, target_sample_size=32, eps_training=0.1,
        )  # fmt: skip
        algorithm = iqn.IQN(policy=policy, optim=adam, num_quantiles=32, target_update_freq=100)
    else:
        policy = fqf.FQFPolicy(
            model=FullQuantileFunction(**options),
            fraction_model=FractionProposalNetwork(32, 128), action_space=space, eps_training=0.1,
        )  # fmt: skip
        algorithm = fqf.FQF(
            policy=policy, optim=adam, fraction_optim=RMSpropOptimizerFactory(lr=1e-6),
            num_fractions=32, ent_coef=1e-3, target_update_freq=100,
        )  # fmt: skip
    buffer = VectorReplayBuffer(20_000, buffer_num=8)
    collector = Collector(algorithm, envs, buffer, exploration_noise=True)
    collector.reset()

    def play(steps: int, *, train: bool) -> None:
        for _ in range(0, steps, 8):
            with policy_within_training_step(algorithm.policy):
                collector.collect(n_step=8)
                for _ in range(8 if train else 0):
                    algorithm.update(buffer, 64)

    play(WARMUP, train=False)
    play(200, train=True)
    start = process_time()
    play(STEPS, train=True)
    return STEPS / (process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tianshou", help="a Python that has tianshou")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=["ours", "compiled", "theirs"], help=argparse.SUPPRESS)
    parser.add_argument("--algorithm", choices=["iqn", "fqf"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        warnings.simplefilter("ignore")
        compiled = args.side == "compiled"
        print(theirs(args.algorithm) if args.side == "theirs" else ours(args.algorithm, compiled))
        return
    sides = dict.fromkeys(("ours", "compiled"), sys.executable)
    sides |= {"theirs": args.tianshou} if args.tianshou else {}
    for algorithm in ("iqn", "fqf"):
        rates: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(args.rounds):
            for side, python in sides.items():
                command = [python, __file__, "--side", side, "--algorithm", algorithm]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                rates[side].append(float(done.stdout.split()[-1]))
        for side, found in rates.items():
            line = f"{algorithm} {side:7s} {statistics.median(found):7.1f} updates per CPU second"
            if "theirs" in rates:
                pairs = zip(found, rates["theirs"], strict=True)
                line += f"   {statistics.median(a / b for a, b in pairs):5.2f} of tianshou"
            print(line)


if __name__ == "__main__":
    main()
