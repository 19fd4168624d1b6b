"""Run directories as a finished run leaves them, without the run."""

from __future__ import annotations

import json

import yaml

from composerl.analysis.runs import read_run


def fake_run(directory, seed, points, *, recipe="toy", env="Toy-v0", **config):
    """A run directory with these (step, return) evaluations, ten steps a second."""
    directory.mkdir(parents=True)
    config = {"env": env, "seed": seed, "lr": 1e-3, **config}
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    metadata = {"recipe": recipe, "python": "3.11", "versions": {"torch": "2.13"}}
    (directory / "metadata.json").write_text(json.dumps(metadata))
    rows = [{"step": s, "eval/return": v, "train/loss_value": 1 / s, "time/seconds": s / 10}
            for s, v in points]  # fmt: skip
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    final = {"step": points[-1][0], "return": points[-1][1], "std": 1.0, "episodes": 2}
    summary = {"final": final, "best": final, "steps": points[-1][0], "stopped": "all steps done"}
    (directory / "summary.json").write_text(json.dumps(summary))
    return read_run(directory)
