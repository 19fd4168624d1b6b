"""Policies without a distribution: TD3's of continuous actions, and the best of action values."""

from collections.abc import Sequence
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor
from torchrl.data import tensor_specs as specs
from torchrl.envs import EnvBase
from torchrl.modules import Actor, QValueActor
from typing_extensions import Unpack

from composerl.envs.masks import MASK, random_allowed
from composerl.envs.spaces import Spaces
from composerl.modules.actors import BoxHead
from composerl.modules.mlp import MLP, Head, Layers, ObsStats
from composerl.modules.quantile_actors import best_allowed

__all__ = ["DeterministicActor", "QActor", "deterministic_actor", "q_network"]


class _ActionHead(BoxHead):
    """Observation -> action, squashed into the box."""

    def forward(self, observation: Tensor) -> Tensor:
        return self.squash(self.features(observation))


class DeterministicActor(Actor):
    """TorchRL's ``Actor``, ``observation -> action``, which knows its own recipe.

    Called with a TensorDict it never explores: in a stock collector, let TorchRL's
    ``AdditiveGaussianModule`` follow it.

    Attributes:
        description: JSON from which :func:`composerl.modules.build` makes an equal network.
        noise: deviation of what :meth:`explore` adds, as a share of half the action range.
    """

    description: dict[str, Any]
    noise: float = 0.1

    def greedy(self, observation: Tensor) -> Tensor:
        """The action for a batch of observations, ``(batch, action)``."""
        return self.module(observation)

    def explore(self, observation: Tensor) -> Tensor:
        """The same with noise on it, within the bounds."""
        head, action = self.module, self.module(observation)
        action = torch.addcmul(action, self.noise * head.half_range, torch.randn_like(action))
        return action.clamp(head.middle - head.half_range, head.middle + head.half_range)


def deterministic_actor(
    env: EnvBase | Spaces,
    hidden: Sequence[int] = (256, 256),
    *,
    normalize: ObsStats = False,
    **layers: Unpack[Layers],
) -> DeterministicActor:
    """An action for each state, squashed by tanh into the action box; the policy of TD3.

    Arguments: see :mod:`composerl.modules`.
    """
    spaces = Spaces.of(env).require_box("deterministic_actor")
    trunk = MLP(spaces.obs_dim, spaces.action_dim, hidden, out_gain=0.01, **layers)
    head = _ActionHead(spaces, trunk, normalize)
    spec = specs.Bounded(torch.tensor(spaces.low), torch.tensor(spaces.high))
    actor = DeterministicActor(head, spec=spec)
    actor.description = _description("deterministic_actor", spaces, head)
    return actor


class _ActionValues(Head):
    """Observation -> Q(s, a) of every action."""

    def forward(self, observation: Tensor) -> Tensor:
        return self.features(observation)


class QActor(QValueActor):
    """TorchRL's ``QValueActor``, which knows its own recipe; actions are integers.

    ``observation -> action, action_value, chosen_action_value``. Called with a TensorDict it never
    explores: in a stock collector, let TorchRL's ``EGreedyModule`` follow it. Where the
    environment masks its actions, it also reads ``action_mask`` and takes allowed ones only.

    Attributes:
        description: JSON from which :func:`composerl.modules.build` makes an equal network.
        epsilon: share of uniformly random actions of :meth:`explore`.
    """

    description: dict[str, Any]
    epsilon: float = 0.0

    @property
    def value_network(self) -> TensorDictModule:
        """``observation -> action_value`` ``(batch, actions)``, for the loss."""
        return self.module[0]

    def greedy(self, observation: Tensor, mask: Tensor | None = None) -> Tensor:
        """The best action for a batch of observations, int64 ``(batch,)``."""
        return best_allowed(self.value_network.module(observation), mask)

    def explore(self, observation: Tensor, mask: Tensor | None = None) -> Tensor:
        """Epsilon-greedy actions ``(batch,)``; random numbers come from torch's generator."""
        values = self.value_network.module(observation)
        action = best_allowed(values, mask)
        number = values.shape[-1]
        other = torch.randint_like(action, number) if mask is None else random_allowed(mask)
        chance = torch.rand(action.shape, device=action.device)
        return torch.where(chance < self.epsilon, other, action)


def q_network(
    env: EnvBase | Spaces,
    hidden: Sequence[int] = (256, 256),
    *,
    normalize: ObsStats = False,
    **layers: Unpack[Layers],
) -> QActor:
    """The greedy policy of Q(s, a) for discrete actions; train its ``value_network``."""
    spaces = Spaces.of(env).require_discrete("q_network")
    head = _ActionValues(
        spaces, MLP(spaces.obs_dim, spaces.action_dim, hidden, **layers), normalize
    )
    network = TensorDictModule(head, in_keys=["observation"], out_keys=["action_value"])
    spec, mask = specs.Categorical(spaces.action_dim), MASK if spaces.masked else None
    actor = QActor(network, spec=spec, action_mask_key=mask)
    actor.description = _description("q_network", spaces, head)
    return actor


def _description(factory: str, spaces: Spaces, head: Head) -> dict[str, Any]:
    arguments = {**head.trunk.arguments, "normalize": head.normalize is not None}
    return {"factory": factory, "spaces": spaces.to_json(), "arguments": arguments}
