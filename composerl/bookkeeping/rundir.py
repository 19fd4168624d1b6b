"""The run directory: who may use it, and the files that describe the run."""

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from composerl import __version__
from composerl._files import inside, read_json, read_yaml, write_json, write_text
from composerl._schema import typed
from composerl.config import RunConfig, check_place, config_to_dict, may_change, require_recipe
from composerl.config.place import MARKS

__all__ = ["METADATA", "changed", "check", "choose", "compare", "create", "image_path", "note",
           "public", "resume_command", "run_id", "settled", "slug", "usage",
           "versions"]  # fmt: skip

#: What a run writes into, besides single checkpoints and pictures; W&B makes links of its own.
PLACES = ("config.yaml", "metadata.json", "metrics.jsonl", "summary.json", "policy.safetensors",
          "manifest.json", "checkpoints/blocks", "checkpoints/best.safetensors", "images",
          "tensorboard", "wandb/artifacts")  # fmt: skip
#: What metadata.json says.
METADATA = {"recipe": str, "command": list, "python": str, "platform": str, "versions": dict,
            "git_commit": str, "run_id": str, "total": int, "changed_at": int}  # fmt: skip
#: Settings, besides those of W&B, that a run's numbers do not show.
_TRACELESS = ("save_every", "keep_checkpoints", "tensorboard", "video", "video_format")
PACKAGES = ("torch", "torchrl", "tensordict", "gymnasium", "numpy", "safetensors", "wandb", "tyro")


def choose(config: RunConfig, name: str) -> Path:
    """``--out``, or a directory of its own below runs/."""
    if config.out is not None:
        return Path(config.out)
    stamp = f"{datetime.now():%Y%m%d-%H%M%S}-seed{config.seed}"
    names = [stamp, *(f"{stamp}-{number}" for number in range(2, 1000))]
    return next(path for path in (Path("runs", name, n) for n in names) if not path.exists())


def slug(name: str) -> str:
    """The name, if no path can leave the run directory by it."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"the name of a run or image is letters, digits, '.', '-', got {name!r}")
    return name


def image_path(directory: Path, name: str, step: int, ending: str) -> Path:
    """Where a picture of a step belongs; its directory is made."""
    path = inside(directory, "images") / f"{slug(name)}-{step:08d}{ending}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def check(directory: Path, name: str, config: RunConfig) -> None:
    """Refuse a directory that another run owns, or a resume that is not one. Writes nothing."""
    if config.resume and config.out is None:
        runs = sorted((Path("runs") / name).glob("*/config.yaml"), key=os.path.getmtime)
        hint = f", for example --out {runs[-1].parent}" if runs else ""
        raise ValueError(f"--resume needs --out, the directory of the run to go on with{hint}")
    for place in (*PLACES, *MARKS):
        inside(directory, *Path(place).parts)
    check_place(directory, config.resume)
    if config.resume:
        config_file = directory / "config.yaml"
        require_recipe(_read_metadata(directory).get("recipe", name), name, directory)
        compare(read_yaml(config_file), config, str(config_file))


def settled(config: RunConfig) -> RunConfig:
    """The configuration with what the run to resume has decided in place of ``auto``."""
    file = None if config.out is None else Path(config.out) / "config.yaml"
    if config.compile == "auto" and config.resume and file and file.is_file():
        return replace(config, compile=read_yaml(file).get("compile", "auto"))
    return config


def compare(saved: Mapping[str, Any], config: RunConfig, where: str) -> None:
    """Refuse to resume with another configuration than the run was started with."""
    free = may_change(type(config))
    for key, value in config_to_dict(config).items():
        was = saved.get(key, value)
        if isinstance(was, bool) and isinstance(value, str):  # of a version with other fields
            was = "on" if was else "off"
        if key not in free and was != value:
            raise ValueError(
                f"--resume: --{key.replace('_', '-')} was {was!r} in {where} and is {value!r} now; "
                "only steps and bookkeeping may change"
            )


def changed(saved: Mapping[str, Any], config: RunConfig) -> str:
    """With what settings a run goes on that could leave a trace in its numbers, in words."""
    return ", ".join(
        f"--{key.replace('_', '-')} {value} (was {saved.get(key)})"
        for key, value in config_to_dict(config).items()
        if saved.get(key) != value and key not in _TRACELESS and not key.startswith("wandb")
    )


def create(directory: Path, name: str, config: RunConfig, check: Callable[[], None]) -> None:
    """Write config.yaml and metadata.json into the directory; ``check`` may refuse it."""
    # First of all: what makes the directory a run that can be resumed.
    text = yaml.safe_dump(config_to_dict(config), sort_keys=False)
    write_text(directory / "config.yaml", text, check)
    (directory / "checkpoints").mkdir(exist_ok=True)
    if not _read_metadata(directory):
        about = {
            "recipe": name,
            "step_unit": config.step_unit,
            "command": sys.argv,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "versions": versions(),
            "git_commit": _git_commit(),
        }
        write_json(directory / "metadata.json", about, check)


def public(directory: Path, config: RunConfig) -> dict[str, Any]:
    """What W&B is told of a run: its settings and, with its system, versions and git commit."""
    values = config_to_dict(config)
    if not config.wandb_system:
        return values
    known = _read_metadata(directory)
    kept = ("versions", "python", "platform", "git_commit")
    return values | {key: known[key] for key in kept if known.get(key)}


def note(directory: Path, check: Callable[[], None], **facts: Any) -> None:
    """Add to metadata.json what is known later; ``check`` may refuse it."""
    metadata = _read_metadata(directory)
    if metadata != metadata | facts:
        write_json(directory / "metadata.json", metadata | facts, check)


def run_id(directory: Path) -> str | None:
    """The tracker's run id of an earlier start in this directory."""
    return _read_metadata(directory).get("run_id")


