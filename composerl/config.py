"""Configuration and command line of a recipe. Imports neither torch nor wandb, on purpose."""

from __future__ import annotations

import difflib
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from composerl.errors import guard

__all__ = ["RunConfig", "cli", "config_from_yaml", "config_to_dict", "option", "parse",
           "suggest"]  # fmt: skip

C = TypeVar("C", bound="RunConfig")

#: What says where and how to run, and is not part of the written config.
PLACE = ("config", "out", "resume")
#: What may change when a run is resumed: it does not alter the training itself.
BOOKKEEPING = (
    *PLACE, "steps", "online_steps", "device", "threads", "log_every", "eval_every",
    "eval_episodes", "save_every", "stop_at", "patience", "wandb", "wandb_project",
    "wandb_artifacts", "tensorboard", "video",
)  # fmt: skip
#: What a field of this name must be, in whichever recipe has it. What is not here is checked by
#: the loss, network or buffer that it is for.
AT_LEAST_ONE = (
    "steps", "threads", "log_every", "eval_every", "eval_episodes", "save_every", "patience",
    "batch_size", "buffer_size", "dataset_size", "epochs", "epsilon_steps", "fit_every",
    "judge_updates", "num_envs", "rollout", "rollouts", "subsample", "updates",
)  # fmt: skip
AT_LEAST_ZERO = (
    "warmup", "online_steps", "bc_steps", "lr", "actor_lr", "model_lr", "fraction_lr", "judge_lr",
)  # fmt: skip
SHARES = ("epsilon", "average", "offline_fraction", "real_share")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What every recipe can be told; a recipe's own ``Config`` adds its hyperparameters."""

    env: str
    """Gymnasium id of the environment."""
    seed: int = 0
    """Seed of everything random: weights, batches, environments."""
    steps: int
    """Length of the run: gradient steps offline, environment steps online."""
    out: Path | None = None
    """Run directory. Default: runs/<recipe>/<time>-seed<seed>."""
    resume: bool = False
    """Go on with the run in --out, with the configuration found there."""
    config: Path | None = None
    """YAML file with values for these flags (a run's config.yaml is one); flags override it."""
    device: str = "cpu"
    """Torch device to train on."""
    threads: int = 1
    """Torch threads; small networks are fastest with one."""
    compile: bool = False
    """Compile the update: faster steps after about half a minute of compilation."""
    log_every: int = 100
    """Steps between rows of training metrics."""
    eval_every: int = 1000
    """Steps between evaluations."""
    eval_episodes: int = 20
    """Episodes of an evaluation."""
    save_every: int = 1000
    """Steps between checkpoints."""
    stop_at: float | None = None
    """Stop early when an evaluation's mean return reaches this."""
    patience: int | None = None
    """Stop early after so many evaluations without a new best."""
    wandb: Literal["auto", "online", "offline", "disabled"] = "auto"
    """Weights & Biases; auto is online when a key is configured, offline otherwise."""
    wandb_project: str = "composerl"
    """Project in Weights & Biases."""
    wandb_artifacts: bool = False
    """Also store checkpoints and the final policy as artifacts in Weights & Biases."""
    tensorboard: bool = False
    """Also write TensorBoard files into the run directory."""
    video: bool = False
    """Draw an episode of the final policy, as images/episode-*.gif and in Weights & Biases."""

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for field in fields(self):
            value = _coerce(field.name, getattr(self, field.name), hints[field.name])
            object.__setattr__(self, field.name, value)
        for names, low, high, words in (
            (AT_LEAST_ONE, 1, math.inf, "at least 1"),
            (AT_LEAST_ZERO, 0, math.inf, "at least 0"),
            (SHARES, 0, 1, "in [0, 1]"),
        ):
            for name in names:
                value = getattr(self, name, None)
                # NaN fails the comparison, infinity is no number of anything
                if value is not None and not (low <= value <= high and math.isfinite(value)):
                    raise ValueError(f"{name} must be {words}, got {value}")
        if self.stop_at is not None and self.stop_at != self.stop_at:
            raise ValueError("stop_at must be a number, got nan")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be in [0, 2**32), got {self.seed}")


