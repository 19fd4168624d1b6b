"""Keyword arguments of environments: those that are not taken are named in one sentence."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import (
    find_highest_version,
    get_env_id,
    load_env_creator,
    parse_env_id,
)

__all__ = ["Env", "env_name", "make_with"]

#: A gymnasium id, or a function that makes an environment.
Env = str | Callable[..., Any]

#: Arguments of ``gymnasium.make`` itself.
_OWN = ("max_episode_steps", "disable_env_checker")


def env_name(env: Env) -> str:
    """What to call an environment in a message: its id, or the name of its factory."""
    return env if isinstance(env, str) else getattr(env, "__name__", "a factory")


def make_with(
    make: Callable[..., Any], env: Env, kwargs: Mapping[str, Any], settings: Iterable[str] = ()
) -> Any:
    """Call ``make(**kwargs)`` for an environment; also ``settings`` are named as what it takes."""
    try:
        return make(**kwargs)
    except TypeError as error:
        if not kwargs:
            raise
        named = f"environment {env_name(env)!r}"
        unknown, known = _unknown(env, kwargs, str(error))
        if not unknown:
            raise ValueError(f"{named} cannot be made with {dict(kwargs)}: {error}") from error
        takes = ", ".join([*settings, *known]) or "none"
        raise ValueError(f"{named} does not take {', '.join(unknown)}; it takes {takes}") from error


def _unknown(env: Env, kwargs: Mapping[str, Any], message: str) -> tuple[list[str], list[str]]:
    """Those of the keyword arguments that an environment does not take, and those it takes."""
    maker = _creator(env) if isinstance(env, str) else env
    parameters = inspect.signature(maker).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):  # what it hands on is not known here
        return re.findall(r"unexpected keyword argument '(\w+)'", message)[:1], known
    own = _OWN if isinstance(env, str) else ()
    return [key for key in kwargs if key not in known and key not in own], known


def _creator(env: str) -> Callable[..., Any]:
    """What ``gymnasium.make`` calls for an id, of the newest version where it says none."""
    name = env.rpartition(":")[2]  # the module before it has been imported
    if name not in gym.registry:
        space, stem, _ = parse_env_id(name)
        name = get_env_id(space, stem, find_highest_version(space, stem))
    creator: Any = gym.spec(name).entry_point
    return load_env_creator(creator) if isinstance(creator, str) else creator
