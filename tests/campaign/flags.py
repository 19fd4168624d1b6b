"""Flags with values that are out of their bounds, of another type, or at the very edge."""

from __future__ import annotations

import dataclasses
import random
import types
import typing
from pathlib import Path
from typing import Any, Literal

from composerl.config.fields import declarations
from tests.recipes.harness import RECIPES, load_recipe

from .child import command
from .material import CHEAP, OTHERS, Material
from .nasty import WORDS
from .tries import Try

#: What a value of the type may be tried with: what rules refuse is to be refused, what they take is
#: to train or to be told of. No larger ones: who asks for a year of training gets it.
_VALUES: dict[type, tuple[str, ...]] = {
    int: ("-1", "0", "1", "2", "x", "", "nan", "1.5", "1e400", str(10**30), str(-(2**63) - 1),
          "0x9", "True", "None"),
    float: ("-1", "0", "1", "1e-320", "nan", "inf", "-inf", "x", "", "1e400", "-1e308", "None"),
    bool: ("maybe", "", "2"),
    str: tuple(word for word in WORDS if "\x00" not in word),
    Path: ("", "nowhere/x", "/dev/null", "/proc/x", "a\nb", "elsewhere", "a" * 300),
    dict: ("", "[]", "{", '{"g": NaN}', '{"x": 1}', "[" * 3000, '{"g": 1e999}', "null"),
    tuple: ("", "-1", "0", "x", "nan", "1 -1", "99999999", "1 2 3", " ".join(["8"] * 99)),
}  # fmt: skip
#: Flags that say what to do, and not how.
_SKIPPED = ("out", "resume", "config", "workers", "collect", "compile", "steps", "wandb")


def flags(material: Material, rng: random.Random, place: Path, alone: bool) -> Try:
    """One or two flags of a recipe, set to values of chance."""
    recipe = rng.choice(CHEAP if rng.random() < 0.5 else OTHERS)
    module = load_recipe(next(path for path in RECIPES if path.stem == recipe))
    kinds = {name: declared[0][0] for name, declared in declarations(module.Config).items()}
    names = [f.name for f in dataclasses.fields(module.Config) if f.name not in _SKIPPED]
    words: list[str] = []
    for name in rng.sample(names, rng.choice((1, 1, 1, 2))):
        words += _flag(name, kinds[name], rng)
    line = ["run", recipe, "--config", str(material.config(recipe)), "--steps", "4", "--out", "run"]
    ended = command([*line, *words], place, place / "run", alone=alone)
    return Try(f"{recipe} {words}", ended.how, ended.why)


def _flag(name: str, kind: Any, rng: random.Random) -> list[str]:
    flag, plain = f"--{name.replace('_', '-')}", _plain(kind)
    if plain is bool:
        return [f"{flag}={rng.choice(_VALUES[bool])}"]
    if plain is str and typing.get_origin(kind) is Literal:
        return [flag, rng.choice(("x", "", "nan"))]
    value = rng.choice(_VALUES[plain])
    return [flag, *value.split()] if plain is tuple else [f"{flag}={value}"]


def _plain(kind: Any) -> type:
    """The type of a field, without rules and alternatives."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _plain(inner[0])
    if origin in (typing.Union, types.UnionType):
        return _plain(next(one for one in inner if one is not type(None)))
    if origin is Literal:
        return str
    return origin or kind
