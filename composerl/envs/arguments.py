"""Keyword arguments of environments: those that are not taken are named in one sentence."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
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
        made = make(**kwargs)
    except (ImportError, gym.error.Error):
        raise
    except Exception as error:  # of a value that it does not check, whatever comes of it
        if not kwargs or not (isinstance(error, TypeError) or _registered(env)):
            raise
        named = f"environment {env_name(env)!r}"
        unknown, known = _unknown(env, kwargs, str(error))
        if not unknown:
            told = " ".join(str(error).split())
            raise ValueError(f"{named} cannot be made with {dict(kwargs)}: {told}") from error
        takes = ", ".join([*settings, *known]) or "none"
        raise ValueError(f"{named} does not take {', '.join(unknown)}; it takes {takes}") from error
    if kwargs.keys() <= {"render_mode"} or not _registered(env) or not isinstance(made, gym.Env):
        return made
    return _Told(made, f"environment {env_name(env)!r} cannot be played with {dict(kwargs)}")


def _registered(env: Env) -> bool:
    """Whether it is known by its id alone: of a module of the user's own a bug is to be seen."""
    return isinstance(env, str) and ":" not in env


class _Told(gym.Wrapper):
    """An environment that fails with the arguments that it was given: it is told in a sentence."""

    def __init__(self, env: gym.Env, what: str) -> None:
        super().__init__(env)
        self._what = what

    def reset(self, **options: Any) -> Any:
        """Begin an episode."""
        with self._telling():
            return self.env.reset(**options)

    def step(self, action: Any) -> Any:
        """Take an action."""
        with self._telling():
            return self.env.step(action)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise ValueError(f"{self._what}: {' '.join(str(error).split())}") from error


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
