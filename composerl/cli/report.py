"""``composerl report``: everything about some runs on one page that needs nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from composerl._files import write_text
from composerl.analysis.runs import find_runs
from composerl.cli.plot import check_output

__all__ = ["report"]


def report(
    runs: Positional[tuple[Path, ...]],
    *,
    out: Annotated[Path, arg(aliases=["-o"])] = Path("report.html"),
    key: str = "eval/return",
    group_by: str = "recipe",
) -> None:
    """One self-contained page: curves, final scores, what differs in the configuration, versions.

    Pictures and videos that a run left in its directory images/ are shown too.

    Args:
        runs: Run directories, or directories with runs in them.
        out: Page to write.
        key: Metric of the curves, as metrics.jsonl calls it.
        group_by: What runs of a group have in common: recipe, run, or the name of a flag.
    """
    from composerl.analysis.curves import require_matplotlib
    from composerl.analysis.report import page_of

    require_matplotlib()
    check_output(out, (".html", ".htm"))
    if not runs:
        raise ValueError("report needs one run directory or more")
    write_text(out, page_of(find_runs(runs), key, group_by))
    print(out)
