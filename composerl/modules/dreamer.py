"""Dreamer's policy, which remembers, and its critic."""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from torch import Tensor, nn
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, TensorDictPrimer
from torchrl.envs.utils import ExplorationType, exploration_type

from composerl.envs.spaces import Spaces
from composerl.modules.world import BINS, Latent, WorldModel, world_size
from composerl.modules.world_parts import Head, draw, mix_uniform

__all__ = ["DreamerActor", "dreamer_actor", "dreamer_critic"]


#: The keys of the state in a TensorDict, where ``action`` is the one to come, and its names.
_STATE = {"deter": "deter", "stoch": "stoch", "last_action": "action"}


class _ActorHead(nn.Module):
    """Features to log-probabilities ``(..., actions)`` with 1 % uniform mix."""

    def __init__(self, in_dim: int, num_actions: int, units: int, layers: int) -> None:
        super().__init__()
        self.head = Head(in_dim, num_actions, units, layers, out_scale=0.01)

    def forward(self, features: Tensor) -> Tensor:
        return mix_uniform(self.head(features)).log()


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
        actor_network: features to log-probabilities of the actions, for the loss.
    """

    recurrent = True

    def __init__(
        self, world_network: WorldModel, actor_network: nn.Module, description: dict[str, Any]
    ) -> None:
        super().__init__()
        self.world_network = world_network
        self.actor_network = actor_network
        self.description = description
        self.in_keys = ["observation", "is_init", *_STATE]
        self.out_keys = ["action", *(("next", key) for key in _STATE)]

    @property
    def spec(self) -> Composite:
        """Of all that is written, for one environment."""
        action = Categorical(self.world_network.num_actions)
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
        tensordict.set("action", action.view(shape))
        for key, name in _STATE.items():
            tensordict.set(("next", key), state[name].view((*shape, *state[name].shape[1:])))
        return tensordict

    def initial(self, batch: int) -> dict[str, Tensor]:
        """The state before an episode, for so many environments."""
        latent = self.world_network.initial(batch)
        action = torch.zeros(batch, dtype=torch.int64, device=latent.deter.device)
        return {**latent._asdict(), "action": action}

    def greedy(
        self, observation: Tensor, state: Mapping[str, Tensor], first: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The likeliest action ``(batch,)`` given the likeliest latents, and the next state.

        Args:
            observation: uint8 ``(batch, channels, height, width)``.
            state: from :meth:`initial` or the call before.
            first: rows that start an episode, bool ``(batch,)``: their state is not looked at.
        """
        return self._act(observation, state, first, sample=False)

    def explore(
        self, observation: Tensor, state: Mapping[str, Tensor], first: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Like :meth:`greedy`, with latents and action drawn by torch's generator."""
        return self._act(observation, state, first, sample=True)

    @torch.no_grad()
    def _act(
        self, observation: Tensor, state: Mapping[str, Tensor], first: Tensor, *, sample: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        world = self.world_network
        before = Latent(state["deter"], state["stoch"])
        seen = world.observe(
            world.image(observation), state["action"].unsqueeze(1), first.unsqueeze(1), before,
            sample=sample,
        )  # fmt: skip
        latent = Latent(seen.latent.deter.squeeze(1), seen.latent.stoch.squeeze(1))
        probs = self.actor_network(latent.features).exp()
        noise = probs.new_empty(len(probs), 1).uniform_() if sample else None
        action = draw(probs, noise).squeeze(-1)
        return action, {**latent._asdict(), "action": action}


def dreamer_actor(env: EnvBase | Spaces, size: str | Mapping[str, int] = "small") -> DreamerActor:
    """Dreamer's policy, with the :func:`~composerl.modules.world_model` that it acts on."""
    spaces = Spaces.of(env).require_discrete("dreamer_actor")
    if spaces.masked:
        raise ValueError("dreamer_actor does not read action masks, which this environment has")
    numbers = world_size(size)
    world = WorldModel(spaces.obs_shape, spaces.action_dim, numbers)
    head = _ActorHead(world.feature_dim, spaces.action_dim, numbers["units"], numbers["layers"])
    # The numbers, not the name: a file stays readable when the named sizes change.
    description = {"factory": "dreamer_actor", "spaces": spaces.to_json(),
                   "arguments": {"size": numbers}}  # fmt: skip
    return DreamerActor(world, head, description)


def dreamer_critic(env: EnvBase | Spaces, size: str | Mapping[str, int] = "small") -> Head:
    """Two-hot logits of the return, from the features of a world model of the same ``size``."""
    Spaces.of(env).require_discrete("dreamer_critic")
    n = world_size(size)
    in_dim = n["deter"] + n["latents"] * n["classes"]
    return Head(in_dim, BINS, n["units"], n["layers"], out_scale=0.0)
