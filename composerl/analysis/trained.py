"""What ``composerl.train`` returns: the policy, and the run that it came from."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from composerl._files import replace_file
from composerl.analysis.curves import check_picture, draw, panels_of
from composerl.analysis.groups import group_runs
from composerl.analysis.runs import read_run
from composerl.bookkeeping.metrics import read_metrics
from composerl.policy import Policy

__all__ = ["Trained"]


class Trained(Policy):
    """A policy that knows its run: :attr:`directory`, :attr:`metrics`, :meth:`plot`."""

    directory: Path

    def __init__(self, policy: Policy) -> None:
        vars(self).update(vars(policy))

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """Arrays over the rows by name, NaN where a row has none; pandas.DataFrame takes them."""
        rows = read_metrics(self.directory / "metrics.jsonl")
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: np.array([row.get(name, math.nan) for row in rows]) for name in names}

    def plot(self, path: str | Path | None = None, key: str = "eval/return") -> Any:
        """A matplotlib figure of a metric over the steps, also written to ``path`` if given."""
        check_picture(path)
        run = read_run(self.directory)
        figure = draw(panels_of(group_runs([run]), key), key=key, x="steps")
        if path is not None:
            replace_file(Path(path), figure.savefig)
        return figure
