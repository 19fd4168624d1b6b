"""Fields of a configuration: how they were declared, their sections, help and names."""

import ast
import difflib
import inspect
import textwrap
import typing
from itertools import pairwise
from typing import Any, ClassVar

__all__ = ["MAY_CHANGE", "Section", "declarations", "docs", "may_change", "sections", "suggest"]

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
    order = [s for s in dict.fromkeys((*_SECTIONS, *found.values())) if s in found.values()]
    return {section: [n for n, where in found.items() if where == section] for section in order}


def declarations(config_class: type) -> dict[str, list[tuple[Any, Any]]]:
    """The types each field was declared as, the last first: with rules and marks, and without."""
    found: dict[str, list[tuple[Any, Any]]] = {}
    for base in config_class.__mro__:
        kinds, plain = typing.get_type_hints(base, include_extras=True), typing.get_type_hints(base)
        for name in inspect.get_annotations(base):
            found.setdefault(name, []).append((kinds[name], plain[name]))
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
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError):  # typed into an interpreter: there is no source to read
            continue
        for pair in pairwise(getattr(body, "body", ())):
            match pair:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(words))),
                ):
                    found[name] = inspect.cleandoc(words)
    return found


#: What other libraries call the same thing.
_SYNONYMS = {
    "learning_rate": "lr", "discount": "gamma", "total_timesteps": "steps", "num_steps": "steps",
    "iterations": "steps", "environment": "env", "env_id": "env", "hidden_sizes": "hidden",
    "polyak": "tau", "random_seed": "seed", "output": "out", "data": "dataset",
    "train": "run", "eval": "evaluate",
}  # fmt: skip


def suggest(name: str, known: set[str], *, flags: bool = False) -> str:
    """What an unknown name may have been meant to be, as the end of a sentence."""

    def show(name: str) -> str:
        return f"--{name.replace('_', '-')}" if flags else name

    names = {name: name for name in known}
    names |= {other: name for other, name in _SYNONYMS.items() if name in known}
    plain = name.replace("-", "_")
    near = difflib.get_close_matches(plain, names, n=1, cutoff=0.6)
    if not near and plain:  # an algorithm for the only recipe that it has
        begun = [other for other in known if other.startswith(f"{plain}_")]
        near = begun if len(begun) == 1 else []
    if near:
        return f"did you mean {show(names[near[0]])}?"
    return f"known are {', '.join(show(name) for name in sorted(known))}"
