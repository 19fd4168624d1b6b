"""Fitted Q evaluation of policies: what they would earn, from a dataset and no environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import TensorDictReplayBuffer

from composerl.bookkeeping.machine import untouched_rng
from composerl.data import Dataset, DatasetStorage, observation_stats
from composerl.data.returns import returns_to_go
from composerl.losses import FQELoss
from composerl.modules import q_network, twin_q
from composerl.policy import Policy
from composerl.update import Update, linear

__all__ = ["Estimate", "fitted_q"]

_CHUNK = 8192
MOST = 1000  # critics: what is refused would not fit into memory


@dataclass(frozen=True)
class Estimate:
    """What fitted Q evaluation says about a policy."""

    value: float
    """Discounted return from the first states of the dataset's episodes, in the mean."""
    error: float
    """Its standard error over these states."""
    apart: float
    """Standard deviation between the critics: what the data leave open."""


def fitted_q(
    policy: Policy,
    dataset: Dataset,
    *,
    steps: int = 5000,
    batch_size: int = 256,
    lr: float = 1e-3,
    hidden: Sequence[int] = (128, 128),
    gamma: float = 0.99,
    tau: float = 0.1,
    critics: int = 2,
    seed: int = 0,
    show: Callable[[int, str], None] = lambda step, note: None,
) -> Estimate:
    """Learn Q of a policy's deterministic actions; give the value of the episodes' first states.

    Time limits bootstrap: it is the return of episodes without any. Estimates rank policies better
    than they tell returns: where a policy does what the data never show, Q is a guess.

    Args:
        policy: one without memory.
        dataset: of its environment, checked against its spaces.

    Keyword Args:
        steps: updates of Q.
        batch_size: transitions in each.
        lr: learning rate, which falls to 0 linearly.
        hidden: widths of the critics' hidden layers.
        gamma: discount.
        tau: share of a critic that enters its target at each update.
        critics: how many, each with a target of its own.
        seed: same arguments, same numbers; the caller's random numbers are left untouched.
        show: called with the updates done and a note.
    """
    if policy.recurrent:
        raise ValueError("a policy with memory cannot be evaluated on single transitions")
    if len(policy.spaces.obs_shape) != 1:
        raise ValueError(f"observations must be vectors, got shape {policy.spaces.obs_shape}")
    for name, value in {"steps": steps, "batch_size": batch_size, "critics": critics}.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if critics > MOST:
        raise ValueError(f"critics must be at most {MOST}, got {critics}")
    with untouched_rng():
        torch.manual_seed(seed)
        scale, start = _scale_and_start(dataset, gamma)
        networks = _critics(policy, dataset, hidden, critics)
        for network in networks:  # bootstrapping from 0 would take long to come there
            nn.init.constant_(network.module.trunk[-1].bias, start)
        # The policy is asked once for all rows, not at each update.
        chosen = TensorDictModule(nn.Identity(), ["policy_action"], ["action"])
        loss = FQELoss(chosen, networks, num_qvalue_nets=critics, gamma=gamma)
        update = Update(loss, lr=lr, tau=tau, schedule=linear(steps))
        storage = DatasetStorage(
            replace(dataset, rewards=(dataset.rewards * scale).astype(np.float32)),
            columns={("next", "policy_action"): _actions(policy, dataset.next_observations)},
        )
        buffer = TensorDictReplayBuffer(storage=storage, batch_size=batch_size)
        for step in range(1, steps + 1):
            out = update(buffer.sample())
            if step % 100 == 0 or step == steps:
                show(step, f"Q {out['pred_value'].item() / scale:.4g}")
        starts = dataset.observations[dataset.episodes()[:, 0]]
        values = _values(loss, starts, _actions(policy, starts)) / scale
    if not np.isfinite(values).all():
        raise RuntimeError("Q diverged: the policy leaves the data far behind, or lr is too large")
    each = values.mean(0)
    error = each.std() / len(each) ** 0.5
    return Estimate(float(each.mean()), float(error), float(values.mean(1).std()))


def _critics(
    policy: Policy, dataset: Dataset, hidden: Sequence[int], number: int
) -> list[TensorDictModule]:
    spaces, stats = policy.spaces, observation_stats(dataset)
    if spaces.discrete:
        made = [q_network(spaces, hidden, normalize=stats) for _ in range(number)]
        return [network.value_network for network in made]
    return twin_q(spaces, hidden, number=number, normalize=stats)


def _scale_and_start(dataset: Dataset, gamma: float) -> tuple[float, float]:
    """A factor of the rewards that makes returns of the size of 1, as a new network's outputs.

    And what episodes earn so scaled, discounted, by the data's own policy.
    """
    bounds = dataset.episodes()
    sums = [returns_to_go(dataset.rewards[i:j].tolist(), gamma) for i, j in bounds]
    size = float(np.sqrt(np.square(np.concatenate(sums)).mean()))
    scale = 1.0 / size if size > 0 else 1.0
    return scale, scale * float(np.mean([each[0] for each in sums]))


def _actions(policy: Policy, observations: np.ndarray) -> np.ndarray:
    """What the policy does, ``(rows, action)`` or integers ``(rows,)``."""
    parts = range(0, len(observations), _CHUNK)
    return np.concatenate([policy.predict(observations[i : i + _CHUNK]) for i in parts])


@torch.no_grad()
def _values(loss: FQELoss, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Q of the critics, ``(critics, rows)``."""
    pairs = {"observation": torch.from_numpy(observations), "action": torch.from_numpy(actions)}
    batch = TensorDict(pairs, [len(observations)])
    return loss.values(loss.qvalue_network, batch, batch["action"]).double().numpy()
