"""``composerl plot``: learning curves as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from composerl._files import replace_file
from composerl.analysis.runs import find_runs

__all__ = ["check_output", "plot"]


def plot(
    runs: Positional[tuple[Path, ...]],
    *,
    out: Annotated[Path, arg(aliases=["-o"])] = Path("curves.png"),
    x: Literal["steps", "time"] = "steps",
    key: str = "eval/return",
    group_by: str = "recipe",
) -> None:
    """Learning curves: interquartile mean over the runs of a group, and its 95 % interval.

    The band is a bootstrap over runs; single runs are the thin lines.

    Args:
        runs: Run directories, or directories with runs in them.
        out: Picture to write; png, svg or pdf.
        x: Horizontal axis: steps, or seconds of training.
        key: Metric to show, as metrics.jsonl calls it.
        group_by: What runs of a group have in common: recipe, run, or the name of a flag.
    """
    from composerl.analysis.curves import draw, group_runs, panels_of, require_matplotlib

    require_matplotlib()
    check_output(out, (".png", ".svg", ".pdf"))
    if not runs:
        raise ValueError("plot needs one run directory or more")
    groups = group_runs(find_runs(runs), group_by)
    replace_file(out, draw(panels_of(groups, key, x), key=key, x=x).savefig)
    print(out)


def check_output(path: Path, endings: tuple[str, ...]) -> None:
    """Refuse a name that cannot be written, before any work."""
    if path.suffix.lower() not in endings:
        raise ValueError(f"--out {path} must end in {' or '.join(endings)}")
    if path.is_dir():
        raise IsADirectoryError(f"--out {path} is a directory, expected a file to write")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"--out {path}: there is no directory {path.parent}")
