"""Somebody's own TorchRL script, with nothing of ours but the loss (and IQN's network), learns."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchrl.collectors import Collector
from torchrl.data import (
    Binary,
    Composite,
    LazyTensorStorage,
    MultiStep,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from torchrl.envs import (
    ActionMask,
    ExplorationType,
    GymEnv,
    GymWrapper,
    TransformedEnv,
    default_info_dict_reader,
    set_exploration_type,
)
from torchrl.modules import (
    MLP,
    MaskedOneHotCategorical,
    OneHotCategorical,
    ProbabilisticActor,
    ValueOperator,
)
from torchrl.objectives import SoftUpdate
from torchrl.objectives.value import GAE

from composerl.envs import make_env
from composerl.losses import ClipPPOLoss, IQNLoss
from composerl.modules import iqn_network

pytestmark = pytest.mark.slow


class Traps(gym.Wrapper):
    """CartPole with two more actions, which are never allowed and fail."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.action_space = gym.spaces.Discrete(4)
        self._mask = np.array([True, False, True, False])

    def reset(self, **options):
        seen, info = self.env.reset(**options)
        return seen, {**info, "action_mask": self._mask}

    def step(self, action):
        if not self._mask[action]:
            raise RuntimeError(f"action {action} is a trap")
        *said, info = self.env.step(int(action) // 2)
        return *said, {**info, "action_mask": self._mask}


def mean_return(env, policy, episodes=20):
    env.set_seed(1000)
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        returns = [env.rollout(500, policy)["next", "reward"].sum().item() for _ in range(episodes)]
    return np.mean(returns)


def perceptron(outputs: int) -> nn.Module:
    return MLP(in_features=4, out_features=outputs, num_cells=[64, 64], activation_class=nn.Tanh)


def train_ppo(make, actor, frames=60_000):
    """The usual script: collect, estimate advantages, ten passes in minibatches."""
    critic = ValueOperator(perceptron(1), in_keys=["observation"])
    loss = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_coeff=0.01)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    advantages = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    collector = Collector(make(), actor, frames_per_batch=1000, total_frames=frames)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(1000), sampler=SamplerWithoutReplacement(), batch_size=125
    )
    for number, batch in enumerate(collector):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (1 - number * 1000 / frames)
        buffer.empty()
        buffer.extend(advantages(batch).reshape(-1))
        for _ in range(10):
            for minibatch in buffer:
                out = loss(minibatch)
                optimizer.zero_grad()
                (out["loss_objective"] + out["loss_critic"] + out["loss_entropy"]).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
    collector.shutdown()
    return actor


@pytest.mark.parametrize("seed", [10, 11])
def test_ppo_with_a_one_hot_actor(seed):
    torch.manual_seed(seed)
    actor = ProbabilisticActor(
        TensorDictModule(perceptron(2), ["observation"], ["logits"]),
        in_keys=["logits"], distribution_class=OneHotCategorical, return_log_prob=True,
    )  # fmt: skip

    def make():
        env = GymEnv("CartPole-v1")
        env.set_seed(seed)
        return env

    assert mean_return(make(), train_ppo(make, actor)) >= 475


@pytest.mark.parametrize("seed", [10, 11])
def test_ppo_with_masked_actions(seed):
    torch.manual_seed(seed)
    actor = ProbabilisticActor(
        TensorDictModule(perceptron(4), ["observation"], ["logits"]),
        in_keys={"logits": "logits", "mask": "action_mask"},
        distribution_class=MaskedOneHotCategorical, return_log_prob=True,
    )  # fmt: skip

    def make():
        env = GymWrapper(Traps())
        spec = Composite(action_mask=Binary(4, dtype=torch.bool))
        env.set_info_dict_reader(default_info_dict_reader(["action_mask"], spec))
        env.set_seed(seed)
        return TransformedEnv(env, ActionMask())

    assert mean_return(make(), train_ppo(make, actor)) >= 475


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("seed", [10, 11])
def test_iqn(seed, masked):
    """The settings, with the uniform replay of TorchRL, were chosen on seeds 0 to 2."""
    torch.manual_seed(seed)
    name, frames = Traps if masked else "CartPole-v1", 30_720
    env = make_env(name, 8, seed=seed)
    actor = iqn_network(env, (128, 128), layer_norm=True)
    loss = IQNLoss(actor.value_network, num_quantiles=8, num_target_quantiles=8, gamma=0.99)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    targets = SoftUpdate(loss, tau=0.005)
    collector = Collector(
        env, actor, frames_per_batch=256, total_frames=frames, init_random_frames=512,
        postproc=MultiStep(0.99, 9),
    )  # fmt: skip
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(5000), batch_size=64)
    average = AveragedModel(actor, multi_avg_fn=get_ema_multi_avg_fn(0.996))
    for number, batch in enumerate(collector):
        done = number * 256
        actor.epsilon = max(0.05, 1 - done / 3000)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (1 - done / frames)
        buffer.extend(batch.reshape(-1))
        for update in range(128 if done >= 400 else 0):
            optimizer.zero_grad()
            loss(buffer.sample())["loss_qvalue"].backward()
            nn.utils.clip_grad_norm_(loss.parameters(), 10.0)
            optimizer.step()
            targets.step()
            if update % 4 == 3:
                average.update_parameters(actor)
    collector.shutdown()
    assert mean_return(make_env(name), average.module) >= 475
