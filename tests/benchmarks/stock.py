"""TorchRL's own losses as its documentation shows them: Adam, SoftUpdate, our networks."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl import objectives
from torchrl.objectives import LossModule, SoftUpdate

from composerl import modules

from .batches import BOX, DISCRETE
from .timing import Step


def _step(
    loss: LossModule, batch: TensorDict, names: list[str], *,
    targets: bool = True, clip: float | None = None, every: int = 1,
) -> Step:  # fmt: skip
    """Losses that are delayed count at every so many-th step alone."""
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-4)
    updater = SoftUpdate(loss, tau=0.005) if targets else None
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        out = loss(batch)
        due = names if done % every == 0 else names[1:]
        sum(out[name] for name in due).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(loss.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        if updater is not None and done % every == 0:
            updater.step()

    return step


def _soft(width: int) -> tuple:
    hidden = (width, width)
    return modules.tanh_gaussian_actor(BOX, hidden), modules.twin_q(BOX, hidden)


def iql(width: int, batch: TensorDict) -> Step:
    hidden = (width, width)
    actor, critics = modules.gaussian_actor(BOX, hidden), modules.twin_q(BOX, hidden)
    critic = modules.value(BOX, hidden)
    loss = objectives.IQLLoss(
        actor, critics, critic, loss_function="l2", temperature=3.0, expectile=0.7
    )
    loss.make_value_estimator(gamma=0.99)
    return _step(loss, batch, ["loss_actor", "loss_qvalue", "loss_value"])


def sac(width: int, batch: TensorDict) -> Step:
    loss = objectives.SACLoss(*_soft(width), loss_function="l2")
    loss.make_value_estimator(gamma=0.99)
    return _step(loss, batch, ["loss_actor", "loss_qvalue", "loss_alpha"])


def cql(width: int, batch: TensorDict) -> Step:
    """Three values in its logsumexp whatever is sampled, where ours and that by hand have 30."""
    loss = objectives.CQLLoss(*_soft(width), loss_function="l2", num_random=10)
    loss.make_value_estimator(gamma=0.99)
    return _step(loss, batch, ["loss_actor", "loss_qvalue", "loss_cql", "loss_alpha"])


def td3bc(width: int, batch: TensorDict) -> Step:
    hidden = (width, width)
    loss = objectives.TD3BCLoss(
        modules.deterministic_actor(BOX, hidden), modules.twin_q(BOX, hidden), loss_function="l2",
        bounds=(-1.0, 1.0),
    )  # fmt: skip
    loss.make_value_estimator(gamma=0.99)
    return _step(loss, batch, ["loss_actor", "loss_qvalue"], every=2)


def ppo(width: int, batch: TensorDict) -> Step:
    hidden = (width, width)
    actor = modules.categorical_actor(DISCRETE, hidden)
    critic = modules.value(DISCRETE, hidden, activation="tanh")
    loss = objectives.ClipPPOLoss(actor, critic, loss_critic_type="l2", entropy_coeff=0.01)
    names = ["loss_objective", "loss_critic", "loss_entropy"]
    return _step(loss, batch, names, targets=False, clip=0.5)


class _Probability(nn.Module):
    """What TorchRL's loss takes: a probability."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        return self.net(observation, action).sigmoid()


def gail(width: int, batch: TensorDict) -> Step:
    net = modules.discriminator(DISCRETE, (width, width))
    net.module = _Probability(net.module)
    net.out_keys = ["d_logits"]
    loss = objectives.GAILLoss(net)
    one_hot = nn.functional.one_hot
    entries = {
        "observation": batch["expert", "observation"],
        "action": one_hot(batch["expert", "action"], 2).float(),
        "collector_observation": batch["observation"],
        "collector_action": one_hot(batch["action"], 2).float(),
    }
    return _step(loss, TensorDict(entries, batch.batch_size), ["loss"], targets=False)
