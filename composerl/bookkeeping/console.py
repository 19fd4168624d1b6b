"""What a person sees of runs: a progress bar or a live table, then a table of what came out."""

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from rich import progress
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from composerl.errors import printable, shortened

__all__ = ["live_table", "print_table", "progress_bar", "run_progress", "say", "show_log",
           "summary_table", "time_left", "watched"]  # fmt: skip

_console = Console(stderr=True, highlight=False)


def say(message: str) -> None:
    """A line for the person, on stderr, above a running progress bar."""
    _console.print(printable(shortened(message)), markup=False, soft_wrap=True)


class _Say(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


def show_log() -> None:
    """Show what composerl's own modules log as lines of :func:`say`."""
    logger = logging.getLogger("composerl")
    logger.setLevel(logging.INFO)
    if not any(isinstance(handler, _Say) for handler in logger.handlers):
        logger.addHandler(_Say())
        logger.propagate = False


def watched() -> bool:
    """Whether what is drawn anew can be seen: in a terminal, and in a notebook with widgets."""
    return _console.is_terminal or (_console.is_jupyter and find_spec("ipywidgets") is not None)


@contextmanager
def progress_bar(title: str, total: int, start: int) -> Iterator[Callable[[int, str], None]]:
    """Steps, rate, time left and a note; gives what takes the steps done, and the note.

    Draws nothing where nobody can watch it.
    """
    bar = progress.Progress(
        progress.TextColumn("[bold]{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        _Rate(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[note]}"),
        console=_console,
        disable=not watched(),
    )
    task = bar.add_task(printable(title), total=total, completed=start, note="")

    def advance(step: int, note: str) -> None:
        if not bar.disable:
            bar.update(task, completed=step, note=note)

    with bar:
        yield advance


@contextmanager
def run_progress(
    title: str, total: int, start: int, unit: str
) -> Iterator[Callable[[int, Mapping[str, Any] | None], None]]:
    """A run's bar; gives what takes the steps done, and the latest evaluation.

    Where nobody can watch a bar (a log file, a batch system) each evaluation is a line.
    """
    lines, began, told = not watched(), time.monotonic(), start
    with progress_bar(title, total, start) as show:

        def advance(step: int, latest: Mapping[str, Any] | None) -> None:
            nonlocal told
            if not lines:
                show(step, f"return {latest['return']:.1f}" if latest else "")
            elif latest and latest["step"] == step and step > told:
                told = step
                rate = (step - start) / max(time.monotonic() - began, 1e-9)
                spread = f"return {latest['return']:.1f} ± {latest['std']:.1f}"
                left = time_left(total - step, rate)
                say(f"{title}: {step:,} of {total:,} {unit}, {spread}, {rate:,.0f}/s, {left} left")

        yield advance


def time_left(steps: int, rate: float) -> str:
    """How long so many steps take, as hours, minutes and seconds."""
    minutes, seconds = divmod(round(max(steps, 0) / rate), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


@contextmanager
def live_table(
    title: str, columns: Sequence[str]
) -> Iterator[Callable[[Iterable[Sequence[str]], str], None]]:
    """A table on stderr that is drawn anew; gives what takes its rows, and a line below them.

    Draws nothing where nobody can watch it.
    """
    with Live(console=_console, auto_refresh=False, transient=True) as live:

        def show(rows: Iterable[Sequence[str]], note: str) -> None:
            if watched():
                live.update(_table(title, columns, rows, "right", caption=note), refresh=True)

        yield show


class _Rate(progress.ProgressColumn):
    def render(self, task: Any) -> Text:
        """Steps per second."""
        return Text(f"{task.speed:,.0f}/s" if task.speed else "", style="cyan")


def summary_table(
    summary: Mapping[str, Any],
    directory: Path,
    usage: str,
    unit: str = "steps",
    wandb: tuple[str, str | None] = ("off", None),
) -> None:
    """Print the end of a run: what came out, where it is and how to use it.

    What is to be copied stands below the table, in one piece whatever the terminal's width.
    """
    final, best = summary["final"], summary["best"]
    spread = f"± {final['std']:.1f} over {final['episodes']} episodes"
    rows = {
        "final return": f"{final['return']:.1f} {spread}",
        "best return": f"{best['return']:.1f} at step {best['step']}",
        "length": f"{summary['steps']} {unit} ({summary['stopped']})",
        "time": f"{summary['time/seconds']:.0f} s, {summary['time/cpu_seconds']:.0f} s of CPU",
        "W&B": wandb[0],
    }
    title = f"{summary['recipe']}: {summary['env']}, seed {summary['seed']}"
    print_table(title, ("", ""), rows.items(), align="left")
    upload = [f"upload it: {wandb[1]}"] if wandb[1] else []
    print(f"run:       {directory}", *upload, f"use it:    {usage}", sep="\n")


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    align: Literal["left", "right"] = "right",
) -> None:
    """Print a table on stdout; ``align`` is for all columns but the first."""
    console = Console(highlight=False)
    # Where nobody looks, lines need not fit a terminal.
    console = console if console.is_terminal else Console(highlight=False, width=160)
    with console.capture() as capture:
        console.print(_table(title, columns, rows, align))
    # Not by rich: on a closed pipe it exits without a word.
    sys.stdout.write(capture.get())


def _table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    align: Literal["left", "right"],
    caption: str | None = None,
) -> Table:
    below = Text(printable(caption)) if caption else None
    table = Table(title=Text(printable(title)), title_justify="left", title_style="bold",
                  show_header=any(columns), caption=below, caption_justify="left")  # fmt: skip
    for i, column in enumerate(columns):
        style, side = None if i else "cyan", align if i else "left"
        table.add_column(Text(printable(column)), justify=side, style=style, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    return table
