"""Runs read back: statistics, curves, pictures, reports."""

from typing import TYPE_CHECKING

from composerl._lazy import lazy

if TYPE_CHECKING:
    from composerl.analysis.comparison import Comparison, compare
    from composerl.analysis.curves import draw
    from composerl.analysis.fqe import Estimate, fitted_q
    from composerl.analysis.groups import Group, group_runs
    from composerl.analysis.pictures import open_loop
    from composerl.analysis.plotting import plot
    from composerl.analysis.report import page_of
    from composerl.analysis.runs import PastRun, find_runs, read_run
    from composerl.analysis.stats import (
        aggregate,
        bootstrap_interval,
        iqm,
        performance_profile,
        probability_of_improvement,
        rank_correlation,
    )
    from composerl.analysis.table import RunTable
    from composerl.analysis.trained import Trained

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
