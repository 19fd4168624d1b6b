"""Plots and reports: the numbers behind them, and that they can be looked at."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import tracemalloc

import numpy as np
import pytest
from past_runs import fake_run
from PIL import Image

from composerl.analysis.curves import curve_of, draw, panels_of
from composerl.analysis.groups import group_runs
from composerl.analysis.runs import find_runs, read_run


@pytest.fixture
def toy(tmp_path):
    """Five seeds, evaluated at 10, 20, 30; the fifth an outlier."""
    values = [(0, 10, 20), (1, 11, 21), (2, 12, 22), (3, 13, 23), (100, 110, 120)]
    return [
        fake_run(tmp_path / "toy" / f"seed{i}", i, list(zip((10, 20, 30), row, strict=True)))
        for i, row in enumerate(values)
    ]


def test_the_curve_is_the_iqm_over_seeds(toy):
    """Of five, one is left out at each end: the mean of 1 2 3, 11 12 13, 21 22 23."""
    curve = curve_of("toy", toy, "eval/return")
    assert curve.x.tolist() == [10, 20, 30]
    assert curve.middle.tolist() == [2, 12, 22]
    assert (curve.low <= curve.middle).all()
    assert (curve.middle <= curve.high).all()
    assert curve.low[0] >= 0
    assert curve.high[0] <= 100


def test_runs_measured_at_different_steps_are_interpolated(tmp_path):
    """At 15 the first is half way from 0 to 10; the common part is 10 to 20, from 10 on."""
    a = fake_run(tmp_path / "a", 0, [(10, 0.0), (20, 10.0), (40, 90.0)])
    b = fake_run(tmp_path / "b", 1, [(5, 50.0), (15, 1.0), (20, 2.0)])
    curve = curve_of("ab", [a, b], "eval/return")
    assert curve.x.tolist() == [10, 15, 20]
    assert curve.middle.tolist() == pytest.approx([(0 + 25.5) / 2, (5 + 1) / 2, (10 + 2) / 2])


def test_time_is_an_axis_too(toy):
    assert curve_of("toy", toy, "eval/return", "time").x.tolist() == [1, 2, 3]


def test_groups_by_recipe_flag_or_run(tmp_path):
    records = [
        fake_run(tmp_path / f"{recipe}{lr}{seed}", seed, [(1, 0.0)], recipe=recipe, lr=lr)
        for recipe in ("a", "b")
        for lr in (0.1, 0.2)
        for seed in (0, 1)
    ]
    sizes = {by: [len(g.runs) for g in group_runs(records, by)] for by in ("recipe", "lr")}
    assert sizes == {"recipe": [4, 4], "lr": [4, 4]}
    assert [group.name for group in group_runs(records, "lr")] == ["lr 0.1", "lr 0.2"]
    assert len(group_runs(records, "run")) == 8
    assert group_runs(records, "recipe")[0].notes[0] == "a: pools runs whose lr differ"


def test_groups_are_runs_that_differ_in_their_seed_alone(tmp_path):
    """Two expectiles and two lengths are four groups; how a run was watched makes none."""
    records = [
        fake_run(
            tmp_path / f"{expectile}{steps}{seed}", seed, [(steps, 0.0)],
            expectile=expectile, steps=steps, wandb="offline" if seed else "disabled",
            log_every=seed + 1, threads=seed + 1,
        )
        for expectile in (0.7, 0.9) for steps in (10, 20) for seed in (0, 1)
    ]  # fmt: skip
    other = fake_run(tmp_path / "other", 0, [(10, 0.0)], recipe="other", expectile=0.5)
    groups = group_runs([*records, other])
    assert {group.name: len(group.runs) for group in groups} == {
        "toy, expectile 0.7, steps 10": 2,
        "toy, expectile 0.7, steps 20": 2,
        "toy, expectile 0.9, steps 10": 2,
        "toy, expectile 0.9, steps 20": 2,
        "other": 1,
    }


def test_names_of_groups_have_four_digits_where_these_tell_them_apart(tmp_path):
    values = (0.0012520653814999472, 0.00068240784, 0.00068240123, 0.5, 1e-05)
    runs = [fake_run(tmp_path / str(lr), 0, [(10, 0.0)], lr=lr) for lr in values]
    names = [group.name for group in group_runs(runs)]
    assert names == [
        "toy, lr 0.001252", "toy, lr 0.00068240784", "toy, lr 0.00068240123", "toy, lr 0.5",
        "toy, lr 1e-05",
    ]  # fmt: skip


def test_a_run_that_is_there_twice_counts_once(tmp_path, toy):
    twin = fake_run(tmp_path / "copy", 0, [(10, 0.0), (20, 10.0)])
    (group,) = group_runs([twin, *toy])
    assert [run.directory for run in group.runs] == [run.directory for run in toy]
    assert "seed 0 is there twice" in group.notes[0]
    assert "copy is left out" in group.notes[0]


def test_few_runs_and_unequal_lengths_are_told(cli, tmp_path):
    for seed, end in enumerate((20, 30)):
        fake_run(tmp_path / f"seed{seed}", seed, [(10, 0.0), (end, 1.0)])
    result = cli("plot", tmp_path, "-o", tmp_path / "a.png")
    assert "note: toy: its runs end at different steps, 20 to 30" in result.err
    assert "note: toy: 2 runs, whose interval is little more than their range" in result.err
    page = tmp_path / "a.html"
    cli("report", tmp_path, "-o", page)
    assert "its runs end at different steps, 20 to 30" in page.read_text()
    cli("report", tmp_path / "seed0", "-o", page)
    assert "Each line is a single run." in page.read_text()
    assert "none: one run" in page.read_text()


def test_a_value_that_is_no_number_is_a_gap(toy, tmp_path):
    """Not a mean of the others, as if the diverged run had done as well as they."""
    lost = fake_run(tmp_path / "lost", 9, [(10, 5.0), (20, float("nan")), (30, 6.0)])
    curve = curve_of("toy", [*toy, lost], "eval/return")
    assert np.isfinite(curve.middle).tolist() == [True, False, True]
    assert np.isfinite(curve.low).tolist() == [True, False, True]


def test_a_long_curve_is_drawn_in_little_memory(tmp_path):
    """All at once the bootstrap of 5,000 evaluations of 3 runs takes 400 MB."""
    points = [(step, float(step % 7)) for step in range(1, 5001)]
    runs = [fake_run(tmp_path / f"{seed}", seed, points) for seed in range(3)]
    tracemalloc.start()
    curve = curve_of("long", runs, "eval/return")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(curve.low) == 5000
    assert np.isfinite(curve.low).all()
    assert peak < 60e6


def test_axes_say_what_steps_are(tmp_path):
    points = [(1, 0.0), (2, 1.0)]
    runs = [fake_run(tmp_path / recipe, 0, points, recipe=recipe) for recipe in ("a", "b")]
    for run, unit in zip(runs, ("updates", "environment steps"), strict=True):
        run.metadata["step_unit"] = unit
    alone = draw(panels_of(group_runs(runs[:1]), "eval/return"), key="eval/return", x="steps")
    both = draw(panels_of(group_runs(runs), "eval/return"), key="eval/return", x="steps")
    assert alone.axes[0].get_xlabel() == "updates"
    assert both.axes[0].get_xlabel() == "steps"


def test_many_environments_make_rows_of_panels(tmp_path):
    runs = [fake_run(tmp_path / f"{i}", 0, [(1, 0.0), (2, 1.0)], env=f"E{i}") for i in range(4)]
    figure = draw(panels_of(group_runs(runs), "eval/return"), key="eval/return", x="steps")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["E0", "E1", "E2", "E3"]
    assert figure.get_size_inches().tolist() == [21, 8]


def test_environments_share_no_axis(tmp_path, toy):
    other = fake_run(tmp_path / "other", 0, [(1, 500.0), (2, 400.0)], env="Other-v0")
    panels = panels_of(group_runs([*toy, other], "recipe"), "eval/return")
    assert {env: [len(c.runs) for c in curves] for env, curves in panels.items()} == {
        "Toy-v0": [5],
        "Other-v0": [1],
    }
    figure = draw(panels, key="eval/return", x="steps")
    left, right = figure.axes
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == ("Toy-v0", "Other-v0")
    assert left.get_legend().get_texts()[0].get_text() == "toy (5 runs)"
    assert left.lines[-1].get_ydata().tolist() == [2, 12, 22]
    assert len(left.collections) == 1  # the band


def test_runs_are_found_below_a_directory_once(toy, tmp_path):
    wandb = tmp_path / "toy" / "seed0" / "wandb" / "files"
    wandb.mkdir(parents=True)
    (wandb / "config.yaml").write_text("a: 1")
    found = find_runs([tmp_path, tmp_path / "toy" / "seed1"])
    assert [record.directory.name for record in found] == [f"seed{i}" for i in range(5)]


def test_plot_writes_a_picture(cli, toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli("plot", "toy").out == "curves.png\n"
    with Image.open("curves.png") as picture:
        assert picture.size == (1050, 600)
        colours = {colour for _, colour in picture.convert("RGB").getcolors(10**6)}
        assert (0x00, 0x72, 0xB2) in colours  # the line
    for name in ("a.svg", "b.pdf"):
        assert cli("plot", "toy", "-o", name, "--x", "time", "--key", "train/loss_value").code == 0
        assert (tmp_path / name).stat().st_size > 1000


def test_report_is_one_page_with_everything(cli, toy, tmp_path):
    fake_run(tmp_path / "toy" / "wide", 9, [(10, 5.0)], hidden=[64, 64], note="<b>&")
    (tmp_path / "toy" / "wide" / "summary.json").unlink()
    media = tmp_path / "toy" / "seed0" / "images"
    media.mkdir()
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(media / "episode.gif")
    (media / "film.mp4").write_bytes(b"a film")
    page = tmp_path / "report.html"
    assert cli("report", tmp_path / "toy", "-o", page).code == 0
    text = page.read_text()
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert not re.search(r"https?://(?!www.w3.org/2000/svg)|@import|url\(", text)
    assert "@media print" in text
    assert "figure { max-width: 100%;" in text  # on a phone no picture is wider than the page
    assert text.count("data-chart=") == 2  # returns and one training metric
    assert text.count("data:image/gif") == 1
    assert text.count("data:video/mp4") == 1
    for words in (
        "5 of 5",
        "0 of 1",
        "22.0",
        "not finished",
        "64, 64",
        "torch",
        "2.13",
        "&lt;b&gt;&amp;",
    ):
        assert words in text, words
    # lr is the same everywhere: not among the differences, which come first.
    head = text[text.index("<h2>Configuration") : text.index("What all runs have in common")]
    assert "<th>hidden</th>" in head
    assert "<th>lr</th>" not in head


def numbers_of(page):
    """What a page's script draws."""
    text = page.read_text()
    return json.loads(re.search(r'id="numbers">(.*?)</script>', text, re.DOTALL)[1])


