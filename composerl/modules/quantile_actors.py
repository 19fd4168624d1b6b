"""Policies for discrete actions that act on return distributions: those of IQN and FQF."""

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, exploration_type
from typing_extensions import Unpack

from composerl.envs.masks import MASK, random_allowed
from composerl.envs.spaces import Spaces
from composerl.modules.quantile import FractionProposal, QuantileNetwork, Shape, check_count

__all__ = ["QuantileActor", "fqf_network", "iqn_network"]


class _Policy(nn.Module):
    """Epsilon-greedy on the values that a subclass reads from the return distribution."""

    epsilon = 0.0

    def __init__(self, value_network: QuantileNetwork) -> None:
        super().__init__()
        self.value_network = value_network

    def distribution(self, observation: Tensor, *, sample: bool) -> dict[str, Tensor]:
        raise NotImplementedError

    def action_values(self, observation: Tensor, *, sample: bool) -> Tensor:
        return self.distribution(observation, sample=sample)["quantiles"].mean(-1)

    def forward(self, observation: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        sample = exploration_type() == ExplorationType.RANDOM
        return self.act(observation, mask, sample=sample)

    def act(
        self, observation: Tensor, mask: Tensor | None, *, sample: bool
    ) -> tuple[Tensor, Tensor]:
        values = self.action_values(observation, sample=sample)
        action = best_allowed(values, mask)
        return (self.perturb(action, values.shape[-1], mask) if sample else action), values

    def perturb(self, action: Tensor, number: int, mask: Tensor | None) -> Tensor:
        other = torch.randint_like(action, number) if mask is None else random_allowed(mask)
        chance = torch.rand(action.shape, device=action.device)
        return torch.where(chance < self.epsilon, other, action)


class _SamplingPolicy(_Policy):
    """IQN: the mean over sampled fractions, or over fixed midpoints."""

    midpoints: Tensor

    def __init__(self, value_network: QuantileNetwork, number: int) -> None:
        super().__init__(value_network)
        self.number = number
        midpoints = (torch.arange(number) + 0.5) / number
        self.register_buffer("midpoints", midpoints, persistent=False)

    def distribution(self, observation: Tensor, *, sample: bool) -> dict[str, Tensor]:
        features = self.value_network.features(observation)
        taus = self.midpoints.to(features)  # a loss moves the value network alone
        if sample:
            shape = (*features.shape[:-1], self.number)
            taus = torch.rand(shape, dtype=features.dtype, device=features.device)
        quantiles = self.value_network.quantiles(features, taus)
        return {"quantiles": quantiles, "taus": taus.expand(*features.shape[:-1], -1)}


class _ProposingPolicy(_Policy):
    """FQF: the proposed intervals' lengths times the quantiles at their midpoints."""

    def __init__(self, value_network: QuantileNetwork, fraction_network: FractionProposal) -> None:
        super().__init__(value_network)
        self.fraction_network = fraction_network

    def distribution(self, observation: Tensor, *, sample: bool) -> dict[str, Tensor]:
        features = self.value_network.features(observation)
        taus, tau_hats, _ = self.fraction_network(features)
        quantiles = self.value_network.quantiles(features, tau_hats)
        return {"quantiles": quantiles, "taus": taus, "tau_hats": tau_hats}

    def action_values(self, observation: Tensor, *, sample: bool) -> Tensor:
        out = self.distribution(observation, sample=sample)
        return (out["quantiles"] * out["taus"].diff(dim=-1).unsqueeze(-2)).sum(-1)


class QuantileActor(TensorDictModule):
    """The policy of a quantile network: ``observation -> action, action_value``.

    As a TensorDictModule it explores under ``ExplorationType.RANDOM`` (which collectors set) and
    is deterministic otherwise; actions are integers. Where the environment masks its actions, it
    also reads ``action_mask``, ``(batch, actions)``, and takes allowed ones only.

    Attributes:
        description: JSON from which :func:`composerl.modules.build` makes an equal network.
    """

    def __init__(self, policy: nn.Module, description: dict[str, Any]) -> None:
        masked = [MASK] if description["spaces"].get("masked") else []
        in_keys, out_keys = ["observation", *masked], ["action", "action_value"]
        super().__init__(policy, in_keys=in_keys, out_keys=out_keys)
        self.description = description

    @property
    def value_network(self) -> QuantileNetwork:
        """Quantiles of every action's return, for the loss."""
        return self.module.value_network

    @property
    def fraction_network(self) -> FractionProposal:
        """FQF's proposal of fractions, for the loss."""
        return self.module.fraction_network

    @property
    def epsilon(self) -> float:
        """Share of uniformly random actions when exploring, at first 0: set it as you train."""
        return self.module.epsilon

    @epsilon.setter
    def epsilon(self, value: float) -> None:
        if not 0 <= value <= 1:
            raise ValueError(f"epsilon must be in [0, 1], got {value}")
        self.module.epsilon = value

    @torch.no_grad()
    def greedy(self, observation: Tensor, mask: Tensor | None = None) -> Tensor:
        """The deterministic action for a batch of observations, int64 ``(batch,)``."""
        return self.module.act(observation, mask, sample=False)[0]

    @torch.no_grad()
    def explore(self, observation: Tensor, mask: Tensor | None = None) -> Tensor:
        """Epsilon-greedy actions ``(batch,)``; random numbers come from torch's generator."""
        return self.module.act(observation, mask, sample=True)[0]

    @torch.no_grad()
    def distribution(self, observation: Tensor) -> TensorDict:
        """What :meth:`greedy` looks at: ``quantiles`` ``(batch, actions, n)`` and ``taus``.

        FQF: also ``tau_hats`` ``(batch, n)``, where the quantiles are; ``taus`` are the n + 1
        ends of the intervals. IQN: ``taus`` ``(batch, n)`` are the quantiles' own.
        """
        out = self.module.distribution(observation, sample=False)
        return TensorDict(out, out["taus"].shape[:-1])


def best_allowed(values: Tensor, mask: Tensor | None) -> Tensor:
    """The action of the largest value ``(batch, actions)``, of those that a mask allows."""
    return (values if mask is None else values.masked_fill(~mask, -torch.inf)).argmax(-1)


def iqn_network(
    env: EnvBase | Spaces,
    hidden: Sequence[int] = (128, 128),
    *,
    num_acting_quantiles: int = 32,
    **shape: Unpack[Shape],
) -> QuantileActor:
    """The policy and value network of IQN; train its ``value_network``.

    It acts by the mean over ``num_acting_quantiles`` quantiles: sampled ones when exploring, fixed
    midpoints when not.

    Args:
        hidden: widths of the trunk, then those of the head.
        num_acting_quantiles: K; more make the action's value less noisy.
        **shape: ``head_layers``, ``embedding_dim``, ``layer_norm`` and ``dueling`` of
            :class:`~composerl.modules.QuantileNetwork`.
    """
    spaces = Spaces.of(env).require_discrete("iqn_network")
    check_count("num_acting_quantiles", num_acting_quantiles)
    policy = _SamplingPolicy(QuantileNetwork(spaces, hidden, **shape), num_acting_quantiles)
    return _actor("iqn_network", policy, spaces, num_acting_quantiles=num_acting_quantiles)


def fqf_network(
    env: EnvBase | Spaces,
    hidden: Sequence[int] = (128, 128),
    *,
    num_quantiles: int = 32,
    **shape: Unpack[Shape],
) -> QuantileActor:
    """The policy of FQF, its ``value_network`` and ``fraction_network``; train both.

    ``num_quantiles`` is N, how many fractions are proposed; the other arguments are as in
    :func:`iqn_network`.
    """
    spaces = Spaces.of(env).require_discrete("fqf_network")
    network = QuantileNetwork(spaces, hidden, **shape)
    policy = _ProposingPolicy(network, FractionProposal(network.trunk.out_dim, num_quantiles))
    return _actor("fqf_network", policy, spaces, num_quantiles=num_quantiles)


def _actor(factory: str, policy: _Policy, spaces: Spaces, **numbers: int) -> QuantileActor:
    arguments = {**policy.value_network.arguments, **numbers}
    description = {"factory": factory, "spaces": spaces.to_json(), "arguments": arguments}
    return QuantileActor(policy, description)
