"""``composerl report``: everything about some runs on one page that needs nothing else."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from composerl.analysis.runs import Record, find_runs
from composerl.cli.plot import check_output

__all__ = ["report"]

MAX_DETAILS = 12
PICTURES = {".png": "image/png", ".gif": "image/gif", ".jpg": "image/jpeg"}

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 66rem; margin: 2rem auto;
       padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; margin-bottom: 0; }}
h2 {{ font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd; }}
table {{ border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; }}
.wide {{ overflow-x: auto; }}
th, td {{ padding: .25rem .7rem; border-bottom: 1px solid #e4e4e4; text-align: right;
         vertical-align: top; }}
th:first-child, td:first-child {{ text-align: left; overflow-wrap: anywhere; }}
th {{ font-weight: 600; background: #f6f6f6; }}
img {{ max-width: 100%; }}
figure {{ display: inline-block; margin: .5rem 1rem .5rem 0; vertical-align: top; }}
figcaption, .note {{ color: #666; font-size: .85rem; }}
.small {{ width: 20rem; }}
</style></head><body>
{body}
</body></html>
"""


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
    from composerl.analysis.curves import group_runs, require_matplotlib

    require_matplotlib()
    check_output(out, (".html", ".htm"))
    if not runs:
        raise ValueError("report needs one run directory or more")
    records = find_runs(runs)
    groups = group_runs(records, group_by)
    names = ", ".join(groups)
    envs = ", ".join(dict.fromkeys(str(record.env) for record in records))
    body = [
        f"<h1>{escape(names)}</h1><p class=note>{escape(envs)}, {len(records)} runs</p>",
        *_curves(groups, key),
        "<h2>Final scores</h2>",
        _scores(groups),
        _runs(records),
        "<h2>Configuration</h2>",
        *_settings([record.config for record in records], records),
        "<h2>Environment and versions</h2>",
        *_settings([_versions(record) for record in records], records),
        *_pictures(records),
    ]
    out.write_text(_PAGE.format(title=escape(names), body="\n".join(body)))
    print(out)


def _curves(groups: dict[str, list[Record]], key: str) -> list[str]:
    from composerl.analysis.curves import draw, panels_of

    envs = {record.env for records in groups.values() for record in records}
    parts = ["<h2>Learning curves</h2>"]
    for x in ("steps", "time"):
        figure = draw(panels_of(groups, key, x), key=key, x=x, size=(6, 4))
        width = "30rem" if len(envs) == 1 else "100%"
        parts.append(_image(figure, f"{key} over {x}", width))
    parts.append(
        "<p class=note>Line: interquartile mean over runs; band: its 95 % bootstrap interval; "
        "thin lines: single runs.</p>"
    )
    common = list(dict.fromkeys(k for rs in groups.values() for r in rs for k in _trained(r)))
    if common:
        parts.append("<details><summary>Training metrics</summary>")
        for name in common[:MAX_DETAILS]:
            have = {g: [r for r in rs if name in _trained(r)] for g, rs in groups.items()}
            panels = panels_of({g: rs for g, rs in have.items() if rs}, name, "steps")
            parts.append(
                _image(draw(panels, key=name, x="steps", size=(4.2, 2.8)), name, "19.5rem")
            )
        if len(common) > MAX_DETAILS:
            parts.append(f"<p class=note>And {', '.join(map(escape, common[MAX_DETAILS:]))}.</p>")
        parts.append("</details>")
    return parts


def _trained(record: Record) -> list[str]:
    keys = dict.fromkeys(key for row in record.metrics for key in row if key.startswith("train/"))
    return [k for k in keys if any(isinstance(row.get(k), (int, float)) for row in record.metrics)]


def _scores(groups: dict[str, list[Record]]) -> str:
    from composerl.analysis.stats import bootstrap_interval, iqm, mean

    rows = []
    for name, records in groups.items():
        finals = [r.final()["return"] for r in records if r.summary is not None]
        if not finals:
            rows.append((name, f"0 of {len(records)}", "", "", ""))
            continue
        low, high = bootstrap_interval(finals)
        rows.append((name, f"{len(finals)} of {len(records)}", f"{iqm(finals):.1f}",
                     f"{low:.1f} to {high:.1f}", f"{mean(finals):.1f}"))  # fmt: skip
    return _table(("group", "finished", "interquartile mean", "95 % interval", "mean"), rows)


def _runs(records: Sequence[Record]) -> str:
    rows = []
    for record in records:
        if record.summary is None:
            step = record.metrics[-1].get("step", 0) if record.metrics else 0
            rows.append((record.directory, record.seed, "", "", step, "", "not finished"))
            continue
        final, best = record.final(), record.summary.get("best") or {}
        rows.append((
            record.directory, record.seed, f"{final['return']:.1f} ± {final.get('std', 0):.1f}",
            f"{best['return']:.1f} at {best.get('step', '?')}" if "return" in best else "",
            record.summary.get("steps", ""), record.summary.get("time/cpu_seconds", ""),
            record.summary.get("stopped", ""),
        ))  # fmt: skip
    columns = ("run", "seed", "final return", "best return", "steps", "CPU seconds", "ended")
    return _table(columns, rows)


def _settings(settings: Sequence[dict[str, Any]], records: Sequence[Record]) -> list[str]:
    """What differs between runs as a table, what does not folded away."""
    keys = dict.fromkeys(key for values in settings for key in values)
    texts = {k: [_text(values[k]) if k in values else "—" for values in settings] for k in keys}
    differ = [key for key in keys if len(set(texts[key])) > 1]
    parts = []
    if differ:
        rows = [(r.directory, *(texts[key][i] for key in differ)) for i, r in enumerate(records)]
        parts.append(_table(("run", *differ), rows))
    else:
        parts.append("<p>The same in all runs.</p>" if len(records) > 1 else "")
    same = [(key, texts[key][0]) for key in keys if key not in differ]
    opened = " open" if len(records) == 1 else ""
    summary = "<summary>What all runs have in common</summary>"
    parts.append(f"<details{opened}>{summary}{_table(('', 'value'), same)}</details>")
    return parts


def _versions(record: Record) -> dict[str, Any]:
    data = record.metadata
    versions = data.get("versions")
    top = {key: data[key] for key in ("python", "platform", "git_commit") if key in data}
    return {"env": record.env, **top, **(versions if isinstance(versions, dict) else {})}


def _pictures(records: Sequence[Record]) -> list[str]:
    parts = []
    for record in records:
        for file in sorted((record.directory / "images").glob("*")):
            if file.suffix.lower() in PICTURES:
                data = base64.b64encode(file.read_bytes()).decode()
                kind = PICTURES[file.suffix.lower()]
                caption = escape(f"{record.directory}: {file.stem}")
                parts.append(f'<figure><img class=small alt="{caption}" '
                             f'src="data:{kind};base64,{data}"><figcaption>{caption}</figcaption>'
                             "</figure>")  # fmt: skip
    return ["<h2>Pictures</h2>", *parts] if parts else []


def _image(figure: Any, caption: str, width: str) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    data = base64.b64encode(file.getvalue()).decode()
    alt = escape(caption)
    return (f'<figure style="width:{width}"><img alt="{alt}" src="data:image/png;base64,{data}">'
            f"<figcaption>{alt}</figcaption></figure>")  # fmt: skip


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(str(column))}</th>" for column in columns)
    lines = ["".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<div class=wide><table><tr>{head}</tr>{body}</table></div>"


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