def test_the_numbers_of_a_report_are_those_of_the_curves(cli, toy, tmp_path):
    """A value that is no number is a gap: JSON has none."""
    fake_run(tmp_path / "toy" / "lost", 9, [(10, 5.0), (20, float("nan")), (30, 6.0)])
    page = tmp_path / "report.html"
    cli("report", tmp_path / "toy", "-o", page)
    returns, loss = numbers_of(page)["charts"]
    assert (returns["title"], returns["label"]) == ("Toy-v0", "return of evaluation")
    assert loss["label"] == "train/loss_value"
    assert list(returns["axes"]) == ["steps", "time"]  # these runs did not count updates
    (curve,) = returns["axes"]["steps"]
    expected = curve_of("toy", find_runs([tmp_path / "toy"]), "eval/return")
    assert curve["x"] == [10, 20, 30]
    assert curve["middle"][0] == pytest.approx(expected.middle[0], rel=1e-5)
    assert curve["middle"][1] is None
    lost = [[10, 20, 30], [5.0, None, 6.0]]
    assert lost in curve["runs"]
    assert returns["axes"]["time"][0]["x"] == [1, 2, 3]


def test_updates_are_an_axis_where_they_were_counted(tmp_path):
    """Between rows that count them, and before the first, along a line."""
    run = fake_run(tmp_path / "run", 0, [(1, 0.0), (10, 1.0), (15, 2.0), (20, 3.0)])
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    for row, updates in zip(rows, (None, 40.0, None, 80.0), strict=True):
        row |= {} if updates is None else {"train/updates": updates}
    (tmp_path / "run" / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    curve = curve_of("run", [read_run(run.directory)], "eval/return", "updates")
    assert curve.x.tolist() == [4, 40, 60, 80]
    assert curve.unit == "updates"


def test_long_lines_are_thinned_on_the_page(cli, tmp_path):
    fake_run(tmp_path / "run", 0, [(step, float(step)) for step in range(1, 5001)])
    page = tmp_path / "report.html"
    cli("report", tmp_path / "run", "-o", page)
    (curve,) = numbers_of(page)["charts"][0]["axes"]["steps"]
    assert len(curve["x"]) == 500
    assert (curve["x"][0], curve["x"][-1]) == (1, 5000)


def test_many_groups_are_told_apart_by_their_dashes(cli, tmp_path):
    for number in range(10):
        fake_run(tmp_path / "runs" / f"{number}", 0, [(1, 0.0), (2, 1.0)], alpha=number)
    page = tmp_path / "report.html"
    cli("report", tmp_path / "runs", "-o", page)
    styles = numbers_of(page)["styles"]
    assert len({(style["colour"], style["line"]) for style in styles.values()}) == 10
    assert [style["line"] for style in styles.values()] == ["solid"] * 8 + ["dashed"] * 2


def test_no_name_escapes_its_place_in_a_report(cli, tmp_path):
    evil = "</script><img src=x onerror=alert(1)>"
    for number in (1, 2):
        fake_run(tmp_path / "runs" / f"{number}", 0, [(1, 0.0)], env=evil, note=f"{evil}{number}")
    page = tmp_path / "report.html"
    cli("report", tmp_path / "runs", "-o", page)
    text = page.read_text()
    assert "<img" not in text
    assert text.count("</script>") == 2
    assert numbers_of(page)["charts"][0]["title"] == evil


#: Done in the browser; what is seen then is left in the page's title.
PRESS = r"""
addEventListener("load", () => {
  const figure = document.querySelector("figure"), svg = figure.querySelector("svg");
  const seen = () => [...svg.querySelectorAll("path.curve")].map((p) => p.getAttribute("stroke"));
  const unit = () => [...svg.querySelectorAll("text")].at(-2).textContent;
  const read = () => [...figure.querySelectorAll(".tip > *")].map((row) => row.textContent);
  const point = (share) => {
    const box = svg.getBoundingClientRect();
    const at = { clientX: box.left + share * box.width, clientY: box.top + 50 };
    svg.dispatchEvent(new PointerEvent("pointermove", at));
    return read();
  };
  const page = document.documentElement;
  const told = { beyond: page.scrollWidth - page.clientWidth, all: seen(), unit: unit() };
  told.end = point(0.99);
  svg.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft" }));
  told.before = read();
  document.querySelector("input[value=time]").click();
  told.time = [unit(), point(0.99)[0]];
  document.querySelector("input[name=group]").click();
  told.one = seen();
  document.querySelector("details").open = true;
  setTimeout(() => {
    told.folded = document.querySelectorAll("details path.curve").length;
    document.title = JSON.stringify(told);
  }, 500);
});
"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="NO BROWSER: needs Debian's chromium")
@pytest.mark.parametrize("width", [1400, 420])
def test_the_curves_answer_in_a_browser(cli, toy, tmp_path, width):
    for seed in (0, 1):
        fake_run(tmp_path / "toy" / f"b{seed}", seed, [(10, 1.0), (30, 3.0 + seed)], recipe="b")
    page, shot = tmp_path / "report.html", tmp_path / "shot.png"
    cli("report", tmp_path / "toy", "-o", page)
    place = [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},1400"]
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", *place]
    subprocess.run(
        [*browser, f"--screenshot={shot}", page.as_uri()],
        capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    with Image.open(shot) as picture:
        colours = dict(c[::-1] for c in picture.convert("RGB").getcolors(10**7))
    assert colours.get((0x00, 0x72, 0xB2), 0) > 100  # the curves are drawn
    page.write_text(page.read_text().replace("</body>", f"<script>{PRESS}</script></body>"))
    done = subprocess.run(
        [*browser, "--virtual-time-budget=3000", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    told = json.loads(html.unescape(re.search(r"<title>(.*?)</title>", done.stdout)[1]))
    assert told["beyond"] == 0  # nothing is wider than the page
    assert told["all"] == ["#0072B2", "#D55E00"]
    assert (told["unit"], told["time"]) == ("steps", ["seconds", "3 seconds"])
    assert told["end"][:2] == ["30 steps", "b: 3.5 (3 to 4)"]
    assert told["end"][2].startswith("toy: 22 (")
    assert told["before"][0] == "20 steps"
    assert told["one"] == ["#D55E00"]
    assert told["folded"] == 1  # of the group that is left
