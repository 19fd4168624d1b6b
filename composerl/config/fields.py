"""Fields of a configuration: the rules of their values, their sections, their help."""

from __future__ import annotations

import ast
import inspect
import json
import math
import textwrap
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

__all__ = [
    "MAY_CHANGE",
    "Count",
    "Declaration",
    "Finite",
    "NonNegative",
    "Positive",
    "Rule",
    "Section",
    "Share",
    "Whole",
    "as_declared",
    "declarations",
    "docs",
    "may_change",
    "sections",
]


@dataclass(frozen=True)
class Rule:
    """What the values of a field must be: ``Annotated[float, Rule(lambda x: x > 1, "above 1")]``.

    Args:
        check: whether a value is allowed; it has the type of the field already.
        words: the end of the sentence "<field> must be ...".
    """

    check: Callable[[Any], bool]
    words: str


# NaN fails every comparison, and infinity is no number of anything.
Count = Annotated[int, Rule(lambda n: n >= 1, "at least 1")]
Whole = Annotated[int, Rule(lambda n: n >= 0, "at least 0")]
Share = Annotated[float, Rule(lambda x: 0 <= x <= 1, "in [0, 1]")]
Positive = Annotated[float, Rule(lambda x: 0 < x < math.inf, "positive")]
NonNegative = Annotated[float, Rule(lambda x: 0 <= x < math.inf, "at least 0")]
Finite = Annotated[float, Rule(math.isfinite, "a finite number")]

#: Of a field that may change when a run is resumed, as it does not alter the training itself:
#: ``Annotated[Count, MAY_CHANGE]``. Declared again in a subclass, the field keeps the mark.
MAY_CHANGE = "may change on resume"


class Section:
    """``networks: ClassVar[Section]`` begins the section *networks* of a configuration.

    It is no field and has no value: the fields below it are one group in ``--help``. Declared
    again in a subclass, a field stays in its section.
    """


#: The order of sections in ``--help``; others come after them.
_SECTIONS = ("run", "data", "networks", "algorithm", "online")


def sections(config_class: type) -> dict[str, list[str]]:
    """The names of the fields in each section; without a section they are of the algorithm."""
    found: dict[str, str] = {}
    for base in reversed(config_class.__mro__):
        section = "algorithm"
        hints = typing.get_type_hints(base)
        for name in inspect.get_annotations(base):
            if hints[name] == ClassVar[Section]:
                section = name
            elif typing.get_origin(hints[name]) is not ClassVar:
                found.setdefault(name, section)
    order = [name for name in _SECTIONS if name in found.values()]
    order += [name for name in dict.fromkeys(found.values()) if name not in _SECTIONS]
    return {section: [n for n, where in found.items() if where == section] for section in order}


class Declaration(NamedTuple):
    """The type that a class gives a field, with its rules and marks, and without them."""

    kind: Any
    plain: Any


def declarations(config_class: type) -> dict[str, tuple[Declaration, ...]]:
    """How each field was declared, the last time first."""
    found: dict[str, tuple[Declaration, ...]] = {}
    for base in config_class.__mro__:
        kinds, plain = typing.get_type_hints(base, include_extras=True), typing.get_type_hints(base)
        for name in inspect.get_annotations(base):
            found[name] = (*found.get(name, ()), Declaration(kinds[name], plain[name]))
    return found


def may_change(config_class: type) -> set[str]:
    """The fields that are marked with :data:`MAY_CHANGE`."""
    return {
        name
        for name, declared in declarations(config_class).items()
        if any(MAY_CHANGE in getattr(kind, "__metadata__", ()) for kind, _ in declared)
    }


def docs(config_class: type) -> dict[str, str]:
    """The string under each field, which is its help; the last one, if it is declared again."""
    found = {}
    for base in reversed(config_class.__mro__[:-1]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):  # typed into an interpreter: there is no source to read
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                match text:
                    case ast.Expr(value=ast.Constant(value=str(words))):
                        found[field.target.id] = inspect.cleandoc(words)
    return found


def as_declared(name: str, value: Any, declared: tuple[Declaration, ...]) -> Any:
    """``value`` as the field's type; what is none, or breaks a rule, is a ValueError.

    A field that is declared again as the same type keeps the rules of the bases.
    """
    (kind, plain), *bases = declared
    value = _coerce(name, value, kind)
    for base in bases:
        if base.plain == plain:
            _coerce(name, value, base.kind)
    return value


def _coerce(name: str, value: Any, kind: Any) -> Any:
    """``value`` as ``kind`` where that loses nothing: YAML reads 1e-4 as text and has no tuples."""
    origin, choices = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        value = _coerce(name, value, choices[0])
        for rule in choices[1:]:
            if isinstance(rule, Rule) and value is not None and not rule.check(value):
                raise ValueError(f"{name} must be {rule.words}, got {value!r}")
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in choices:
            return None
        return _coerce(name, value, next(c for c in choices if c is not type(None)))
    if origin is Literal:
        if value in choices:
            return value
        raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")
    if origin is tuple and isinstance(value, (list, tuple)):
        kinds = [choices[0]] * len(value) if Ellipsis in choices else choices
        if len(value) != len(kinds):
            raise ValueError(f"{name} must be {len(kinds)} numbers, got {list(value)}")
        each = f"each of {name}"
        return tuple(_coerce(each, item, kind) for item, kind in zip(value, kinds, strict=True))
    if origin is dict or kind is dict:
        return _json_object(name, value)
    if kind is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError:
            raise ValueError(f"{name} must be a number, got {value!r}") from None
    if kind is Path and isinstance(value, (str, Path)):
        return Path(value)
    # bool is a subclass of int, but True is no number of steps.
    if origin is None and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise ValueError(f"{name} must be of type {getattr(kind, '__name__', kind)}, got {value!r}")


def _json_object(name: str, value: Any) -> dict[str, Any]:
    """A dictionary that comes out of config.yaml and checkpoints as it went in."""
    try:
        values = json.loads(value if isinstance(value, str) else json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        values = None
    if not isinstance(values, dict):
        raise ValueError(f'{name} must be a JSON object such as {{"size": 64}}, got {value!r}')
    return values
