"""CPU time of one full Dreamer update: world model, actor and critic.

64x64x3 images, batch 8 x 32 (and one context record), horizon 15, one thread.
dreamerv3-torch takes 0.86 s for it with 3.1 M parameters on such a core.

    python tests/benchmarks/dreamer_update.py
"""

from __future__ import annotations

import argparse
import statistics
from time import process_time

import torch
from tensordict import TensorDict

from composerl import Update
from composerl.bookkeeping.machine import keep_freed_memory
from composerl.envs.spaces import Spaces
from composerl.losses import DreamerLoss
from composerl.modules import dreamer_actor, dreamer_critic


def records(batch: int, time: int, shape: tuple[int, ...], num_actions: int) -> TensorDict:
    """Sequences of random records."""
    data = {
        "observation": torch.randint(0, 256, (batch, time, *shape), dtype=torch.uint8),
        "action": torch.randint(0, num_actions, (batch, time)),
        "reward": torch.randn(batch, time),
        "first": torch.rand(batch, time) < 0.05,
        "terminal": torch.rand(batch, time) < 0.05,
    }
    return TensorDict(data, [batch, time])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=["small", "medium"])
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as a Run does
    spaces = Spaces(obs_shape=(3, 64, 64), obs_dtype="uint8", num_actions=6)
    for size in args.sizes:
        torch.manual_seed(0)
        actor = dreamer_actor(spaces, size)
        networks = actor.world_network, actor.actor_network, dreamer_critic(spaces, size)
        number = sum(p.numel() for network in networks for p in network.parameters())
        update = Update(DreamerLoss(*networks), lr=1e-4, tau=0.02, max_grad_norm=100.0)
        batch = records(8, 33, spaces.obs_shape, 6)
        seconds = []
        for _ in range(args.updates + 2):
            start = process_time()
            update(batch)
            seconds.append(process_time() - start)
        median, least = statistics.median(seconds[2:]), min(seconds[2:])
        print(
            f"{size:8s} {number / 1e6:5.2f} M parameters: {median:.3f} CPU s an update, "
            f"at least {least:.3f}"
        )
        if args.profile:
            with torch.profiler.profile() as record:
                update(batch)
            print(record.key_averages().table(sort_by="self_cpu_time_total", row_limit=25))


if __name__ == "__main__":
    main()
