"""Whole loops of IQN and FQF, an update for each step of CartPole: ours, tianshou's, sb3-contrib's.

Eight environments, batch 64, width 128, 32 quantiles; a call is eight steps and eight updates. All
are driven as their own trainers do. QR-DQN of sb3-contrib is another algorithm, with no network of
fractions: it is there because people use it for the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import torch
from torchrl.data import TensorDictReplayBuffer

from composerl import Update
from composerl.data import PackedStorage, VectorCollector
from composerl.envs import make_env
from composerl.losses import FQFLoss, IQNLoss
from composerl.modules import fqf_network, iqn_network

from .timing import Case, Step
from .updates import KINDS

ENV, ENVS, FILLED, CAPACITY, BATCH, WIDTH, N = "CartPole-v1", 8, 504, 20_000, 64, 128, 32


def ours(name: str, *, compiled: bool) -> Step:
    """The loop of our recipes."""
    torch.manual_seed(0)
    env = make_env(ENV, ENVS)
    if name == "iqn":
        actor = iqn_network(env, (WIDTH, WIDTH), num_acting_quantiles=N)
        loss = IQNLoss(
            actor.value_network, num_quantiles=N, num_target_quantiles=N, num_acting_quantiles=N
        )
    else:
        actor = fqf_network(env, (WIDTH, WIDTH), num_quantiles=N)
        loss = FQFLoss(actor.value_network, actor.fraction_network)
    actor.epsilon = 0.1
    update = Update(loss, compile=compiled, **KINDS[name].options(loss))
    buffer = TensorDictReplayBuffer(storage=PackedStorage(CAPACITY), batch_size=BATCH)
    collector = VectorCollector(env, actor, frames_per_batch=ENVS, seed=0)
    for _ in range(FILLED // ENVS):
        buffer.extend(collector.next().reshape(-1))

    def turn() -> None:
        buffer.extend(collector.next().reshape(-1))
        for _ in range(ENVS):
            update(buffer.sample())

    return turn


def tianshou(name: str) -> Step:
    """tianshou's collector, buffer and algorithm."""
    import gymnasium as gym
    from tianshou.algorithm.modelfree import fqf, iqn
    from tianshou.algorithm.optim import AdamOptimizerFactory, RMSpropOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.utils.net import discrete
    from tianshou.utils.net.common import Net
    from tianshou.utils.torch_utils import policy_within_training_step

    torch.manual_seed(0)
    envs = DummyVectorEnv([lambda: gym.make(ENV)] * ENVS)
    shared = {"action_space": gym.make(ENV).action_space, "eps_training": 0.1}
    trunk = Net(state_shape=4, action_shape=WIDTH, hidden_sizes=[])
    options = {"preprocess_net": trunk, "action_shape": 2, "hidden_sizes": [WIDTH]}
    adam, every = AdamOptimizerFactory(lr=3e-4), {"target_update_freq": 100}
    if name == "iqn":
        model = discrete.ImplicitQuantileNetwork(**options)
        policy = iqn.IQNPolicy(model=model, sample_size=N, online_sample_size=N,
                               target_sample_size=N, **shared)  # fmt: skip
        algorithm = iqn.IQN(policy=policy, optim=adam, num_quantiles=N, **every)
    else:
        model = discrete.FullQuantileFunction(**options)
        proposal = discrete.FractionProposalNetwork(N, WIDTH)
        policy = fqf.FQFPolicy(model=model, fraction_model=proposal, **shared)
        slow = RMSpropOptimizerFactory(lr=1e-6)
        algorithm = fqf.FQF(policy=policy, optim=adam, fraction_optim=slow, num_fractions=N,
                            ent_coef=1e-3, **every)  # fmt: skip
    buffer = VectorReplayBuffer(CAPACITY, buffer_num=ENVS)
    collector = Collector(algorithm, envs, buffer, exploration_noise=True)
    collector.reset()
    with policy_within_training_step(policy):
        collector.collect(n_step=FILLED)

    def turn() -> None:
        with policy_within_training_step(policy):
            collector.collect(n_step=ENVS)
            for _ in range(ENVS):
                algorithm.update(buffer, BATCH)

    return turn


def sb3_contrib() -> Step:
    """QR-DQN, as ``learn`` calls its parts."""
    from sb3_contrib import QRDQN
    from stable_baselines3.common.env_util import make_vec_env

    model = QRDQN(
        "MlpPolicy", make_vec_env(ENV, ENVS, seed=0), learning_rate=3e-4, buffer_size=CAPACITY,
        learning_starts=FILLED, batch_size=BATCH, train_freq=1, gradient_steps=ENVS,
        target_update_interval=100, exploration_initial_eps=0.1, exploration_final_eps=0.1,
        policy_kwargs={"net_arch": [WIDTH, WIDTH], "n_quantiles": N}, device="cpu", seed=0,
    )  # fmt: skip
    _, callback = model._setup_learn(10**9, None)

    def turn() -> None:
        model.collect_rollouts(
            model.env, train_freq=model.train_freq, action_noise=None, callback=callback,
            learning_starts=FILLED, replay_buffer=model.replay_buffer, log_interval=None,
        )  # fmt: skip
        if model.num_timesteps > FILLED:
            model.train(batch_size=BATCH, gradient_steps=ENVS)

    for _ in range(FILLED // ENVS):
        turn()
    return turn


def benchmark() -> Iterator[Case]:
    """Whole loops of IQN and FQF beside tianshou's and sb3-contrib's QR-DQN; needs tianshou."""
    if find_spec("tianshou") is None:
        return
    for name in ("iqn", "fqf"):
        ways = {"tianshou": tianshou(name)}
        if find_spec("sb3_contrib"):
            ways["sb3-contrib's QR-DQN"] = sb3_contrib()
        ways |= {"composerl": ours(name, compiled=False),
                 "composerl, compiled": ours(name, compiled=True)}  # fmt: skip
        yield Case(f"{name}, a step and an update", ways, each=ENVS)
