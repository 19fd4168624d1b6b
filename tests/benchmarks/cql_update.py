"""One CQL update (n = 10), side by side: TorchRL's stock loss and composerl.

    OMP_NUM_THREADS=1 python tests/benchmarks/cql_update.py

Sizes and method as in iql_update.py. TorchRL's loss has 3 values in its logsumexp, ours 30.
Memory is the peak within one update, beyond parameters and optimizer state.
"""

from __future__ import annotations

import torch
from common import SPACES, arguments, compare, peak_memory, stock_step, transitions
from torchrl.objectives import CQLLoss as StockCQLLoss

from composerl.losses import CQLLoss
from composerl.modules import tanh_gaussian_actor, twin_q
from composerl.update import Update


def networks(width: int) -> tuple:
    torch.manual_seed(0)
    hidden = (width, width)
    return tanh_gaussian_actor(SPACES, hidden), twin_q(SPACES, hidden)


def main() -> None:
    args = arguments(__doc__, rounds=10, updates=3)
    batch = transitions(args.rows)
    stock = StockCQLLoss(*networks(args.width), loss_function="l2", num_random=10)
    names = ["loss_actor", "loss_qvalue", "loss_cql", "loss_alpha"]
    update = Update(CQLLoss(*networks(args.width), num_random=10))
    variants = {
        "stock": stock_step(stock, batch.clone(), names),
        "composerl": lambda: update(batch),
    }
    compare(variants, args)
    for name, step in variants.items():
        print(f"{name:24s} {peak_memory(step):8.1f} MB of tensors at the peak of an update")


if __name__ == "__main__":
    main()
