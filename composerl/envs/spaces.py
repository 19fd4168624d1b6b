"""What a network, a dataset and a policy need to know of an environment, as plain numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium as gym
import numpy as np

import composerl.envs.catch  # noqa: F401  registers composerl/Catch-v0 with gymnasium
from composerl.envs.games import PREFIXES, open_game

__all__ = ["Spaces", "open_gym"]


@dataclass(frozen=True, kw_only=True)
class Spaces:
    """Observation and action space as JSON can hold them.

    Either ``low`` and ``high`` (a box of float actions, in the environment's own bounds) or
    ``num_actions`` (discrete actions) is set, never both.
    """

    obs_shape: tuple[int, ...]
    obs_dtype: str = "float32"
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    num_actions: int | None = None

    def __post_init__(self) -> None:
        # JSON turns tuples into lists: normalise, so that equal spaces compare equal.
        for name in ("obs_shape", "low", "high"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, tuple(value))
        if (self.low is None) == (self.num_actions is None):
            raise ValueError(
                "Spaces needs either low and high (float actions) or num_actions (discrete), "
                f"got low={self.low} and num_actions={self.num_actions}"
            )
        if self.low is not None and (self.high is None or len(self.low) != len(self.high)):
            raise ValueError(f"low and high must have one length, got {self.low} and {self.high}")

    @property
    def discrete(self) -> bool:
        """Whether actions are integers."""
        return self.num_actions is not None

    @property
    def action_dim(self) -> int:
        """Length of a float action; the number of choices when actions are discrete."""
        return self.num_actions if self.low is None else len(self.low)

    @property
    def obs_dim(self) -> int:
        """Length of a flat observation."""
        return int(np.prod(self.obs_shape))

    def require_box(self, what: str) -> Spaces:
        """Return self, or say in one sentence that ``what`` cannot handle discrete actions."""
        if self.discrete:
            raise ValueError(
                f"{what} needs continuous (Box) actions, but this environment has "
                f"{self.num_actions} discrete ones"
            )
        return self

    def require_discrete(self, what: str) -> Spaces:
        """Return self, or say in one sentence that ``what`` cannot handle continuous actions."""
        if not self.discrete:
            raise ValueError(
                f"{what} needs discrete actions, but this environment has a Box of "
                f"{self.action_dim} continuous ones"
            )
        return self

    def to_json(self) -> dict[str, Any]:
        """A dictionary from which ``Spaces(**d)`` makes an equal object."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    @classmethod
    def of(cls, env: Any) -> Spaces:
        """The spaces of a gymnasium id, factory or environment, or of a TorchRL one."""
        if isinstance(env, Spaces):
            return env
        if hasattr(env, "action_spec"):  # first, as a TorchRL environment can be called too
            return cls._of_torchrl(env)
        if isinstance(env, str) or (callable(env) and not hasattr(env, "action_space")):
            made = open_gym(env)
            try:
                return cls.of(made)
            finally:
                made.close()
        space = getattr(env, "single_observation_space", env.observation_space)
        action = getattr(env, "single_action_space", env.action_space)
        if not isinstance(space, gym.spaces.Box):
            raise ValueError(
                f"only Box observations are supported, but the environment has {space}; "
                "wrap it with gymnasium's FlattenObservation"
            )
        common = {"obs_shape": space.shape, "obs_dtype": _obs_dtype(space.dtype)}
        if isinstance(action, gym.spaces.Discrete):
            if action.start != 0:
                raise ValueError(
                    f"discrete actions must start at 0, got {action}; wrap the environment with "
                    "gymnasium's TransformAction"
                )
            return cls(num_actions=int(action.n), **common)
        if not isinstance(action, gym.spaces.Box) or len(action.shape) != 1:
            raise ValueError(
                f"only Discrete and one-dimensional Box actions are supported, got {action}"
            )
        return cls(low=_floats(action.low), high=_floats(action.high), **common)

    @classmethod
    def _of_torchrl(cls, env: Any) -> Spaces:
        spec = env.observation_spec["observation"]
        action = getattr(env, "action_spec_unbatched", env.action_spec)
        shape = tuple(spec.shape[len(env.batch_size) :])
        common = {"obs_shape": shape, "obs_dtype": str(spec.dtype).removeprefix("torch.")}
        if hasattr(action.space, "n"):
            return cls(num_actions=int(action.space.n), **common)
        return cls(low=_floats(action.space.low), high=_floats(action.space.high), **common)


def open_gym(env: str | Callable[[], gym.Env], *, render_mode: str | None = None) -> gym.Env:
    """Make an environment from its gymnasium id or factory; an unknown id says what is near.

    ``render_mode`` is for ids: a factory has its own.
    """
    if not isinstance(env, str):
        return _in_floats(env())
    # Not every environment takes the argument.
    options = {} if render_mode is None else {"render_mode": render_mode}
    try:
        if env.startswith(PREFIXES):
            return open_game(env, **options)
        return _in_floats(gym.make(env, **options))
    except ImportError as error:
        raise ValueError(
            f"environment {env!r} needs a package that is not installed: {error}; "
            'pip install "composerl[atari]" or "composerl[minatar]"'
        ) from error
    except gym.error.Error as error:
        raise ValueError(f"environment {env!r} cannot be made: {error}") from error


def _in_floats(env: Any) -> Any:
    """A gymnasium environment whose observations are float32, float64 or pixels."""
    space = getattr(env, "observation_space", None)
    plain = ("uint8", "float32", "float64")
    if isinstance(space, gym.spaces.Box) and str(space.dtype) not in plain:
        return gym.wrappers.DtypeObservation(env, np.float32)
    return env


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(v) for v in values)


def _obs_dtype(dtype: Any) -> str:
    """Float observations of any width are handled as float32; pixels stay uint8."""
    return "uint8" if dtype == np.uint8 else "float32"
