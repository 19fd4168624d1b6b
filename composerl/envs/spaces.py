"""What a network, a dataset and a policy need to know of an environment, as plain numbers."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from composerl._schema import short
from composerl.envs.looking import fields_of_gym, fields_of_torchrl
from composerl.envs.opening import open_gym
from composerl.envs.packing import Layout, is_image, slices

__all__ = ["Spaces", "open_gym"]

LARGEST = 1 << 31  # numbers in an observation, times actions to choose from
_KINDS: dict[str, Any] = {"obs_shape": (int, np.integer), "low": (int, float), "high": (int, float),
                          "num_actions": (int, np.integer), "obs_parts": str}  # fmt: skip


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
    masked: bool = False
    """Whether the environment says which of its discrete actions are allowed, by a mask."""
    obs_parts: tuple[str, ...] | None = field(default=None, compare=False)
    """Names of the arrays that an observation was joined from, in order, where it was."""
    obs_part_shapes: tuple[tuple[int, ...], ...] | None = field(default=None, compare=False)
    """Their shapes."""
    obs_layout: Layout | None = None
    """Names and shapes of the arrays that an observation's bytes are, where there are images among
    them: see :mod:`composerl.envs.packing`."""

    def __post_init__(self) -> None:
        # JSON turns tuples into lists: normalise, so that equal spaces compare equal.
        for name in ("obs_shape", "low", "high", "obs_parts"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, tuple(value))
        if self.obs_part_shapes is not None:
            shapes = tuple(map(tuple, self.obs_part_shapes))
            object.__setattr__(self, "obs_part_shapes", shapes)
        self._require_types()
        if self.obs_layout is not None:
            object.__setattr__(self, "obs_layout", self._checked_layout())
        if (self.low is None) == (self.num_actions is None):
            raise ValueError(
                "Spaces needs either low and high (float actions) or num_actions (discrete), "
                f"got low={self.low} and num_actions={self.num_actions}"
            )
        if self.low is not None and (self.high is None or len(self.low) != len(self.high)):
            raise ValueError(f"low and high must have one length, got {self.low} and {self.high}")

    def _require_types(self) -> None:
        """Spaces may come from somebody's file."""
        for name, kinds in _KINDS.items():
            value = getattr(self, name)
            values = value if isinstance(value, tuple) else () if value is None else (value,)
            if any(not isinstance(v, kinds) or isinstance(v, bool) for v in values):
                raise ValueError(f"{name} of spaces has a wrong type: {short(value)}")
        shapes = self.obs_part_shapes or ()
        wrong = any(type(size) is not int or size < 0 for shape in shapes for size in shape)
        if wrong or (shapes and len(shapes) != len(self.obs_parts or ())):
            raise ValueError(f"obs_part_shapes of spaces does not fit: {short(shapes)}")
        sizes = (*self.obs_shape, *(() if self.num_actions is None else (self.num_actions,)))
        if any(n < 0 for n in sizes) or math.prod(map(int, sizes)) > LARGEST:
            raise ValueError(f"spaces of {short(sizes)} are refused: negative, or too large")
        if self.obs_dtype not in ("float32", "uint8"):
            raise ValueError(f"obs_dtype must be float32 or uint8, got {short(self.obs_dtype)}")

    def _checked_layout(self) -> Layout:
        try:
            layout = tuple((name, tuple(shape)) for name, shape in self.obs_layout or ())
        except (TypeError, ValueError):
            layout = ()
        names, sides = [name for name, _ in layout], [n for _, shape in layout for n in shape]
        if (
            not any(is_image(shape) for _, shape in layout)
            or not all(isinstance(name, str) for name in names)
            or len(set(names)) < len(names)
            or not all(type(n) is int and 0 <= n <= LARGEST for n in sides)
            or (slices(layout)[-1].stop,) != self.obs_shape
            or self.obs_dtype != "uint8"
        ):
            raise ValueError(f"obs_layout does not fit the observations: {short(self.obs_layout)}")
        return layout

    @property
    def discrete(self) -> bool:
        """Whether actions are integers."""
        return self.num_actions is not None

    @property
    def action_dim(self) -> int:
        """Length of a float action; the number of choices when actions are discrete."""
        if self.low is not None:
            return len(self.low)
        assert self.num_actions is not None  # one of them is set
        return self.num_actions

    @property
    def obs_dim(self) -> int:
        """Length of an observation that is a vector; an image is refused."""
        self.require_one_array("this network")
        if len(self.obs_shape) != 1:
            raise ValueError(
                f"this network needs observations that are vectors, got shape {self.obs_shape}; "
                "iqn_network, fqf_network and world_model take images"
            )
        return self.obs_shape[0]

    @property
    def joined_from(self) -> Layout | None:
        """Names and shapes of the arrays that a vector was joined from, if they are known."""
        if self.obs_parts is None or self.obs_part_shapes is None:
            return None
        return tuple(zip(self.obs_parts, self.obs_part_shapes, strict=True))

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the arrays that an observation is made of; none if it is one."""
        return tuple(name for name, _ in self.obs_layout or ()) or self.obs_parts or ()

    def require_one_array(self, what: str) -> Spaces:
        """Return self, or say that ``what`` cannot be of images and vectors together."""
        if self.obs_layout is not None:
            names = [name for name, _ in self.obs_layout]
            image = next(name for name, shape in self.obs_layout if is_image(shape))
            raise ValueError(
                f"{what} cannot have images ({image}) together with the rest of an observation "
                f"({', '.join(names)}), as dreamer_actor can: keep a vector, or an image with its "
                "channels first, by gymnasium's TransformObservation(env, lambda obs: obs[name], "
                "env.observation_space[name])"
            )
        return self

    def require_box(self, what: str) -> Spaces:
        """Return self, or say in one sentence that ``what`` cannot handle discrete actions."""
        if self.discrete:
            found = f"this environment has {self.num_actions} discrete ones"
            raise ValueError(f"{what} needs continuous (Box) actions, but {found}")
        return self

    def require_discrete(self, what: str) -> Spaces:
        """Return self, or say in one sentence that ``what`` cannot handle continuous actions."""
        if not self.discrete:
            found = f"this environment has a Box of {self.action_dim} continuous ones"
            raise ValueError(f"{what} needs discrete actions, but {found}")
        return self

    def require_shapes_of(self, env: Spaces, name: str) -> None:
        """Refuse an environment that a policy for these spaces cannot see or act in."""
        if env._shapes != self._shapes:
            raise ValueError(
                f"the policy is for {self._shapes}, but environment {name!r} has {env._shapes}"
            )

    @property
    def _shapes(self) -> str:
        box = f"continuous actions ({self.action_dim},)"
        actions = f"{self.num_actions} discrete actions" if self.discrete else box
        return f"observations {self.obs_shape} of {self.obs_dtype} and {actions}"

    def to_json(self) -> dict[str, Any]:
        """A dictionary from which ``Spaces(**d)`` makes an equal object."""
        return {key: value for key, value in asdict(self).items() if value not in (None, False)}

    @classmethod
    def of(cls, env: Any, **kwargs: Any) -> Spaces:
        """The spaces of a gymnasium id, factory or environment, or of a TorchRL one.

        Only ids and factories are opened, with the keyword arguments; what is open is read.
        """
        torchrl = hasattr(env, "action_spec")
        opened = torchrl or isinstance(env, Spaces) or hasattr(env, "action_space")
        if isinstance(env, type) or not opened:
            with closing(open_gym(env, **kwargs)) as made:
                return cls.of(made)
        if kwargs:
            late, when = ", ".join(kwargs), "that is still to be opened"
            raise ValueError(f"{late} are for an environment {when}, got a {type(env).__name__}")
        if isinstance(env, Spaces):
            return env
        if torchrl:
            return cls(**fields_of_torchrl(env))
        return cls(**fields_of_gym(env))
