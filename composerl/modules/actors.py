"""Actors, and action-value and state-value networks, as TensorDictModules."""

from collections.abc import Sequence
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution
from torchrl.data import tensor_specs as specs
from torchrl.envs import EnvBase
from torchrl.modules import IndependentNormal, MaskedCategorical, ProbabilisticActor, TanhNormal
from typing_extensions import Unpack

from composerl.envs.masks import MASK
from composerl.envs.spaces import Spaces
from composerl.modules.mlp import MLP, Head, Layers, Normalize, ObsStats

__all__ = ["Actor", "categorical_actor", "gaussian_actor", "tanh_gaussian_actor", "twin_q", "value"]

LOG_STD_RANGE = (-5.0, 2.0)


class Actor(ProbabilisticActor):
    """A ``ProbabilisticActor`` that knows its own recipe.

    Attributes:
        description: ``{"factory": name, "spaces": {...}, "arguments": {...}}``, all JSON;
            :func:`composerl.modules.build` makes an equal network from it.
    """

    description: dict[str, Any]

    def greedy(self, *seen: Tensor) -> Tensor:
        """The deterministic action ``(batch, action)`` for a batch of the ``in_keys``."""
        return self.module[0].module.greedy(*seen)

    def explore(self, *seen: Tensor) -> Tensor:
        """A random action for a batch of the ``in_keys``, ``(batch, action)``, within bounds."""
        return self.module[0].module.explore(*seen)


class BoxHead(Head):
    """Observation -> (loc, scale); subclasses say how loc becomes an action."""

    middle: Tensor
    half_range: Tensor

    def __init__(self, spaces: Spaces, trunk: MLP, normalize: ObsStats) -> None:
        super().__init__(spaces, trunk, normalize)
        low, high = torch.tensor(spaces.low), torch.tensor(spaces.high)
        self.register_buffer("middle", (high + low) / 2)
        self.register_buffer("half_range", (high - low) / 2)

    def squash(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.middle, x.tanh(), self.half_range)


class _GaussianHead(BoxHead):
    """Squashed mean, one learned standard deviation per action dimension."""

    def __init__(self, spaces: Spaces, trunk: MLP, normalize: ObsStats) -> None:
        super().__init__(spaces, trunk, normalize)
        self.log_std = nn.Parameter(torch.zeros(spaces.action_dim))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        loc = self.greedy(observation)
        scale = self.log_std.clamp(*LOG_STD_RANGE).exp() * self.half_range
        return loc, scale.expand_as(loc)

    def greedy(self, observation: Tensor) -> Tensor:
        return self.squash(self.features(observation))

    def explore(self, observation: Tensor) -> Tensor:
        loc, scale = self(observation)
        action = torch.addcmul(loc, scale, torch.randn_like(loc))
        return action.clamp(self.middle - self.half_range, self.middle + self.half_range)


class _TanhGaussianHead(BoxHead):
    """Mean and standard deviation of the Gaussian before the tanh."""

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        loc, log_std = self.features(observation).chunk(2, -1)
        return loc, log_std.clamp(*LOG_STD_RANGE).exp()

    def greedy(self, observation: Tensor) -> Tensor:
        return self.squash(self.features(observation).chunk(2, -1)[0])

    def explore(self, observation: Tensor) -> Tensor:
        loc, scale = self(observation)
        return self.squash(torch.addcmul(loc, scale, torch.randn_like(loc)))


