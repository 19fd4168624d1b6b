"""How well fitted Q evaluation ranks policies: Spearman's rank correlation with true returns.

Nine short runs on Pendulum (BC, IQL, CQL, TD3+BC of different settings, data and seeds) leave three
checkpoints each; each of the 27 policies is evaluated truly, by 20 episodes, and by Q alone:

    OMP_NUM_THREADS=1 python -m tests.benchmarks.fqe_ranking runs/ranking --dataset mixed

Policies that are in the directory already are used again. A slow test runs it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import composerl
from composerl.analysis import fitted_q, rank_correlation
from composerl.bookkeeping.checkpoint import checkpoints
from composerl.data import load_dataset

ENV, STEPS, LEFT = "Pendulum-v1", 2400, 3
OFFLINE = {"lr": 1e-3, "tau": 0.02, "dataset": "mixed", "hidden": (128, 128)}
RUNS: list[tuple[str, dict[str, Any]]] = [
    ("bc_pendulum", {"dataset": "random"}),
    ("bc_pendulum", {"dataset": "mixed"}),
    ("bc_pendulum", {"dataset": "noisy"}),
    ("iql_pendulum", {**OFFLINE, "expectile": 0.5, "beta": 1.0}),
    ("iql_pendulum", {**OFFLINE, "expectile": 0.7, "beta": 3.0}),
    ("iql_pendulum", {**OFFLINE, "expectile": 0.9, "beta": 10.0}),
    ("cql_pendulum", {**OFFLINE, "dataset_seed": 1}),
    ("td3bc_pendulum", {**OFFLINE, "alpha": 2.5}),
    ("td3bc_pendulum", {**OFFLINE, "alpha": 10.0}),
]


def make_policies(directory: Path) -> list[Path]:
    """Train what is not there yet; gives the checkpoints."""
    for number, (recipe, settings) in enumerate(RUNS):
        out = directory / f"{number}-{recipe}"
        if not (out / "summary.json").is_file():
            composerl.train(
                recipe, out=out, seed=100 + number, steps=STEPS, save_every=STEPS // LEFT,
                keep_checkpoints=LEFT, eval_every=10**6, eval_episodes=1, compile="off",
                wandb="disabled", **settings,
            )  # fmt: skip
    found = [file for run in sorted(directory.iterdir()) for file in checkpoints(run)[::-1]]
    assert len(found) == LEFT * len(RUNS), found
    return found


def rank(files: list[Path], dataset: str, **settings: Any) -> dict[str, Any]:
    """True and estimated returns of the policies, and how far both put them into one order."""
    rows = []
    for file in files:
        policy = composerl.load(file)
        data = load_dataset(dataset, ENV, spaces=policy.spaces)
        true = policy.evaluate(episodes=20, seed=1).mean
        started = time.process_time()
        estimate = fitted_q(policy, data, **settings)
        cpu = time.process_time() - started
        name = f"{file.parents[1].name} {int(file.stem.split('-')[1])}"
        rows.append({"policy": name, "true": true, "cpu": cpu, **vars(estimate)})
        print(json.dumps(rows[-1]), flush=True)
    correlation = rank_correlation([r["true"] for r in rows], [r["value"] for r in rows])
    return {"policies": rows, "dataset": dataset, "settings": settings, "spearman": correlation}


def main() -> None:
    """Make, evaluate, print; see the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--dataset", default="mixed", help="a behaviour to generate, or a file")
    parser.add_argument("--steps", type=int, default=3000, help="updates of Q")
    parser.add_argument("--critics", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.directory.mkdir(parents=True, exist_ok=True)
    settings = {"steps": args.steps, "critics": args.critics, "seed": args.seed}
    found = rank(make_policies(args.directory), args.dataset, **settings)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    print(f"Spearman's rank correlation of {len(found['policies'])}: {found['spearman']:.3f}")


if __name__ == "__main__":
    main()
