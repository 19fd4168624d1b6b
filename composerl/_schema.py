"""What the values of somebody's file must be, told where they enter."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["Kinds", "imported", "number", "short", "typed"]

_WORDS = {str: "text", int: "a whole number", float: "a number", dict: "a mapping", list: "a list"}

#: The type of a key's value; None and a missing key are always allowed.
Kinds = Mapping[str, type]


def typed(values: Any, kinds: Kinds, where: str) -> dict[str, Any]:
    """The values, a mapping, if those of these keys are of these types; else a ValueError."""
    if not isinstance(values, dict):
        raise ValueError(f"{where} must be a mapping, got {short(values)}")
    for key, kind in kinds.items():
        value = values.get(key)
        fits = number(value) if kind is float else isinstance(value, kind)
        if value is not None and (not fits or (kind is int and isinstance(value, bool))):
            raise ValueError(f"{where}: {key} must be {_WORDS[kind]}, got {short(value)}")
    return values


def number(value: Any) -> bool:
    """Whether it is a number; True is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def short(value: Any) -> str:
    """A value as it can be told in a sentence."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def imported(*values: Any) -> bool:
    """Whether an environment's id and arguments in a file name no module that is not imported yet.

    ``module:id`` would import it, which a file may not; nor may it in a keyword argument: there
    are environments that make another by its id.
    """
    return {text.split(":")[0] for text in _texts(values) if ":" in text} <= sys.modules.keys()


def _texts(value: Any) -> Iterator[str]:
    """All text in a value, in lists and mappings too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for below in value.values() if isinstance(value, dict) else value:
            yield from _texts(below)
