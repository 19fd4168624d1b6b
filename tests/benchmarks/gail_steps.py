"""Environment steps per CPU second of a whole GAIL training loop on CartPole, 8 environments.

Runs the recipe as it is (collecting, discriminator, PPO, logging; no evaluation), and imitation's
GAIL beside it, in turns, if the Python of an environment that has it is given:

    python tests/benchmarks/gail_steps.py --imitation /path/to/venv/bin/python

imitation is set as its documentation does, but for a rollout of 1024 steps, so that both make 80
minibatch updates of PPO and 8 of the discriminator for as many steps.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]

OURS = """
import json, sys, tempfile
from pathlib import Path
sys.path.insert(0, {recipes!r})
from gail_cartpole import Config, main
with tempfile.TemporaryDirectory() as folder:
    out = Path(folder) / "run"
    main(Config(out=out, steps={steps} + 2048, expert={expert!r}, wandb="disabled", log_every=1024,
                eval_every=10**9, eval_episodes=1, save_every=10**9))
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
clock = {{row["step"]: row["time/cpu_seconds"] for row in rows}}
last = max(step for step in clock if step < max(clock))  # the last row has the final evaluation
print(json.dumps((last - 2048) / (clock[last] - clock[2048])))
"""

THEIRS = """
import contextlib, io, json, time, warnings
warnings.filterwarnings("ignore")
import numpy as np, torch
from imitation.algorithms.adversarial.gail import GAIL
from imitation.data.types import Trajectory
from imitation.rewards.reward_nets import BasicRewardNet
from imitation.util.networks import RunningNorm
from imitation.util.util import make_vec_env
from stable_baselines3 import PPO
torch.set_num_threads(1)
envs = make_vec_env("CartPole-v1", rng=np.random.default_rng(0), n_envs=8)
data, demonstrations, start = np.load({expert!r}), [], 0
for end in np.flatnonzero(data["terminals"] | data["timeouts"])[:10]:
    rows = slice(start, end + 1)
    seen = np.concatenate([data["observations"][rows], data["next_observations"][end:end + 1]])
    actions = data["actions"][rows].reshape(-1)
    demonstrations.append(Trajectory(seen, actions, None, bool(data["terminals"][end])))
    start = end + 1
ppo = PPO("MlpPolicy", envs, n_steps=128, batch_size=64, n_epochs=5, gamma=0.95, ent_coef=0.0,
          learning_rate=4e-4, seed=0, device="cpu")
net = BasicRewardNet(envs.observation_space, envs.action_space, normalize_input_layer=RunningNorm)
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    gail = GAIL(demonstrations=demonstrations, demo_batch_size=1024, gen_algo=ppo, venv=envs,
                gen_replay_buffer_capacity=512, n_disc_updates_per_round=8, reward_net=net,
                allow_variable_horizon=True)
    gail.train(2048)
    before = time.process_time()
    gail.train({steps})
    seconds = time.process_time() - before
print(json.dumps({steps} / seconds))
"""


def measure(python: str, code: str) -> float:
    """Steps per CPU second, from a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    if python != sys.executable:
        del environment["PYTHONPATH"]
    done = subprocess.run(
        [python, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    """Print each measurement and the ratio of the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--imitation", help="Python of an environment that has imitation")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10_240)
    args = parser.parse_args()

    sys.path.insert(0, str(ROOT))
    from composerl.data.offline.behaviours import cartpole
    from composerl.data.offline.checks import KEYS
    from composerl.data.offline.generation import play_episodes

    data = play_episodes("CartPole-v1", cartpole, 10, 0, "scripted")
    ours: list[float] = []
    theirs: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        import numpy as np

        expert = str(Path(folder) / "expert.npz")
        np.savez(expert, **{key: getattr(data, key) for key in KEYS})
        values = {"recipes": str(ROOT / "recipes"), "steps": args.steps, "expert": expert}
        for _ in range(args.rounds):
            ours.append(measure(sys.executable, OURS.format(**values)))
            print(f"composerl {ours[-1]:.0f} steps per CPU second", flush=True)
            if args.imitation:
                theirs.append(measure(args.imitation, THEIRS.format(**values)))
                print(f"imitation {theirs[-1]:.0f}", flush=True)
    if theirs:
        print(f"ratio of the medians {statistics.median(ours) / statistics.median(theirs):.2f}")


if __name__ == "__main__":
    main()