def parse(config_class: type[C], argv: Sequence[str] | None = None, prog: str | None = None) -> C:
    """The configuration from the command line, on top of ``--config`` or the run to resume.

    ``prog`` is what ``--help`` calls the program.
    """
    import tyro

    argv = _known_flags(config_class, sys.argv[1:] if argv is None else argv)
    source = option(argv, "--config")
    out = option(argv, "--out")
    if source is None and "--resume" in argv and out and (Path(out) / "config.yaml").is_file():
        source = str(Path(out) / "config.yaml")
    default = None if source is None else config_from_yaml(config_class, source)
    return tyro.cli(
        config_class,
        args=argv,
        prog=prog,
        default=default,
        description=sys.modules[config_class.__module__].__doc__,
        config=(tyro.conf.AvoidSubcommands, tyro.conf.OmitArgPrefixes),
    )


def cli(config_class: type[C], main: Callable[[C], Any], argv: Sequence[str] | None = None) -> None:
    """Parse the command line and call ``main``; a user's mistake ends in one sentence.

    Set ``COMPOSERL_TRACEBACK=1`` to see where it came from.
    """
    guard(lambda: main(parse(config_class, argv)))


def config_to_dict(config: RunConfig) -> dict[str, Any]:
    """Plain values, without those that only say where to run; what config.yaml holds."""
    values = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in PLACE}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def config_from_yaml(config_class: type[C], path: str | Path) -> C:
    """A configuration from a YAML file; unknown keys and values of a wrong kind are refused."""
    import yaml

    path = Path(path)
    if not path.is_file():
        what = "it is a directory" if path.is_dir() else "there is no such file"
        raise FileNotFoundError(f"--config {path}: {what}")
    try:
        values = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, Mapping):
        raise ValueError(f"{path} must hold 'key: value' lines, got {type(values).__name__}")
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


def _known_flags(config_class: type[RunConfig], argv: Sequence[str]) -> list[str]:
    """The command line in tyro's form; an unknown flag is a ValueError.

    A sweep agent writes ``--flag=true`` for ``--flag``, ``--widths=[64, 64]`` for
    ``--widths 64 64``.
    """
    known = {field.name for field in fields(config_class)}
    hints = typing.get_type_hints(config_class)
    words = []
    for word in argv:
        flag, equals, value = word.partition("=")
        name = flag[2:].replace("-", "_")
        if not flag.startswith("--") or flag == "--help" or flag.startswith("--tyro-"):
            words.append(word)
        elif equals and hints.get(name) is bool and value.lower() in ("true", "false", "1", "0"):
            words.append(flag if value.lower() in ("true", "1") else f"--no-{flag[2:]}")
        elif equals and name in known and re.fullmatch(r"\[.*\]|\(.*\)", value):
            words += [flag, *value[1:-1].replace(",", " ").split()]
        elif name in known or hints.get(name.removeprefix("no_")) is bool:
            words.append(word)
        else:
            raise ValueError(
                f"unknown flag {flag}: {suggest(name, known, flags=True)} (--help lists all)"
            )
    return words


def option(argv: Sequence[str], flag: str) -> str | None:
    """The value of a flag in a command line, written ``--flag value`` or ``--flag=value``."""
    for i, word in enumerate(argv):
        if word == flag and i + 1 < len(argv):
            return argv[i + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def _coerce(name: str, value: Any, kind: Any) -> Any:
    """``value`` as ``kind`` where that loses nothing: YAML reads 1e-4 as text and has no tuples."""
    origin, choices = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in choices:
            return None
        return _coerce(name, value, next(c for c in choices if c is not type(None)))
    if origin is Literal:
        if value in choices:
            return value
        raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")
    if origin is tuple and isinstance(value, (list, tuple)):
        if Ellipsis not in choices and len(value) != len(choices):
            raise ValueError(f"{name} must be {len(choices)} numbers, got {list(value)}")
        return tuple(_coerce(name, item, choices[0]) for item in value)
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