class _Softmax(Categorical):
    """torch's Categorical of logits, which it normalises in two operations and with checks."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = self._param = logits.log_softmax(-1)
        self._num_events = logits.shape[-1]
        Distribution.__init__(self, logits.shape[:-1], validate_args=False)

    @property
    def deterministic_sample(self) -> Tensor:
        """The most probable action, under the name by which TensorDict asks for it."""
        return self.mode

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Categorical:
        shape = (*batch_shape, self._num_events)
        return Categorical(logits=self.logits.expand(shape), validate_args=False)


class _CategoricalHead(Head):
    """Observation -> logits of the actions."""

    def forward(self, observation: Tensor) -> Tensor:
        return self.features(observation)

    def allowed(self, observation: Tensor, mask: Tensor | None) -> Tensor:
        logits = self(observation)
        return logits if mask is None else logits.masked_fill(~mask, -torch.inf)

    def greedy(self, observation: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.allowed(observation, mask).argmax(-1)

    def explore(self, observation: Tensor, mask: Tensor | None = None) -> Tensor:
        logits = self.allowed(observation, mask)
        # The largest of logits plus Gumbel noise is a sample, without a softmax and its checks.
        return (logits - torch.empty_like(logits).exponential_().log_()).argmax(-1)


def gaussian_actor(
    env: EnvBase | Spaces,
    hidden: Sequence[int] = (256, 256),
    *,
    normalize: ObsStats = False,
    **layers: Unpack[Layers],
) -> Actor:
    """A Gaussian whose mean is squashed into the action box; the policy of IQL and XQL.

    The standard deviation does not depend on the state; its logarithm (in units of half the
    action range) starts at 0 and is clipped to [-5, 2]. Samples may leave the box, the mean,
    which evaluation uses, cannot. Arguments: see :mod:`composerl.modules`.
    """
    spaces = Spaces.of(env).require_box("gaussian_actor")
    trunk = MLP(spaces.obs_dim, spaces.action_dim, hidden, out_gain=0.01, **layers)
    head = _GaussianHead(spaces, trunk, normalize)
    return _actor("gaussian_actor", head, spaces, IndependentNormal, validate_args=False)


def tanh_gaussian_actor(
    env: EnvBase | Spaces,
    hidden: Sequence[int] = (256, 256),
    *,
    normalize: ObsStats = False,
    **layers: Unpack[Layers],
) -> Actor:
    """A Gaussian squashed by tanh into the action box; the policy of SAC and CQL.

    Mean and log standard deviation (clipped to [-5, 2]) both depend on the state.
    """
    spaces = Spaces.of(env).require_box("tanh_gaussian_actor")
    trunk = MLP(spaces.obs_dim, 2 * spaces.action_dim, hidden, out_gain=0.01, **layers)
    head = _TanhGaussianHead(spaces, trunk, normalize)
    box = {"low": torch.tensor(spaces.low), "high": torch.tensor(spaces.high)}
    return _actor("tanh_gaussian_actor", head, spaces, TanhNormal, **box, tanh_loc=False)


def categorical_actor(
    env: EnvBase | Spaces,
    hidden: Sequence[int] = (64, 64),
    *,
    activation: str = "tanh",
    layer_norm: bool = False,
    init: str = "orthogonal",
    normalize: ObsStats = False,
) -> Actor:
    """A probability for each discrete action; the policy of PPO and GAIL.

    Actions are integers ``(batch,)``. With orthogonal initialisation the last layer starts small,
    so that all actions are about equally likely. Where the environment masks its actions, the
    actor also reads ``action_mask``, and its distribution is TorchRL's ``MaskedCategorical``.
    """
    spaces = Spaces.of(env).require_discrete("categorical_actor")
    trunk = MLP(spaces.obs_dim, spaces.action_dim, hidden, activation=activation,
                layer_norm=layer_norm, init=init, out_gain=0.01)  # fmt: skip
    head = _CategoricalHead(spaces, trunk, normalize)
    if spaces.masked:
        return _actor("categorical_actor", head, spaces, MaskedCategorical)
    return _actor("categorical_actor", head, spaces, _Softmax)


def _actor(
    factory: str, head: Head, spaces: Spaces, distribution: type[Distribution], **options: Any
) -> Actor:
    """A head with a distribution on top, which says by what ``factory`` it was made."""
    names: list[str] = ["logits"]
    spec: specs.TensorSpec = specs.Categorical(spaces.action_dim)
    if not spaces.discrete:
        low, high = torch.tensor(spaces.low), torch.tensor(spaces.high)
        names, spec = ["loc", "scale"], specs.Bounded(low, high)
    module = TensorDictModule(head, in_keys=["observation"], out_keys=names)
    inputs = {"logits": "logits", "mask": MASK} if spaces.masked else names
    actor = Actor(
        module, inputs, spec=spec, distribution_class=distribution, distribution_kwargs=options
    )
    arguments = {**head.trunk.arguments, "normalize": head.normalize is not None}
    actor.description = {"factory": factory, "spaces": spaces.to_json(), "arguments": arguments}
    return actor


class _StateAction(Head):
    """Q(s, a): observation and action concatenated."""

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        return self.features(observation, action)


def twin_q(
    env: EnvBase | Spaces,
    hidden: Sequence[int] = (256, 256),
    *,
    number: int = 2,
    normalize: ObsStats = False,
    **layers: Unpack[Layers],
) -> list[TensorDictModule]:
    """A list of independent critics: ``observation, action -> state_action_value`` ``(batch, 1)``.

    A list of so many (``number``), as TorchRL's own losses take it without initialising anew.
    """
    spaces = Spaces.of(env).require_box("twin_q")
    critics = []
    for _ in range(number):
        trunk = MLP(spaces.obs_dim + spaces.action_dim, 1, hidden, **layers)
        net = _StateAction(spaces, trunk, normalize)
        critics.append(TensorDictModule(net, ["observation", "action"], ["state_action_value"]))
    return critics


def value(
    env: EnvBase | Spaces,
    hidden: Sequence[int] = (256, 256),
    *,
    normalize: ObsStats = False,
    **layers: Unpack[Layers],
) -> TensorDictModule:
    """V(s): ``observation -> state_value`` ``(batch, 1)``."""
    spaces = Spaces.of(env)
    net: nn.Module = MLP(spaces.obs_dim, 1, hidden, **layers)
    if normalize:
        net = nn.Sequential(Normalize(spaces.obs_shape, normalize), net)
    return TensorDictModule(net, in_keys=["observation"], out_keys=["state_value"])
