"""``composerl.runs``: the runs of a directory as a table."""

import html
from pathlib import Path
from typing import Any

from composerl.analysis.runs import PastRun, find_runs

__all__ = ["RunTable", "runs"]


class RunTable(list[dict[str, Any]]):
    """One row per run; ``pandas.DataFrame`` takes it, and a notebook shows what differs.

    A row has ``run`` (the directory), ``recipe``, ``finished``, ``step`` (the last one), ``final``,
    ``final_std``, ``best`` and ``best_step`` (None where there is none yet), ``seconds`` (of CPU)
    and every setting under its own name.
    """

    def _repr_html_(self) -> str:
        names = [
            name for name in dict.fromkeys(k for row in self for k in row) if self._tells(name)
        ]
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_text(row.get(name)))}</td>" for name in names)
            + "</tr>"
            for row in self
        )  # fmt: skip
        return f"<table><tr>{head}</tr>{rows}</table>"

    def _tells(self, name: str) -> bool:
        """Whether a column is a score, or a setting that differs."""
        return name in _SCORES or len({str(row.get(name)) for row in self}) > 1


_SCORES = ("run", "recipe", "final", "best")


def runs(*places: str | Path) -> RunTable:
    """The runs below these places, finished or not, as a table with a row for each.

    ::

        table = composerl.runs("runs/")
        pandas.DataFrame(table).sort_values("final")

    Args:
        places: run directories, or directories with runs in them; by default ``runs``.
    """
    return RunTable(_row(run) for run in find_runs(places or ["runs"]))


def _row(run: PastRun) -> dict[str, Any]:
    summary = run.summary or {}
    final, best = (summary.get(name) or {} for name in ("final", "best"))
    told = {
        "run": str(run.directory),
        "recipe": run.recipe,
        "finished": run.summary is not None,
        "step": run.last_step if (run.directory / "metrics.jsonl").is_file() else 0,
        "final": final.get("return"),
        "final_std": final.get("std"),
        "best": best.get("return"),
        "best_step": best.get("step"),
        "seconds": summary.get("time/cpu_seconds"),
    }
    return told | {key: value for key, value in run.config.items() if key not in told}


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
