"""Rules of the values of a configuration's fields."""

import json
import math
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from composerl._files import parse_json
from composerl._schema import short

__all__ = ["Count", "Finite", "NonNegative", "Positive", "Rule", "Share", "Whole", "Widths",
           "as_whole", "coerce", "json_object"]  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """What the values of a field must be: ``Annotated[float, Rule(lambda x: x > 1, "above 1")]``.

    ``check`` is given values of the field's type; ``words`` end "<field> must be ...".
    """

    check: Callable[[Any], bool]
    words: str


LARGEST = 1 << 63

# NaN fails every comparison, and infinity is no number of anything.
Count = Annotated[int, Rule(lambda n: n >= 1, "at least 1")]
Whole = Annotated[int, Rule(lambda n: n >= 0, "at least 0")]
Share = Annotated[float, Rule(lambda x: 0 <= x <= 1, "in [0, 1]")]
Positive = Annotated[float, Rule(lambda x: 0 < x < math.inf, "positive")]
NonNegative = Annotated[float, Rule(lambda x: 0 <= x < math.inf, "at least 0")]
Finite = Annotated[float, Rule(math.isfinite, "a finite number")]

_Width = Annotated[Count, Rule(lambda n: n <= 1 << 14, "at most 16384")]
#: Of hidden layers; what is refused would not fit into memory.
Widths = Annotated[tuple[_Width, ...], Rule(lambda w: len(w) <= 64, "at most 64 widths")]


def _words(choices: tuple[Any, ...]) -> set[Any]:
    """The words among the alternatives of a type: of ``float | Literal["auto"]``, auto."""
    return {word for c in choices if typing.get_origin(c) == Literal for word in typing.get_args(c)}


def coerce(name: str, value: Any, kind: Any) -> Any:
    """``value`` as ``kind`` where that loses nothing: YAML reads 1e-4 as text and has no tuples.

    What is of another kind, or breaks a rule, is a ValueError that names the field.
    """
    origin, choices = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        value = coerce(name, value, choices[0])
        for rule in choices[1:]:
            if isinstance(rule, Rule) and value is not None and not rule.check(value):
                raise ValueError(f"{name} must be {rule.words}, got {value!r}")
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in choices:
            return None
        if isinstance(value, str) and value in _words(choices):
            return value
        others = (c for c in choices if c is not type(None) and typing.get_origin(c) != Literal)
        return coerce(name, value, next(others))
    if origin is Literal:
        if isinstance(value, bool) and {"on", "off"} <= {*choices}:
            value = "on" if value else "off"  # what YAML makes of these words
        if value in choices:
            return value
        raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")
    if origin is tuple and isinstance(value, (list, tuple)):
        kinds = [choices[0]] * len(value) if Ellipsis in choices else choices
        if len(value) != len(kinds):
            raise ValueError(f"{name} must be {len(kinds)} numbers, got {list(value)}")
        each = f"each of {name}"
        return tuple(coerce(each, item, kind) for item, kind in zip(value, kinds, strict=True))
    if dict in (origin, kind):
        return json_object(name, value)
    if kind is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            raise ValueError(f"{name} must be a number, got {short(value)}") from None
    if kind is int and isinstance(value, (float, str)) and (whole := as_whole(value)) is not None:
        return whole
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is int and isinstance(value, int) and not -LARGEST <= value < LARGEST:
        raise ValueError(f"{name} must be a number of 64 bits, got {short(value)}")
    # bool is a subclass of int, but True is no number of steps.
    if origin is None and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    wanted = getattr(kind, "__name__", kind)
    raise ValueError(f"{name} must be of type {wanted}, got {short(value)}")


def as_whole(value: float | str) -> int | None:
    """The whole number that 1e5 or 2.5e3 is, which people type and YAML reads as text or float."""
    try:
        number = float(value)
    except ValueError:
        return None
    return int(number) if number.is_integer() else None


def json_object(name: str, value: Any) -> dict[str, Any]:
    """A dictionary that comes out of config.yaml and checkpoints as it went in."""
    try:
        values = parse_json(value, name) if isinstance(value, str) else value
        values = json.loads(json.dumps(values, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise ValueError(f'{name} must be a JSON object such as {{"size": 64}}, got {short(value)}')
    return values
