"""Whether a directory can take a run, or has one: asked first of all, before torch is imported."""

import os
from pathlib import Path

from composerl._files import below

__all__ = ["MARKS", "check_place", "check_run", "require_recipe", "runs_at"]

SHOWN = 8

#: Files of a run's owner, which a kill right at the start leaves behind: no reason to refuse.
MARKS = (".lock", ".owner")


def check_place(directory: Path, resume: bool) -> None:
    """Refuse a directory that cannot hold a new run, or has none to resume."""
    if os.path.lexists(directory) and not directory.exists():
        raise ValueError(f"--out {directory} is a link that leads nowhere")
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"--out {directory} is a file, expected a directory")
    config_file = directory / "config.yaml"
    if resume:
        if not config_file.is_file():
            raise ValueError(f"--resume: {directory} holds no run (it has no config.yaml)")
        return
    if config_file.exists():
        raise ValueError(
            f"--out {directory} holds a run already: add --resume to go on with it, "
            "or choose another directory"
        )
    if any(path.name not in MARKS and path.suffix != ".tmp" for path in directory.glob("*")):
        raise ValueError(f"--out {directory} is not empty: choose another directory")


def require_recipe(was: str, name: str, directory: Path) -> None:
    """Refuse to go on with a run by another recipe."""
    if was != name:
        raise ValueError(
            f"--resume: {directory} holds a run of {was}, which {name} cannot go on with"
        )


def check_run(run: Path) -> Path:
    """The run at a place, or the only one in a directory; refuses what is none, or several."""
    places = runs_at(run)
    if len(places) > 1:
        some = ", ".join(map(str, places[:SHOWN])) + (", ..." if len(places) > SHOWN else "")
        raise ValueError(f"{run} holds {len(places)} runs, name one of them: {some}")
    return places[0]


def runs_at(run: Path) -> list[Path]:
    """The run or file at a place, or all runs in a directory; refuses what is none."""
    if not run.exists():
        raise FileNotFoundError(f"{run}: there is no such run")
    if not run.is_dir() or (run / "config.yaml").is_file() or any(run.glob("*.safetensors")):
        return [run]
    if not any(run.iterdir()):
        raise FileNotFoundError(f"{run} holds no run: the directory is empty")
    places = sorted(file.parent for file in below(run) if file.name == "config.yaml")
    # What W&B recorded of a run is also called config.yaml.
    places = [place for place in places if "wandb" not in place.relative_to(run).parts]
    return places or [run]
