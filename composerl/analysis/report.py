"""Everything about some runs on one page that needs nothing else."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from composerl._files import inside, open_plain
from composerl.analysis.curves import legend_of, panels_of
from composerl.analysis.groups import Group, group_runs
from composerl.analysis.interactive import MOST, axes_of, charts_of, styles_of
from composerl.analysis.runs import PastRun
from composerl.analysis.stats import iqm, run_interval
from composerl.errors import printable, shortened

__all__ = ["page_of"]

MAX_DETAILS = 12
PICTURE_SIZE = 1 << 28  # bytes
PICTURES = {".png": "image/png", ".gif": "image/gif", ".jpg": "image/jpeg", ".mp4": "video/mp4"}


def page_of(runs: Sequence[PastRun], key: str = "eval/return", group_by: str = "settings") -> str:
    """A self-contained HTML page: curves, final scores, what differs between runs, pictures."""
    groups = group_runs(runs, group_by)
    trained = list(dict.fromkeys(k for run in runs for k in _trained(run)))
    charts = charts_of(groups, key)
    details = [chart for name in trained[:MAX_DETAILS] for chart in _details(groups, name)]
    curves = [curve for panel in panels_of(groups, key).values() for curve in panel]
    # Names of runs, environments and flags may hold anything: all of it is escaped.
    files = FileSystemLoader(Path(__file__).parent)
    templates = Environment(
        loader=files, autoescape=True, undefined=StrictUndefined, finalize=_shown
    )
    return templates.get_template("report.html.j2").render(
        title=", ".join(dict.fromkeys(run.recipe for run in runs)),
        runs=len(runs),
        envs=list(dict.fromkeys(str(run.env) for run in runs)),
        axes=axes_of(groups),
        styles=styles_of(groups),
        charts=charts,
        details=details,
        legend=legend_of(curves),
        most=MOST,
        notes=[note for group in groups for note in group.notes],
        left_out=trained[MAX_DETAILS:],
        scores=[_scores(group.title(groups), group.runs) for group in groups],
        ends=[_end(run) for run in runs],
        config=_settings(runs, lambda run: run.config),
        versions=_settings(runs, _versions),
        pictures=[image for run in runs for image in _pictures(run)],
    )


def _shown(value: Any) -> Any:
    """What a page shows of a value: in order, and no more than a person would read."""
    text = str(value) if isinstance(value, Path) else value
    plain = isinstance(text, str) and not isinstance(text, Markup)
    return text if not plain or text.startswith("data:") else printable(shortened(text))


def _details(groups: Sequence[Group], key: str) -> list[dict[str, Any]]:
    have = [replace(g, runs=[run for run in g.runs if key in _trained(run)]) for g in groups]
    return charts_of([group for group in have if group.runs], key)


def _trained(run: PastRun) -> list[str]:
    return [key for key in run.columns if key.startswith("train/") and key != "train/updates"]


def _scores(name: str, runs: Sequence[PastRun]) -> tuple[str, ...]:
    finals = [run.final()["return"] for run in runs if run.summary is not None]
    finished = f"{len(finals)} of {len(runs)}"
    if not finals:
        return name, finished, "", "", ""
    ends = run_interval(finals)
    interval = f"{ends[0]:.1f} to {ends[1]:.1f}" if ends else "none: one run"
    return name, finished, f"{iqm(finals):.1f}", interval, f"{np.mean(finals):.1f}"


def _end(run: PastRun) -> tuple[Any, ...]:
    if run.summary is None:
        return run.directory, run.seed, "", "", f"{run.last_step} {run.unit}", "", "not finished"
    final, best = run.final(), run.summary.get("best") or {}
    spread, highest = final.get("std") or 0.0, best.get("return")  # a file may have null for any
    return (
        run.directory, run.seed, f"{final['return']:.1f} ± {spread:.1f}",
        "" if highest is None else f"{highest:.1f} at {best.get('step', '?')}",
        f"{run.summary.get('steps', '')} {run.unit}",
        *(run.summary.get(key, "") for key in ("time/cpu_seconds", "stopped")),
    )  # fmt: skip


def _settings(
    runs: Sequence[PastRun], settings_of: Callable[[PastRun], dict[str, Any]]
) -> dict[str, Any]:
    """What differs between runs, a row for each, and what does not."""
    settings = [settings_of(run) for run in runs]
    keys = dict.fromkeys(key for values in settings for key in values)
    texts = {k: [_text(values[k]) if k in values else "—" for values in settings] for k in keys}
    differ = [key for key in keys if len(set(texts[key])) > 1]
    return {
        "differ": differ,
        "rows": [(r.directory, *(texts[k][i] for k in differ)) for i, r in enumerate(runs)],
        "same": [(key, texts[key][0]) for key in keys if key not in differ],
    }


def _versions(run: PastRun) -> dict[str, Any]:
    data = run.metadata
    versions = data.get("versions")
    top = {key: data[key] for key in ("python", "platform", "git_commit") if key in data}
    return {"env": run.env, **top, **(versions if isinstance(versions, dict) else {})}


def _pictures(run: PastRun) -> list[dict[str, str]]:
    files = sorted(inside(run.directory, "images").glob("*"))
    shown = []
    for file in files:
        if file.suffix.lower() in PICTURES:
            with open_plain(file) as opened:
                content = opened.read(PICTURE_SIZE + 1)
            if len(content) > PICTURE_SIZE:
                raise ValueError(f"{file} has more than {PICTURE_SIZE} bytes, too many for a page")
            kind = PICTURES[file.suffix.lower()]
            data = f"data:{kind};base64,{base64.b64encode(content).decode()}"
            shown.append({"kind": kind, "data": data, "caption": f"{run.directory}: {file.stem}"})
    return shown


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
