"""compare, plot and runs from Python and from the command line: no false certainty."""

from __future__ import annotations

import pytest
from past_runs import fake_run

import composerl


def group(place, returns, **settings):
    for seed, value in enumerate(returns):
        fake_run(place / f"seed{seed}", seed, [(10, value)], **settings)
    return place


def test_few_seeds_and_an_interval_without_width_are_told(tmp_path):
    a, b = group(tmp_path / "a", [5, 6, 7]), group(tmp_path / "b", [1, 2, 3], lr=0.1)
    found = composerl.compare(a, b)
    assert (found.probability, found.interval) == (1.0, (1.0, 1.0))
    assert f"a run of {a} does better than one of {b} with probability 1.00 (1.00 to 1.00)" in str(
        found
    )
    assert "note: 3 runs tell little: 5 seeds or more on each side do" in str(found)
    assert "that does not make it certain" in str(found)


def test_enough_seeds_need_no_note(tmp_path):
    a, b = group(tmp_path / "a", [5, 6, 7, 2, 1]), group(tmp_path / "b", [1, 2, 3, 4, 5])
    found = composerl.compare(a, b)
    assert found.notes == []
    assert found.interval is not None
    assert found.interval[0] < found.probability < found.interval[1]


def test_runs_of_different_settings_are_no_side(tmp_path, cli):
    a, b = group(tmp_path / "a", [5, 6]), group(tmp_path / "b", [1, 2], lr=0.1)
    result = cli("compare", tmp_path, a)
    assert result.code == 2
    assert "toy, lr 0.001 and toy, lr 0.1" in result.err
    assert cli("compare", a, b).code == 0


def test_several_environments_count_alike(tmp_path):
    """In one the first always wins, in the other the second does, of which there are more runs."""
    for side, scores in (("a", ([2, 3], [1, 1])), ("b", ([0, 1], [5, 6, 7]))):
        for env, values in zip(("X", "Y"), scores, strict=True):
            group(tmp_path / side / env, values, env=env)
    found = composerl.compare(tmp_path / "a", tmp_path / "b")
    assert found.probability == 0.5
    assert [(row["env"], len(row["scores"])) for row in found.rows] == [
        ("X", 2), ("X", 2), ("Y", 2), ("Y", 3),
    ]  # fmt: skip
    assert "mean over 2 environments" in str(found)
    with pytest.raises(ValueError, match="same environments"):
        composerl.compare(tmp_path / "a" / "X", tmp_path / "b")


def test_a_final_return_that_is_no_number_is_refused(tmp_path, cli):
    a, b = group(tmp_path / "a", [5, float("nan")]), group(tmp_path / "b", [1, 2])
    result = cli("compare", a, b)
    assert (result.code, "has nan as its final return" in result.err) == (2, True)


def test_runs_as_a_table(tmp_path):
    group(tmp_path / "a", [5, 6])
    fake_run(tmp_path / "b", 7, [(10, 3.0), (20, 4.0)], lr=0.1, note="<b>")
    (tmp_path / "b" / "summary.json").unlink()
    table = composerl.runs(tmp_path)
    assert [(row["seed"], row["final"], row["step"], row["finished"]) for row in table] == [
        (0, 5, 10, True), (1, 6, 10, True), (7, None, 20, False),
    ]  # fmt: skip
    assert [row["lr"] for row in table] == [1e-3, 1e-3, 0.1]
    page = table._repr_html_()
    assert "<th>lr</th>" in page
    assert "<th>env</th>" not in page  # the same in all
    assert "&lt;b&gt;" in page


def test_plot_gives_a_figure_and_writes_it(tmp_path):
    pytest.importorskip("matplotlib")
    group(tmp_path / "a", [5, 6])
    figure = composerl.plot(tmp_path / "a", tmp_path / "a.png")
    assert len(figure.axes) == 1
    assert (tmp_path / "a.png").stat().st_size > 1000
    assert composerl.plot([tmp_path / "a" / "seed0"], group_by="run").axes
    # A notebook shows it as it is, though nobody has imported pyplot.
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_several_runs_are_one_list_to_plot(tmp_path):
    group(tmp_path / "a", [5, 6])
    with pytest.raises(ValueError, match=r"end in \.png .* got .*b; several runs are one list"):
        composerl.plot(tmp_path / "a", tmp_path / "b")