def resume_command(directory: Path, config: RunConfig) -> str:
    """What to type to go on with a run, there where it was started: in a shell or in Python."""
    program, module = Path(sys.argv[0]), sys.modules.get(type(config).__module__)
    command = ["python", str(program)]
    if program.stem == "composerl" or program.parts[-2:] == ("composerl", "__main__.py"):
        command = ["composerl", *sys.argv[1:3]]  # composerl run NAME
    elif getattr(module, "__name__", "") != "__main__" or not hasattr(module, "__file__"):
        recipe = getattr(module, "__recipe__", None)
        call = f"composerl.train({recipe!r}, " if recipe else f"{type(config).__name__}(..., "
        again = f"env={config.env!r}, " if ":" in config.env else ""
        return f"{call}{again}out={str(directory)!r}, resume=True)"
    # What is imported is not taken from the directory, but said again.
    env = ["--env", config.env] if ":" in config.env else []
    return shlex.join([*command, *env, "--out", str(directory), "--resume"])


def usage(directory: Path, config: RunConfig, own: bool) -> str:
    """What to type to use a run's policy; a module of the user's ``own`` has to be made first."""
    recipe: Any = sys.modules.get(type(config).__module__)
    if own and hasattr(recipe, "actor") and hasattr(recipe, "__file__"):
        env = ["--env", config.env] if ":" in config.env else []
        command = ["composerl", "evaluate", str(directory), *env, "--recipe"]
        return shlex.join([*command, recipe.__file__])
    actor = ", actor=my_module" if own else ""
    return f'composerl.load("{directory}"{actor}).predict(observation)'


def _read_metadata(directory: Path) -> dict[str, Any]:
    """What metadata.json says; a damaged one is as good as none, since nothing depends on it."""
    try:
        path = directory / "metadata.json"
        return typed(read_json(path), METADATA, str(path))
    except (FileNotFoundError, ValueError):
        return {}


def versions() -> dict[str, str | None]:
    """What is installed of composerl and what it builds on; None for what is not."""
    found: dict[str, str | None] = {"composerl": __version__}  # in a clone nothing is installed
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def _git_commit() -> str | None:
    command = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
