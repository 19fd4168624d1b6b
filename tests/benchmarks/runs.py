"""Whole runs as processes of their own, from the first import on; an update of d3rlpy's CQL."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from composerl.data.offline.behaviours import cartpole
from composerl.data.offline.checks import KEYS
from composerl.data.offline.generation import play_episodes

from .batches import continuous
from .timing import Case, Step
from .updates import KINDS

STEPS, LEAST = (
    25_000,
    "import torch, torchrl.data, torchrl.objectives, torchrl.collectors, gymnasium",
)

#: As its documentation has it, but for rollouts and batches of our recipe's sizes, so that both
#: make 80 minibatch updates of PPO and 8 of the judge, on 128 rows of each side, every 1024 steps.
IMITATION = """
import sys, warnings
warnings.filterwarnings("ignore")
import numpy as np, torch
from imitation.algorithms.adversarial.gail import GAIL
from imitation.data.types import Trajectory
from imitation.rewards.reward_nets import BasicRewardNet
from imitation.util.networks import RunningNorm
from imitation.util.util import make_vec_env
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
torch.set_num_threads(1)
envs = make_vec_env("CartPole-v1", rng=np.random.default_rng(0), n_envs=8)
data, demonstrations, start = np.load(sys.argv[1]), [], 0
for end in np.flatnonzero(data["terminals"] | data["timeouts"]):
    rows = slice(start, end + 1)
    seen = np.concatenate([data["observations"][rows], data["next_observations"][end:end + 1]])
    actions = data["actions"][rows].reshape(-1)
    demonstrations.append(Trajectory(seen, actions, None, bool(data["terminals"][end])))
    start = end + 1
ppo = PPO("MlpPolicy", envs, n_steps=128, batch_size=128, n_epochs=10, gamma=0.95, ent_coef=0.01,
          learning_rate=4e-4, seed=0, device="cpu")
net = BasicRewardNet(envs.observation_space, envs.action_space, normalize_input_layer=RunningNorm)
gail = GAIL(demonstrations=demonstrations, demo_batch_size=128, gen_algo=ppo, venv=envs,
            gen_replay_buffer_capacity=1024, n_disc_updates_per_round=8, reward_net=net,
            allow_variable_horizon=True)
gail.train(int(sys.argv[2]))
evaluate_policy(ppo, envs, 20)
"""


def process(*arguments: str) -> None:
    """A Python of this environment, whose CPU time is counted."""
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)


def recipe(name: str, *flags: str) -> None:
    """``composerl run`` in a directory that is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        process("-m", "composerl", "run", name, "--out", str(Path(folder, "run")), *flags)


def gail() -> Iterator[Case]:
    """GAIL's whole default run beside imitation's, 25,000 steps of CartPole; needs imitation."""
    if find_spec("imitation") is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        demonstrations = play_episodes("CartPole-v1", cartpole, 10, 0, "scripted")
        path = Path(folder, "expert.npz")
        np.savez(path, **{key: getattr(demonstrations, key) for key in KEYS})
        ways = {
            "imitation": partial(process, "-c", IMITATION, str(path), str(STEPS)),
            "composerl": partial(recipe, "gail_cartpole"),
        }
        yield Case(f"{STEPS:,} steps, from the first import to the last evaluation", ways, warmup=1)


def start() -> Iterator[Case]:
    """From the command to the first step, without W&B, beside the imports that it takes."""
    short = ("--steps", "8", "--eval-episodes", "1", "--wandb", "disabled")
    ways = {
        "imports alone": partial(process, "-c", LEAST),
        "composerl": partial(recipe, "iqn_cartpole", *short),
    }
    yield Case("iqn_cartpole, one step of its eight environments", ways, warmup=1)


def d3rlpy_step() -> Step:
    """Its update on tensors that are ready, with a fixed weight, as ours has."""
    import d3rlpy
    from d3rlpy.torch_utility import TorchMiniBatch

    torch.manual_seed(0)
    config = d3rlpy.algos.CQLConfig(
        actor_learning_rate=3e-4, temp_learning_rate=3e-4, alpha_learning_rate=0.0
    )
    algorithm = config.create(device=False)
    algorithm.create_impl((17,), 6)
    batch = continuous(256)
    following = batch["next"]
    rows = TorchMiniBatch(
        observations=batch["observation"], actions=batch["action"], rewards=following["reward"],
        next_observations=following["observation"], next_actions=batch["action"],
        returns_to_go=following["reward"], terminals=following["terminated"].float(),
        intervals=torch.ones(256, 1), device="cpu:0",
    )  # fmt: skip
    return lambda: algorithm.impl.update(rows, 0)


def d3rlpy() -> Iterator[Case]:
    """An update of CQL beside d3rlpy's; needs d3rlpy."""
    if find_spec("d3rlpy") is None:
        return
    kind = KINDS["cql"]
    ways = kind.ways(256, 256)
    yield Case("cql, width 256, batch 256", {"d3rlpy": d3rlpy_step(), **ways})
