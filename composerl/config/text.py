"""A configuration as text: config.yaml, and what a name in it may have been meant to be."""

from __future__ import annotations

import difflib
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from composerl._files import read_yaml
from composerl.config.settings import RunConfig

__all__ = ["config_from_yaml", "config_to_dict", "suggest"]

C = TypeVar("C", bound=RunConfig)

#: What says where and how to run, and is not part of the written config.
PLACE = ("config", "out", "resume")


def config_to_dict(config: RunConfig) -> dict[str, Any]:
    """Plain values, without those that only say where to run; what config.yaml holds."""
    values = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in PLACE}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def config_from_yaml(config_class: type[C], path: str | Path) -> C:
    """A configuration from a YAML file; unknown keys and values of a wrong kind are refused."""
    path = Path(path)
    if not path.is_file():
        what = "it is a directory" if path.is_dir() else "there is no such file"
        raise FileNotFoundError(f"--config {path}: {what}")
    values = read_yaml(path)
    known = {f.name for f in fields(config_class)} - set(PLACE)
    for key in values:
        if key not in known:
            raise ValueError(f"{path}: unknown key {key!r}: {suggest(str(key), known)}")
    try:
        return config_class(**values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


#: What other libraries call the same thing.
_SYNONYMS = {
    "learning_rate": "lr", "discount": "gamma", "total_timesteps": "steps", "num_steps": "steps",
    "iterations": "steps", "environment": "env", "env_id": "env", "hidden_sizes": "hidden",
    "polyak": "tau", "random_seed": "seed", "output": "out", "data": "dataset",
}  # fmt: skip


def suggest(name: str, known: set[str], *, flags: bool = False) -> str:
    """What an unknown name may have been meant to be, as the end of a sentence."""

    def show(name: str) -> str:
        return f"--{name.replace('_', '-')}" if flags else name

    names = {name: name for name in known}
    names |= {other: name for other, name in _SYNONYMS.items() if name in known}
    near = difflib.get_close_matches(name.replace("-", "_"), names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {show(names[near[0]])}?"
    return f"known are {', '.join(show(name) for name in sorted(known))}"
