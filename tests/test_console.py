"""What a person sees of a run where no bar can be drawn: log files, batch systems, notebooks."""

from __future__ import annotations

import logging

from composerl.bookkeeping import console
from composerl.fleet.progress import Progress, news


def latest(step, value):
    return {"step": step, "return": value, "std": 2.0}


def test_each_evaluation_is_a_line_where_nobody_can_watch_a_bar(capsys):
    with console.run_progress("toy", 3000, 0, "updates") as show:
        show(0, latest(0, -9.0))  # told before the loop
        for step in range(1, 3001):
            show(step, latest(step // 1000 * 1000, step / 1000))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" ±")[0] for line in lines] == [
        f"toy: {n},000 of 3,000 updates, return {n}.0" for n in (1, 2, 3)
    ]
    assert lines[-1].endswith("/s, 0:00:00 left")


def test_a_notebook_without_widgets_has_lines_too(monkeypatch):
    class Notebook:
        is_terminal, is_jupyter = False, True

    monkeypatch.setattr(console, "_console", Notebook)
    for there in (True, False):
        monkeypatch.setattr(console, "find_spec", lambda _, there=there: there or None)
        assert console.watched() is there


def test_what_takes_long_is_told(capsys, tmp_path, monkeypatch):
    from composerl.data import generate

    monkeypatch.setenv("COMPOSERL_CACHE", str(tmp_path))
    console.show_log()
    assert logging.getLogger("composerl").level == logging.INFO
    generate("CartPole-v1", "random", 50, 0)
    assert capsys.readouterr().err == "generating 50 transitions of CartPole-v1 by 'random' ...\n"
    generate("CartPole-v1", "random", 50, 0)  # from the cache
    assert capsys.readouterr().err == ""


def test_new_evaluations_of_many_runs_are_lines():
    before = Progress(step=10, total=40, evaluations=((10, 1.0),))
    now = Progress(step=35, total=40, evaluations=((10, 1.0), (20, 2.0), (30, 3.5)))
    assert news(before, now) == ["step 20 of 40, return 2.0", "step 30 of 40, return 3.5"]
    assert news(now, now) == []
