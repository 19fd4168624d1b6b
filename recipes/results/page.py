"""The figures of the pages: kept as small JSON files here, and made into their tables.

python recipes/results/page.py add halfcheetah RUNS... writes <recipe>-halfcheetah.json from the run
directories of one recipe, which differ in their seeds; other seeds of the same command that are in
the file stay. Runs that were started outside of a repository do not know their commit, which is
then given as a last word, commit=SHA. python recipes/results/page.py write puts all of these files
into the tables of recipes/README.md and README.md. Nothing is typed.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGES = {"all": HERE.parent / "README.md", "front": HERE.parent.parent / "README.md"}

#: The rows of the front page, by the names of their files.
FRONT = (
    "gail_cartpole-defaults", "cql_pendulum-defaults", "cql_cartpole-mixed", "iql_pendulum-mixed",
    "iql_pendulum-halfcheetah", "xql_pendulum-mixed", "td3bc_pendulum-defaults",
    "ppo_cartpole-defaults", "sac_pendulum-defaults", "mbpo_pendulum-defaults",
)  # fmt: skip

#: Half of a 95 % interval of a mean in standard errors, by the number of seeds (Student's t).
_STUDENT = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}

#: Flags that say where and how to run, and not what.
_PLACE = ("--out", "--seed", "--wandb", "--compile", "--save-every", "--threads")


def record(name: str, directories: Iterable[str]) -> dict[str, Any]:
    """What the runs of one recipe came to: command, data, and of each seed returns and cost."""
    from composerl.analysis.runs import find_runs

    runs = sorted(find_runs(directories), key=lambda run: run.seed)
    commands = {_command(run.metadata["command"]) for run in runs}
    if len(commands) != 1 or len({run.seed for run in runs}) != len(runs):
        raise ValueError(f"these runs differ in more than their seeds: {sorted(commands)}")
    first = runs[0]
    return {
        "name": f"{first.recipe}-{name}",
        "recipe": first.recipe,
        "env": first.env,
        "command": commands.pop(),
        "steps": first.config["steps"],
        "data": _data(first.config),
        "runs": [_run(run) for run in runs],
    }


def _run(run: Any) -> dict[str, Any]:
    final, (steps, returns) = run.final(), run.series("eval/return")
    return {
        "seed": run.seed,
        "return": round(final["return"], 2),
        "length": round(run.series("eval/length")[1][-1], 1),
        "episodes": final["episodes"],
        "cpu_seconds": round(run.summary["time/cpu_seconds"], 1),
        "commit": run.metadata["git_commit"],
        "curve": [[int(step), round(value, 2)] for step, value in zip(steps, returns, strict=True)],
    }


def _command(words: list[str]) -> str:
    """The command line without what only says where to run; data by the names of their files."""
    kept, skip = [], False
    for word in words[1:]:
        if skip or word.partition("=")[0] in _PLACE:
            skip = not skip and "=" not in word
            continue
        kept.append(Path(word).name if word.endswith(".npz") else word)
    if kept[:1] == ["run"]:
        return " ".join(["composerl", *kept])
    return " ".join(["composerl run", Path(words[0]).stem, *kept])


def _data(config: dict[str, Any]) -> dict[str, Any] | None:
    """The dataset's name and its mean return, if the run had one."""
    from composerl.data import load_dataset

    if "dataset" not in config:
        return None
    size, seed = config["dataset_size"], config["dataset_seed"]
    data = load_dataset(config["dataset"], config["env"], size=size, seed=seed)
    mean = round(float(data.returns().mean()), 1)
    return {"name": Path(config["dataset"]).name, "rows": len(data), "mean_return": mean}


def joined(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The new record with the old one's runs of other seeds, if they did the same."""
    if any(old[key] != new[key] for key in new if key != "runs"):
        return new
    runs = {run["seed"]: run for run in (*old["runs"], *new["runs"])}
    return new | {"runs": [runs[seed] for seed in sorted(runs)]}


def records() -> list[dict[str, Any]]:
    """All that are kept, by task and recipe."""
    found = [json.loads(path.read_text()) for path in sorted(HERE.glob("*.json"))]
    return sorted(found, key=lambda one: (one["data"] is None, one["env"], one["name"]))


def table(page: str) -> str:
    """The Markdown table of a page."""
    every = records()
    head: tuple[str, ...] = (
        "command", "steps", "data", "return of each seed", "mean, 95 %", "curve", "CPU seconds",
        "commit",
    )  # fmt: skip
    if page == "front":
        every = [one for name in FRONT for one in every if one["name"] == name]
        head = ("command", "data", "return", "CPU seconds")
    rows = [head, ("---",) * len(head), *(_row(one, page) for one in every)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _row(one: dict[str, Any], page: str) -> tuple[str, ...]:
    runs = one["runs"]
    returns = [run["return"] for run in runs]
    mean, data = _mean(returns), one["data"]
    seconds = [run["cpu_seconds"] for run in runs]
    cost = " to ".join(f"{end:.0f}" for end in dict.fromkeys((min(seconds), max(seconds))))
    base = "" if data is None else f"{data['name']}: {_number(data['mean_return'])}"
    if page == "front":
        seeds = f" ({len(runs)} seed{'s' * (len(runs) > 1)})"
        return f"`{one['command']}`", base, mean + seeds, cost
    each = ", ".join(f"{run['seed']}: {_number(run['return'])}" for run in runs)
    commits = ", ".join(dict.fromkeys(run["commit"][:7] for run in runs))
    curve = _sparkline(runs[0]["curve"])
    return f"`{one['command']}`", f"{one['steps']:,}", base, each, mean, curve, cost, commits


def _mean(returns: list[float]) -> str:
    """With its interval from three seeds on; two say nothing about their spread."""
    mean = _number(statistics.fmean(returns))
    if len(returns) not in _STUDENT:
        return mean
    half = _STUDENT[len(returns)] * statistics.stdev(returns) / len(returns) ** 0.5
    return f"{mean} ± {_number(half)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"


def _sparkline(curve: list[list[float]]) -> str:
    """The evaluations of a run, the best at the top; the height is a tenth of it at least."""
    values = [value for _, value in curve]
    spread = max(max(values) - min(values), 0.1 * abs(max(values))) or 1.0
    return "".join("▁▂▃▄▅▆▇█"[round(7 - 7 * (max(values) - x) / spread)] for x in values)


def rewritten(page: str) -> str:
    """The text of a page with its table as the files have it."""
    text = PAGES[page].read_text(encoding="utf-8")
    marks = re.compile(r"(<!-- results -->\n).*?(<!-- /results -->)", re.DOTALL)
    if not marks.search(text):
        raise ValueError(f"{PAGES[page]} has no place for a table: <!-- results -->")
    return marks.sub(lambda found: f"{found[1]}{table(page)}\n{found[2]}", text)


def main(action: str, *words: str) -> None:
    """``add NAME RUNS...`` or ``write``."""
    if action == "add":
        one = record(words[0], [word for word in words[1:] if not word.startswith("commit=")])
        given = [word.partition("=")[2] for word in words[1:] if word.startswith("commit=")]
        for run in one["runs"]:
            run["commit"] = run["commit"] or given[0]
        path = HERE / f"{one['name']}.json"
        if path.exists():
            one = joined(json.loads(path.read_text()), one)
        path.write_text(json.dumps(one, indent=1) + "\n")
        print(path)
    elif action == "write":
        for page, path in PAGES.items():
            path.write_text(rewritten(page), encoding="utf-8")
    else:
        raise ValueError(f"page.py knows add and write, got {action!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
