"""The command line of a recipe: flags, from the fields of its configuration."""

import inspect
import json
import os
import re
import shlex
import sys
import typing
from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, field, fields, make_dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, TypeVar

from composerl._files import inside, read_json
from composerl._schema import imported
from composerl.config.fields import declarations, docs, sections, suggest
from composerl.config.place import check_place, require_recipe
from composerl.config.rules import as_whole
from composerl.config.settings import RunConfig, config_from_yaml, is_preset
from composerl.errors import guard, plain_errors

__all__ = ["cli", "config_start", "look_here", "option", "parse", "start_with", "wait_passively"]

C = TypeVar("C", bound=RunConfig)


def parse(
    config_class: type[C],
    argv: Sequence[str] | None = None,
    prog: str | None = None,
    more: str = "",
) -> C:
    """The configuration from the command line, on top of ``--config`` or the run to resume.

    ``more`` is what ``--help`` says above the flags, besides the recipe's own words.
    """
    import tyro

    argv = _known_flags(config_class, sys.argv[1:] if argv is None else argv)
    given = {word.partition("=")[0][2:].replace("-", "_") for word in argv if word[:2] == "--"}
    implied = config_class.implied(given)
    source, out = option(argv, "--config"), option(argv, "--out")
    start = config_start(config_class, source, out, "--resume" in argv, given)
    about = sys.modules[config_class.__module__].__doc__
    with plain_errors():
        groups: Any = tyro.cli(
            _groups(config_class, start),
            args=argv,
            prog=prog,
            description="\n\n".join(filter(None, [about, more])),
            config=(tyro.conf.AvoidSubcommands, tyro.conf.OmitArgPrefixes),
        )
    values = {name: value for group in vars(groups).values() for name, value in vars(group).items()}
    try:
        config = config_class(**values | implied)
    except ValueError as error:
        raise ValueError(_by_flag(str(error), config_class)) from error
    wait_passively(config.threads)
    return config


def _by_flag(sentence: str, config_class: type[RunConfig]) -> str:
    """A sentence that begins with a field, as it was typed: by its flag."""
    start, name, rest = re.match(r"(each of )?(\w*)(.*)", sentence, re.DOTALL).groups("")  # type: ignore[union-attr]
    known = {field.name for field in fields(config_class)}
    return f"{start}--{name.replace('_', '-')}{rest}" if name in known else sentence


def wait_passively(threads: int) -> None:
    """Let several threads of torch sleep while they wait; OpenMP reads this when torch is imported.

    By default they spin, and where other work has the second core the first one waits for a
    spinning thread: 6 to 40 times the CPU time of one thread for layers of 256 and of 64.
    """
    if threads > 1:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def config_start(
    config_class: type[C], source: Any, out: Any, resume: bool | None, given: Collection[str]
) -> C | None:
    """What flags come on top of: a file, or the configuration of the run to resume.

    Either may be somebody's: a module that its environment names is imported only if the flag is
    among those ``given``, or the recipe itself or a preset of it names the module.
    """
    if source is not None:
        path, start = Path(source), config_from_yaml(config_class, source)
    elif resume and out and (Path(out) / "config.yaml").is_file():
        path = inside(Path(out), "config.yaml")
        try:
            start = config_from_yaml(config_class, path)
        except ValueError:
            _check_recipe(config_class, Path(out))  # a better reason than its settings are
            raise
    else:
        return None
    defaults = {f.name: f.default for f in fields(config_class)}
    for name, value, used in (
        ("env", start.env, [start.env] if start.env != defaults["env"] else []),
        ("env-kwargs", json.dumps(start.env_kwargs), start.env_kwargs.values()),
    ):
        said = name.replace("-", "_") in given or imported(*used)
        if not said and not (source is not None and is_preset(config_class, source)):
            way = f"--{name} {shlex.quote(value)}"
            raise ValueError(f"{path} names a module to import: to import it, add {way}")
    return start


def _check_recipe(config_class: type[RunConfig], directory: Path) -> None:
    """Refuse a run of another recipe, if the directory says that it is one."""
    name = Path(inspect.getfile(config_class)).stem
    try:
        was = read_json(directory / "metadata.json").get("recipe", name)
    except (FileNotFoundError, ValueError):  # nothing depends on that file
        return
    require_recipe(str(was), name, directory)


def cli(config_class: type[C], main: Callable[[C], Any], argv: Sequence[str] | None = None) -> None:
    """Parse the command line and call ``main``; a user's mistake ends in one sentence."""
    guard(lambda: start_with(config_class, main, argv))


