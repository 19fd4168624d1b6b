"""What compiling costs and gains: the table in composerl/bookkeeping/compiling.py.

    OMP_NUM_THREADS=1 python tests/benchmarks/compiling.py [RECIPE ...]

Each recipe at its own sizes, in processes of their own: eager, compiled with an empty cache, and
again with that cache. CPU time of the process and of the C++ compilers that it waits for, by kind
of update: what the first calls take more than the median of the others, and that median.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from composerl.catalog import load_recipe

#: Turns of the loop beyond the first in which it updates.
TURNS = {"gail_cartpole": 8, "mbpo_pendulum": 60, "iqn_cartpole": 80, "fqf_cartpole": 80}
RECIPES = ("iql_pendulum", "xql_pendulum", "cql_pendulum", "td3bc_pendulum", "bc_pendulum",
           "cql_cartpole", "iqn_cartpole", "fqf_cartpole", "mbpo_pendulum",
           "gail_cartpole")  # fmt: skip
KINDS = {"ClipPPOLoss": "ppo", "DiscreteCQLLoss": "discrete_cql"}


def cpu() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def side(name: str, compiled: str) -> None:
    """Run the recipe, and print the seconds of each update by kind."""
    warnings.simplefilter("ignore")
    from composerl.cli.warmup import shortest
    from composerl.update import Update

    seconds: dict[str, list[float]] = defaultdict(list)
    call = Update.__call__

    def timed(self: Update, batch: Any) -> Any:
        start = cpu()
        metrics = call(self, batch)
        kind = type(self.loss).__name__
        seconds[KINDS.get(kind, kind.removesuffix("Loss").lower())].append(cpu() - start)
        return metrics

    Update.__call__ = timed  # type: ignore[method-assign]
    recipe = load_recipe(name)
    config = recipe.Config()
    with tempfile.TemporaryDirectory() as place:
        changes = shortest(config, Path(place, "run")) | {"compile": compiled}
        by = getattr(config, "rollout", getattr(config, "num_envs", 1))
        changes["steps"] += by * TURNS.get(name, 100)
        changes["eval_every"] = changes["save_every"] = changes["steps"]
        recipe.main(replace(config, **changes))
    print(json.dumps(seconds))


def measured(name: str, compiled: str, cache: str) -> dict[str, tuple[float, float]]:
    """By kind: what the first calls took more than the others, and the median of those."""
    command = [sys.executable, __file__, "--side", name, compiled]
    places = {"TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    done = subprocess.run(command, env=os.environ | places, stdout=subprocess.PIPE, check=True)
    found = {}
    for kind, seconds in json.loads(done.stdout.splitlines()[-1]).items():
        each = statistics.median(seconds[3:])
        found[kind] = sum(seconds[:3]) - 3 * each, each
    return found


def main() -> None:
    for name in sys.argv[1:] or RECIPES:
        with tempfile.TemporaryDirectory() as cache:
            eager, cold, warm = (measured(name, on, cache) for on in ("off", "on", "on"))
        for kind, (_, each) in eager.items():
            fast = warm[kind][1]
            costs = f"{cold[kind][0]:.1f}, {warm[kind][0]:.1f}, {(each - fast) * 1e3:.2f}"
            note = f"{each * 1e3:.2f} ms eager, compiled {fast / each:.2f} of it"
            print(f'"{kind}": Cost({costs}),  # {note}', flush=True)


if __name__ == "__main__":
    side(*sys.argv[2:]) if sys.argv[1:2] == ["--side"] else main()
