"""Gymnasium environments from an id or a factory, with observations as one plain array."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

import composerl.envs.catch  # noqa: F401  registers composerl/Catch-v0 with gymnasium
from composerl.envs.arguments import Env, env_name, make_with
from composerl.envs.games import PREFIXES, open_game
from composerl.envs.masks import with_mask
from composerl.envs.packing import PackedBox, pack, packed_space

__all__ = ["FlatBox", "env_name", "flat_space", "open_gym"]


def open_gym(env: Env, *, render_mode: str | None = None, **kwargs: Any) -> Any:
    """Make an environment from its gymnasium id or factory; an unknown id says what is near.

    A Dict or Tuple of Boxes is flattened to one vector, in the order of
    ``gymnasium.spaces.flatten``, or if there are images among them to a row of bytes, see
    :mod:`composerl.envs.packing`; an ``action_mask`` in it is in the infos instead, see
    :class:`~composerl.envs.masks.MaskedActions`; a factory's TorchRL environment is left as it is.

    Args:
        env: gymnasium id, or a function that makes an environment.
        render_mode: for ids: a factory has its own.
        kwargs: of ``gymnasium.make``, or of the factory; those of games are described at
            :func:`~composerl.envs.games.open_game`.
    """
    if not isinstance(env, str):
        return _plain(make_with(env, env, kwargs))
    if render_mode is not None:  # not every environment takes the argument
        kwargs["render_mode"] = render_mode
    try:
        if env.startswith(PREFIXES):
            return open_game(env, **kwargs)
        return _plain(make_with(partial(gym.make, env), env, kwargs))
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise ValueError(f"environment {env!r} {_lacks(env, error)}") from error
    except gym.error.Error as error:
        raise ValueError(f"environment {env!r} cannot be made: {error}") from error


def _lacks(env: str, error: Exception) -> str:
    """What an environment needs that is not installed, and the extra that has it."""
    module, colon, _ = env.partition(":")
    cause = error.__cause__ or error  # gymnasium says the same in more words
    if colon and getattr(cause, "name", None) == module:
        return f"names a module {module!r}, which is neither installed nor in this directory"
    known = gym.registry.get(env)
    if str(known and known.entry_point).startswith("gymnasium.envs.mujoco"):
        return "needs MuJoCo, which is not installed; pip install 'composerl[mujoco]'"
    game = {"MinAtar": "minatar", "ALE": "atari", "Crafter": "crafter"}.get(env.partition("/")[0])
    hint = f"; pip install 'composerl[{game}]'" if game else ""
    return f"needs a package that is not installed: {cause}{hint}"


class FlatBox(gym.spaces.Box):
    """The Box that a Dict or Tuple was flattened to; knows its parts' names and shapes, in order.

    Nested names are joined by ``/``; the elements of a Tuple are ``_index_0`` and so on, as in
    Minari's files.
    """

    parts: dict[str, tuple[int, ...]]


def flat_space(space: gym.Space) -> gym.spaces.Box:
    """The space as one Box: itself, flattened as ``gymnasium.spaces.flatten`` does, or bytes."""
    if isinstance(space, gym.spaces.Box):
        return space
    leaves = dict(_leaves(space))
    if not all(isinstance(leaf, gym.spaces.Box) for leaf in leaves.values()):
        raise ValueError(
            "only Box observations and Dicts or Tuples of Boxes are supported, but the environment "
            f"has {space}; wrap it with gymnasium's FlattenObservation or TransformObservation"
        )
    if any(len(leaf.shape or ()) > 2 for leaf in leaves.values()):
        return packed_space(leaves)
    flat = gym.spaces.flatten_space(space)
    assert isinstance(flat, gym.spaces.Box)
    made = FlatBox(flat.low, flat.high, dtype=flat.dtype.type)
    made.parts = {name: tuple(leaf.shape or ()) for name, leaf in leaves.items()}
    return made


def _leaves(space: gym.Space, name: str = "") -> Iterator[tuple[str, gym.Space]]:
    """The spaces that a Dict or Tuple is made of, in order, by their joined names."""
    if isinstance(space, gym.spaces.Dict):
        parts = dict(space.spaces)
    elif isinstance(space, gym.spaces.Tuple):
        parts = {f"_index_{index}": part for index, part in enumerate(space.spaces)}
    else:
        yield name, space
        return
    for key, part in parts.items():
        yield from _leaves(part, f"{name}/{key}" if name else key)


def _plain(env: Any) -> Any:
    """A gymnasium environment whose observations are one array of float32, float64 or pixels."""
    if hasattr(env, "action_spec"):  # TorchRL's, which shows the one inside by the same names
        return env
    env = with_mask(env)
    space = getattr(env, "observation_space", None)
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        flatten: Any = partial(gym.spaces.flatten, space)
        space = flat_space(space)
        if isinstance(space, PackedBox):
            flatten = partial(pack, space.layout)
        env = gym.wrappers.TransformObservation(env, flatten, space)
    plain = ("uint8", "float32", "float64")
    if isinstance(space, gym.spaces.Box) and str(space.dtype) not in plain:
        return gym.wrappers.DtypeObservation(env, np.float32)
    return env
