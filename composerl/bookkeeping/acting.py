"""How an actor of any kind acts: deterministically, on batches of what environments show."""

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type

from composerl.bookkeeping.stages import integers
from composerl.envs.masks import MASK
from composerl.envs.spaces import Spaces

__all__ = ["greedy", "observations"]


def greedy(actor: nn.Module, seen: Any, spaces: Spaces) -> Any:
    """The actor's deterministic action for a batch of observations; discrete ones as integers.

    A batch of all that TorchRL environments show, a TensorDict, comes back with what an actor
    that reads TensorDicts has written to it.
    """
    whole = isinstance(seen, TensorDictBase)
    if plain := getattr(actor, "greedy", None):
        heeds = whole and MASK in getattr(actor, "in_keys", ())
        return plain(observations(seen, spaces), *([seen.get(MASK)] if heeds else []))
    if not hasattr(actor, "in_keys"):
        return _of_plain(actor, observations(seen, spaces), spaces)
    data = seen if whole else TensorDict({"observation": seen}, [seen.shape[0]])
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        data = actor(data)
    if whole:
        return data
    action = data.get("action")
    return action if spaces.num_actions is None else integers(action, spaces.num_actions)


def _of_plain(actor: nn.Module, seen: Tensor, spaces: Spaces) -> Tensor:
    """The action of a module of tensors; of a value for each discrete one, the best."""
    number, plain = spaces.action_dim, f"the actor, a plain {type(actor).__name__},"
    instead = "a TensorDictModule would name what it reads and writes"
    if spaces.masked:
        raise ValueError(f"{plain} takes no {MASK}, which its environment has: {instead}")
    action = actor(seen)
    shapes = [(number,), (1,), ()] if spaces.discrete else [(number,)]
    found = tuple(action.shape[1:]) if isinstance(action, Tensor) and action.ndim else None
    if found not in shapes:
        shape = ", ".join(map(str, ("batch", *(found or ()))))
        given = f"a {type(action).__name__}" if found is None else f"({shape})"
        expected = f"must turn observations into actions (batch, {number})"
        raise ValueError(f"{plain} {expected}, got {given}: {instead}")
    return integers(action, number) if spaces.discrete else action


def observations(seen: Tensor | TensorDictBase, spaces: Spaces) -> Tensor:
    """The observations alone, of what environments show."""
    if isinstance(seen, Tensor):
        return seen
    return seen.get("observation").to(getattr(torch, spaces.obs_dtype))
