"""Environment steps in this process and by 1, 2 and 4 workers of Ray: when do workers pay?

Frames per second by the clock; per second of the CPU time of all processes together; and the gain
over this process, by the clock, and by the CPU time of the learner and the busiest worker, which is
what is left of the clock when every worker has a core of its own. Medians over rounds in which the
variants take turns. Batches of one step of each environment are those of IQN's loop, long ones
those of PPO's. Async is ``collect="async"``: workers ask the policy about their own environments.

    OMP_NUM_THREADS=1 python tests/benchmarks/workers.py [--env HalfCheetah-v5]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from importlib.util import find_spec

import ray
import torch
from torchrl.envs import EnvBase

from composerl.data import VectorCollector
from composerl.envs import make_env
from composerl.modules import categorical_actor, iqn_network, tanh_gaussian_actor

#: Environment -> what acts there, the package it needs.
TASKS = {
    "CartPole-v1": (lambda env: categorical_actor(env, (64, 64)), "gymnasium"),
    "HalfCheetah-v5": (lambda env: tanh_gaussian_actor(env, (256, 256)), "mujoco"),
    "ALE/Breakout-v5": (lambda env: iqn_network(env, (512,)), "ale_py"),
}


def measure(collector: VectorCollector, frames: int, seconds: float) -> list[float]:
    """Seconds for a frame: by the clock, of all CPUs, of the learner and the busiest worker."""
    collector.next()  # of an async one, the batch that was made while others took their turn

    def cpu() -> list[float]:
        workers = [] if collector._workers is None else collector._workers._shares
        asked = [share.__ray_call__.remote(lambda _: time.process_time()) for share in workers]
        return [time.process_time(), *ray.get(asked)]

    before, start, done = cpu(), time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        collector.next()
        done += frames
    clock = time.perf_counter() - start
    learner, *workers = (b - a for a, b in zip(before, cpu(), strict=True))
    used = (clock, learner + sum(workers), learner + max(workers, default=0.0))
    return [part / done for part in used]


def compare(name: str, make: object, envs: int, steps: int, rounds: int, seconds: float) -> None:
    def collector(workers: int, collect: str = "sync") -> VectorCollector:
        torch.manual_seed(0)
        env: EnvBase = make_env(name, envs)
        options = {"seed": 0, "workers": workers, "collect": collect}
        return VectorCollector(env, make(env), frames_per_batch=envs * steps, **options)

    variants = {
        "this process": collector(0),
        **{f"{number} workers": collector(number) for number in (1, 2, 4)},
        "2, async": collector(2, "async"),
    }
    times: dict[str, list[list[float]]] = {who: [] for who in variants}
    for round_ in range(rounds + 1):
        for who, made in variants.items():
            found = measure(made, envs * steps, seconds)
            if round_:  # the first warms up
                times[who].append(found)
    print(f"{name}, {envs} environments, batches of {steps} steps of each")
    for who, rows in times.items():
        clock, cpu, _ = (statistics.median(column) for column in zip(*rows, strict=True))
        pairs = list(zip(times["this process"], rows, strict=True))
        by_clock, alone = (statistics.median(a[i] / b[i] for a, b in pairs) for i in (0, 2))
        print(
            f"  {who:13s}{1 / clock:8.0f} frames/s{1 / cpu:8.0f} per CPU second"
            f"   gain {by_clock:.2f}, with free cores {alone:.2f}"
        )
    for made in variants.values():
        made.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", choices=TASKS, nargs="*", default=list(TASKS))
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--steps", type=int, nargs="*", default=[1, 128])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a variant in a round")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    # As many as workers are made at a time, whatever the machine has.
    os.environ.setdefault("RAY_AUTH_TOKEN", "0" * 64)
    ray.init(address="local", num_cpus=10, include_dashboard=False, log_to_driver=False,
             logging_level="ERROR", object_store_memory=500 << 20)  # fmt: skip
    print(f"{os.cpu_count()} cores")
    for name in args.env:
        make, package = TASKS[name]
        for steps in args.steps if find_spec(package) else ():
            compare(name, make, args.num_envs, steps, args.rounds, args.seconds)


if __name__ == "__main__":
    main()
