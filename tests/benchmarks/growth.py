"""How it grows: widths, batches, buffers, environments, episodes; a table and a plot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import collector, mixture, replay, updates
from .results import told
from .timing import Case, Figures

PLOT = Path(__file__).parents[2] / ".github" / "growth.png"
WIDTHS, BATCHES = (64, 128, 256, 512, 1024), (64, 256, 1024, 4096)


def iql() -> Iterator[Case]:
    """IQL's eager update at widths of 64 to 1024, on batches of 64 to 4096."""
    kind = updates.KINDS["iql"]
    sizes = [*((width, 256) for width in WIDTHS), *((256, rows) for rows in BATCHES)]
    for width, rows in dict.fromkeys(sizes):
        yield Case(updates.name(width, rows), kind.ways(width, rows, compiled=False))


@dataclass(frozen=True)
class Series:
    """What is measured at several sizes: the case at each, by name."""

    what: str
    unit: str
    benchmark: str
    sizes: Sequence[int]
    case: Callable[[int], str]

    def ways(self, held: dict) -> dict[str, dict[int, Figures]]:
        """Figures by way and size, of ways that there are at all sizes."""
        cases = held[self.benchmark]["cases"]
        found = {size: cases[self.case(size)]["ways"] for size in self.sizes}
        first = found[self.sizes[0]]
        shared = [way for way in first if all(way in figures for figures in found.values())]
        return {way: {size: found[size][way] for size in self.sizes} for way in shared}


SERIES = [
    Series("an update of IQL", "width", "growth", WIDTHS,
           lambda width: updates.name(width, 256)),
    Series("an update of IQL", "rows in a batch", "growth", BATCHES,
           lambda rows: updates.name(256, rows)),
    Series("a uniform batch of 256", "rows in the buffer", "replay", replay.SIZES,
           lambda size: replay.name("uniform", size)),
    Series("a prioritized batch of 256, priorities set", "rows in the buffer", "replay",
           replay.SIZES, lambda size: replay.name("prioritized", size)),
    Series("a step of CartPole", "environments", "collector", collector.ENVS,
           lambda number: collector.name("CartPole-v1", number, 800 // number)),
    Series("a step into whole episodes", "rows held", "mixture", mixture.SIZES,
           lambda size: mixture.name("extend", size)),
]  # fmt: skip


def table(held: dict) -> str:
    """CPU time at each size, and in brackets the ratio to the first way."""
    lines = ["| what | grows | way | time (ratio) |", "|---|---|---|---|"]
    for series in SERIES:
        for way, figures in series.ways(held).items():
            at = [f"{n:,}: {told(f['us'])} ({f['ratio']:.2f})" for n, f in figures.items()]
            lines.append(f"| {series.what} | {series.unit} | {way} | {'; '.join(at)} |")
    return "\n".join(lines)


def plot(held: dict) -> None:
    """All series in one picture, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 3, figsize=(13, 7), layout="constrained")
    for panel, series in zip(panels.flat, SERIES, strict=True):
        for way, figures in series.ways(held).items():
            ours = way.startswith("composerl")
            panel.plot(
                list(figures), [f["us"] for f in figures.values()], label=way, marker="o",
                color="black" if way == "composerl" else None,
                linewidth=2.2 if ours else 1.2, linestyle="-" if ours else "--",
            )  # fmt: skip
        panel.set(xscale="log", yscale="log", title=series.what, xlabel=series.unit)
        panel.set_xticks(list(series.sizes), [f"{n:,}" for n in series.sizes])
        panel.set_xticks([], minor=True)
        panel.grid(alpha=0.3, which="both")
        panel.legend(fontsize=8)
    for row in panels:
        row[0].set_ylabel("CPU microseconds")
    figure.savefig(PLOT, dpi=90, metadata={"Software": None})
    pyplot.close(figure)