def start_with(
    config_class: type[C],
    main: Callable[[C], Any],
    argv: Sequence[str] | None = None,
    prog: str | None = None,
    more: str = "",
) -> None:
    """Parse the command line and call ``main``, which imports torch; what can be told first, is."""
    look_here()
    config = parse(config_class, argv, prog, more)
    if config.out is not None:
        check_place(config.out, config.resume)
    if "torch" not in sys.modules and sys.stderr.isatty():  # for seconds nothing else is seen
        sys.stderr.write("loading torch and TorchRL ...\n")
    main(config)


def look_here() -> None:
    """Let ``--env module:Id`` find modules in the current directory, as ``python -m`` does."""
    if "" not in sys.path:
        sys.path.append("")


def option(argv: Sequence[str], flag: str) -> str | None:
    """The value of a flag in a command line, written ``--flag value`` or ``--flag=value``."""
    for i, word in enumerate(argv):
        if word == flag and i + 1 < len(argv):
            return argv[i + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def _groups(config_class: type[RunConfig], default: RunConfig | None) -> Any:
    """A dataclass of dataclasses, one for each section: tyro's help shows each as a group."""
    import tyro

    texts, declared = docs(config_class), declarations(config_class)
    if default is not None:
        starts = vars(default)
    else:
        starts = {
            f.name: f.default if f.default_factory is MISSING else f.default_factory()
            for f in fields(config_class)
        }

    def flag(name: str) -> tuple[str, Any, Any]:
        (kind, plain), start, metavar = declared[name][0], starts[name], None
        if dict in (plain, typing.get_origin(plain)):
            plain, start, metavar = str, json.dumps(start), "JSON"
        # As one line: where the source breaks it is no place to break a terminal's.
        text = " ".join(texts[name].split()) if name in texts else None
        about = tyro.conf.arg(help=text, metavar=metavar)
        # What is said of the field itself may be for tyro; rules further inside are noise to it.
        for mark in (*getattr(kind, "__metadata__", ()), about):
            plain = Annotated[plain, mark]
        return name, plain, field() if start is MISSING else field(default_factory=lambda: start)

    groups = [
        (section, make_dataclass(section, map(flag, names), kw_only=True))
        for section, names in sections(config_class).items()
    ]
    return make_dataclass(config_class.__name__, groups)


def _known_flags(config_class: type[RunConfig], argv: Sequence[str]) -> list[str]:
    """The command line in tyro's form; an unknown flag is a ValueError.

    Whole numbers may be written as 1e5. A sweep agent writes ``--flag=true`` for ``--flag``,
    ``--widths=[64, 64]`` for ``--widths 64 64``. Of a field that is on or off ``--flag`` and
    ``--no-flag`` do, too.
    """
    known = {field.name for field in fields(config_class)}
    hints = typing.get_type_hints(config_class)
    switches = {name for name, kind in hints.items() if {"on", "off"} <= {*typing.get_args(kind)}}
    wholes = {n for n, kind in hints.items() if "int" in str(kind) and "float" not in str(kind)}
    lists = {name for name, kind in hints.items() if typing.get_origin(kind) is tuple}
    words, name = [], ""
    for word, following in zip_longest(argv, argv[1:], fillvalue="--"):
        flag, equals, value = word.partition("=")
        if not flag.startswith("--"):  # a value of the flag before it
            number = as_whole(word) if name in wholes else None
            words.append(word if number is None else str(number))
            continue
        name = flag[2:].replace("-", "_")
        if flag == "--help" or flag.startswith("--tyro-"):
            words.append(word)
        elif equals and hints.get(name) is bool and value.lower() in ("true", "false", "1", "0"):
            words.append(flag if value.lower() in ("true", "1") else f"--no-{flag[2:]}")
        elif name in switches and value.lower() in ("true", "false", "1", "0"):
            words.append(f"{flag}={'on' if value.lower() in ('true', '1') else 'off'}")
        elif name in switches and not equals and following.startswith("--"):
            words += [flag, "on"]
        elif name.removeprefix("no_") in switches - {name} and not equals:
            words += [f"--{flag[5:]}", "off"]
        elif equals and name in known and re.fullmatch(r"\[.*\]|\(.*\)", value):
            words += [flag, *value[1:-1].replace(",", " ").split()]
        elif equals and name in wholes and (number := as_whole(value)) is not None:
            words.append(f"{flag}={number}")
        elif name in lists and not equals and following.startswith("--"):
            raise ValueError(f"{flag} needs one value or more, separated by spaces")
        elif name in known or hints.get(name.removeprefix("no_")) is bool:
            words.append(word)
        else:
            raise ValueError(
                f"unknown flag {flag}: {suggest(name, known, flags=True)} (--help lists all)"
            )
    return words
