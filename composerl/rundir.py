"""The run directory: who may use it, and the files that describe the run."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from composerl.config import BOOKKEEPING, RunConfig, config_to_dict

__all__ = ["check", "create", "keep_run_id", "run_id", "script", "write_json"]

PACKAGES = ("composerl", "torch", "torchrl", "tensordict", "gymnasium", "numpy", "wandb")


def check(directory: Path, name: str, config: RunConfig) -> None:
    """Refuse a directory that another run owns, or a resume that is not one. Writes nothing."""
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"--out {directory} is a file, expected a directory")
    config_file = directory / "config.yaml"
    if not config.resume:
        if directory.is_dir() and any(directory.iterdir()):
            what = "holds a run already" if config_file.exists() else "is not empty"
            advice = (
                "add --resume to go on with it, or choose" if config_file.exists() else "choose"
            )
            raise ValueError(f"--out {directory} {what}: {advice} another directory")
        return
    if config.out is None:
        runs = sorted((Path("runs") / name).glob("*/config.yaml"), key=os.path.getmtime)
        hint = f", for example --out {runs[-1].parent}" if runs else ""
        raise ValueError(f"--resume needs --out, the directory of the run to go on with{hint}")
    if not config_file.is_file():
        raise ValueError(f"--resume: {directory} holds no run (it has no config.yaml)")
    saved = _read_yaml(config_file)
    for key, value in config_to_dict(config).items():
        if key not in BOOKKEEPING and saved.get(key, value) != value:
            raise ValueError(
                f"--resume: {key} was {saved[key]!r} in {config_file} and is {value!r} now; "
                "only steps and bookkeeping may change"
            )


def create(directory: Path, name: str, config: RunConfig) -> None:
    """Make the directory and write config.yaml and metadata.json."""
    (directory / "checkpoints").mkdir(parents=True, exist_ok=True)
    for leftover in directory.glob("**/.*.tmp"):
        leftover.unlink()
    text = yaml.safe_dump(config_to_dict(config), sort_keys=False)
    _replace(directory / "config.yaml", text)
    if not config.resume or not (directory / "metadata.json").exists():
        write_json(directory / "metadata.json", _metadata(name))


def keep_run_id(directory: Path, identifier: str) -> None:
    """Remember the tracker's run id, for a resume before the first checkpoint."""
    metadata = json.loads((directory / "metadata.json").read_text())
    if metadata.get("run_id") != identifier:
        write_json(directory / "metadata.json", metadata | {"run_id": identifier})


def run_id(directory: Path) -> str | None:
    """The tracker's run id of an earlier start in this directory."""
    return json.loads((directory / "metadata.json").read_text()).get("run_id")


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write JSON so that the file is whole at any time."""
    _replace(path, json.dumps(values, indent=2) + "\n")


def script() -> str:
    """The program that is running, for messages."""
    return sys.argv[0] or "your_recipe.py"


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    return values if isinstance(values, dict) else {}


def _metadata(name: str) -> dict[str, Any]:
    return {
        "recipe": name,
        "command": [script(), *sys.argv[1:]],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {package: _version(package) for package in PACKAGES},
        "git_commit": _git_commit(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
