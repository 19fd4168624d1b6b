"""Whether a directory can take a run: asked first of all, before torch is imported."""

from pathlib import Path

__all__ = ["MARKS", "check_place"]

#: Files of a run's owner, which a kill right at the start leaves behind: no reason to refuse.
MARKS = (".lock", ".owner")


def check_place(directory: Path, resume: bool) -> None:
    """Refuse a directory that cannot hold a new run, or has none to resume."""
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
