"""Dreamer's policy, which remembers, and its critic."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from torch import Tensor, nn
from torchrl.data import Bounded, Categorical, Composite, TensorSpec, Unbounded
from torchrl.envs import EnvBase, TensorDictPrimer
from torchrl.envs.utils import ExplorationType, exploration_type

from composerl.envs.spaces import Spaces
from composerl.modules.world import BINS, Latent, WorldModel
from composerl.modules.world_parts import Head, draw, mix_uniform
from composerl.modules.world_senses import Seen
from composerl.modules.world_size import WorldSize, world_size

__all__ = ["DreamerActor", "dreamer_actor", "dreamer_critic"]


#: The keys of the state in a TensorDict, where ``action`` is the one to come, and its names.
_STATE = {"deter": "deter", "stoch": "stoch", "last_action": "action"}

#: Least and largest deviation of float actions, where half the width of their bounds is 1.
DEVIATIONS = (0.1, 1.0)


class _Choice(nn.Module):
    """Features to log-probabilities ``(..., actions)`` with 1 % uniform mix."""

    def __init__(self, size: WorldSize, num_actions: int) -> None:
        super().__init__()
        self.head = Head(size.features, num_actions, size.units, size.layers, out_scale=0.01)

    def forward(self, features: Tensor) -> Tensor:
        return mix_uniform(self.head(features)).log()

    def act(self, features: Tensor, *, sample: bool) -> Tensor:
        """Integers ``(batch,)``: the likeliest, or drawn."""
        probs = self(features).exp()
        noise = probs.new_empty(len(probs), 1).uniform_() if sample else None
        return draw(probs, noise).squeeze(-1)


class _BoundedNormal(nn.Module):
    """Features to means and deviations ``(..., 2, action)`` of normal distributions.

    The means are within the bounds, by a tanh. What is drawn need not be: :meth:`act` cuts it
    off, as the world model does.
    """

    low: Tensor
    high: Tensor

    def __init__(self, size: WorldSize, low: Sequence[float], high: Sequence[float]) -> None:
        super().__init__()
        self.head = Head(size.features, 2 * len(low), size.units, size.layers, out_scale=0.01)
        self.register_buffer("low", torch.tensor(low), persistent=False)
        self.register_buffer("high", torch.tensor(high), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        mean, deviation = self.head(features).chunk(2, -1)
        least, most = DEVIATIONS
        half = (self.high - self.low) / 2
        mean = self.low + half + half * mean.tanh()
        return torch.stack([mean, half * (least + (most - least) * (deviation + 2).sigmoid())], -2)

    def act(self, features: Tensor, *, sample: bool) -> Tensor:
        """Actions ``(batch, action)`` within the bounds: the means, or drawn."""
        mean, deviation = self(features).unbind(-2)
        action = mean + deviation * torch.randn_like(mean) if sample else mean
        return action.clamp(self.low, self.high)


class DreamerActor(TensorDictModuleBase):
    """A recurrent policy: a world model that follows what happens, and a head that acts on it.

    State is explicit: :meth:`initial` makes it, :meth:`greedy` and :meth:`explore` take it and
    return the next. It is a dictionary of tensors: ``deter``, ``stoch`` and the last ``action``.

    As a TensorDictModule it is one of TorchRL's recurrent policies: it reads ``observation``,
    ``is_init`` (rows that start an episode, of an ``InitTracker``) and its state under ``deter``,
    ``stoch`` and ``last_action``; it writes ``action`` and, under ``next``, the state that
    follows. An environment carries the state along if it has the transform of
    :meth:`make_tensordict_primer`, which ``Collector(..., auto_register_policy_transforms=True)``
    appends by itself. Under ``ExplorationType.RANDOM`` (which collectors set) it explores.

    Attributes:
        description: JSON from which :func:`composerl.modules.build` makes an equal network.
        recurrent: True: it carries state from step to step.
        world_network: the world model, for the loss.
        actor_network: features to log-probabilities of the actions, or to means and deviations
            ``(..., 2, action)``, for the loss.
        sampled: whether :meth:`greedy` draws, too, as the authors evaluate.
    """

    recurrent = True

    def __init__(
        self,
        world_network: WorldModel,
        actor_network: nn.Module,
        description: dict[str, Any],
        sampled: bool = False,
    ) -> None:
        super().__init__()
        self.sampled = sampled
        self.world_network = world_network
        self.actor_network = actor_network
        self.description = description
        self.in_keys = ["observation", "is_init", *_STATE]
        self.out_keys = ["action", *(("next", key) for key in _STATE)]

    @property
    def spec(self) -> Composite:
        """Of all that is written, for one environment."""
        world = self.world_network
        action: TensorSpec
        if world.num_actions is None:
            action = Bounded(world.low, world.high)
        else:
            action = Categorical(world.num_actions)
        return Composite(action=action, next=self._state_spec())

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """The transform by which an environment carries the state from step to step."""
        return TensorDictPrimer(self._state_spec(), expand_specs=True)

    def _state_spec(self) -> Composite:
        state = self.initial(1)
        parts = {key: state[name] for key, name in _STATE.items()}
        return Composite({k: Unbounded(shape=x.shape[1:], dtype=x.dtype) for k, x in parts.items()})

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Act in each row: deterministically, or by chance under ``ExplorationType.RANDOM``."""
        missing = [key for key in _STATE if key not in tensordict.keys()]  # noqa: SIM118
        if missing:
            raise KeyError(
                f"the state of the policy is missing ({', '.join(missing)}): give the environment "
                "its transform, env.append_transform(actor.make_tensordict_primer())"
            )
        first = tensordict.get("is_init").squeeze(-1)
        shape = first.shape

        def rows(key: str) -> Tensor:
            value = tensordict.get(key)
            return value.reshape(-1, *value.shape[len(shape) :])

        state = {name: rows(key) for key, name in _STATE.items()}
        act = self.explore if exploration_type() == ExplorationType.RANDOM else self.greedy
        action, state = act(rows("observation"), state, first.reshape(-1))
        tensordict.set("action", action.view(*shape, *action.shape[1:]))
        for key, name in _STATE.items():
            tensordict.set(("next", key), state[name].view((*shape, *state[name].shape[1:])))
        return tensordict

    def initial(self, batch: int) -> dict[str, Tensor]:
        """The state before an episode, for so many environments."""
        world, latent = self.world_network, self.world_network.initial(batch)
        if world.num_actions is None:
            action = latent.deter.new_zeros(batch, len(world.low))
        else:
            action = latent.deter.new_zeros(batch, dtype=torch.int64)
        return {**latent._asdict(), "action": action}

    def greedy(
        self, observation: Seen, state: Mapping[str, Tensor], first: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The likeliest action ``(batch, ...)`` given the likeliest latents, and the next state.

        Args:
            observation: uint8 ``(batch, channels, height, width)``, vectors, or of both together
                bytes, or a tensor for each by its name.
            state: from :meth:`initial` or the call before.
            first: rows that start an episode, bool ``(batch,)``: their state is not looked at.
        """
        return self._act(observation, state, first, sample=self.sampled)

    def explore(
        self, observation: Seen, state: Mapping[str, Tensor], first: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Like :meth:`greedy`, with latents and action drawn by torch's generator."""
        return self._act(observation, state, first, sample=True)

    @torch.no_grad()
    def imagined(self, states: Sequence[Mapping[str, Tensor]], every: int) -> Tensor | None:
        """What the model expects to see in an episode, ``(1 + states, channels, height, width)``.

        It starts anew from each ``every``-th state; what follows it imagines from the actions
        alone, with the likeliest latents. Of several images it is the first; None if there is none.

        Args:
            states: of one environment, as :meth:`greedy` or :meth:`explore` returned them, step by
                step from the start.
            every: how many frames of one start there are.
        """
        world, features = self.world_network, []
        if len(world.obs_shape) != 3 and world.layout is None:
            return None
        for t, state in enumerate(states):
            if t % every == 0:
                latent = Latent(state["deter"], state["stoch"])
            features.append(latent.features)
            latent = world.imagine(latent, state["action"], sample=False)
        features.append(latent.features)
        parts = torch.cat(features).split(every)  # all at once would take much memory
        drawn = [world.decoder(part) for part in parts]
        return torch.cat([x[0] if isinstance(x, tuple) else x for x in drawn])

    @torch.no_grad()
    def _act(
        self, observation: Seen, state: Mapping[str, Tensor], first: Tensor, *, sample: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        world = self.world_network
        before = Latent(state["deter"], state["stoch"])
        seen = world.observe(
            world.inputs(observation), state["action"].unsqueeze(1), first.unsqueeze(1), before,
            sample=sample,
        )  # fmt: skip
        latent = Latent(seen.latent.deter.squeeze(1), seen.latent.stoch.squeeze(1))
        action = cast(Any, self.actor_network).act(latent.features, sample=sample)
        return action, {**latent._asdict(), "action": action}


def dreamer_actor(
    env: EnvBase | Spaces, size: str | Mapping[str, Any] = "small", sampled: bool = False
) -> DreamerActor:
    """Dreamer's policy, with the :func:`~composerl.modules.world_model` that it acts on.

    With ``sampled`` it draws its actions wherever it acts, in evaluations and ``predict``, too.
    """
    spaces, numbers = Spaces.of(env), world_size(size)
    if spaces.masked:
        raise ValueError("dreamer_actor does not read action masks, which this environment has")
    world = WorldModel(spaces, numbers)
    head: nn.Module
    if spaces.low is not None and spaces.high is not None:
        head = _BoundedNormal(numbers, spaces.low, spaces.high)
    else:
        head = _Choice(numbers, spaces.action_dim)
    # The numbers, not the name: a file stays readable when the named sizes change.
    arguments: dict[str, Any] = {"size": numbers.to_json()}
    if sampled:
        arguments["sampled"] = True
    description = {"factory": "dreamer_actor", "spaces": spaces.to_json(), "arguments": arguments}
    return DreamerActor(world, head, description, sampled)


def dreamer_critic(env: EnvBase | Spaces, size: str | Mapping[str, Any] = "small") -> Head:
    """Two-hot logits of the return, from the features of a world model of the same ``size``."""
    Spaces.of(env)  # all that a critic sees of it is the state
    numbers = world_size(size)
    return Head(numbers.features, BINS, numbers.units, numbers.layers, out_scale=0.0)
