"""The pages' figures are those of the kept files, and the files are of commands that exist."""

from __future__ import annotations

import json
import shlex
from importlib.util import module_from_spec, spec_from_file_location

import pytest
from recipes.harness import RECIPES, load_recipe

from composerl.config import parse

ROOT = RECIPES[0].parent
_spec = spec_from_file_location("results_page", ROOT / "results" / "page.py")
page = module_from_spec(_spec)
_spec.loader.exec_module(page)


@pytest.mark.parametrize("name", page.PAGES)
def test_the_tables_are_those_of_the_files(name):
    assert page.PAGES[name].read_text(encoding="utf-8") == page.rewritten(name)
    assert len(page.table(name).splitlines()) > 2


@pytest.mark.parametrize("one", page.records(), ids=lambda one: one["name"])
def test_a_file_tells_what_was_run(one):
    tool, run, recipe, *flags = shlex.split(one["command"])
    assert (tool, run, recipe) == ("composerl", "run", one["recipe"])
    config = parse(load_recipe(ROOT / f"{recipe}.py").Config, flags)
    assert (config.env, config.steps) == (one["env"], one["steps"])
    assert (ROOT / "results" / f"{one['name']}.json").is_file()
    seeds = [run["seed"] for run in one["runs"]]
    assert seeds == sorted(set(seeds))
    for run in one["runs"]:
        step, last = run["curve"][-1]
        assert step >= one["steps"]  # a turn of several steps may go beyond
        assert last == run["return"]
        assert len(run["commit"]) == 40
        assert run["cpu_seconds"] > 0


def test_the_front_page_has_ten_rows_of_kept_files():
    assert {*page.FRONT} <= {one["name"] for one in page.records()}
    assert len(page.table("front").splitlines()) == 2 + 10


def test_add_writes_what_a_run_directory_holds(tmp_path, monkeypatch):
    runs = []
    for seed in (1, 0):
        recipe = load_recipe(ROOT / "bc_pendulum.py")
        out = tmp_path / f"seed{seed}"
        monkeypatch.setattr(
            "sys.argv", ["recipes/bc_pendulum.py", "--seed", str(seed), f"--out={out}", "--lr=0.01"]
        )
        recipe.main(
            recipe.Config(
                out=out,
                seed=seed,
                steps=20,
                eval_every=10,
                eval_episodes=2,
                lr=0.01,
                dataset_size=500,
                wandb="disabled",
            )
        )
        runs.append(str(out))
    monkeypatch.setattr(page, "HERE", tmp_path)
    page.main("add", "small", *runs)
    one = json.loads((tmp_path / "bc_pendulum-small.json").read_text())
    assert one["command"] == "composerl run bc_pendulum --lr=0.01"
    assert one["data"]["name"] == "noisy"
    assert one["data"]["rows"] == 500
    assert [run["seed"] for run in one["runs"]] == [0, 1]
    for run, place in zip(one["runs"], reversed(runs), strict=True):
        with open(f"{place}/summary.json") as file:
            summary = json.load(file)
        assert run["return"] == pytest.approx(summary["final"]["return"], abs=0.01)
        assert [step for step, _ in run["curve"]] == [0, 10, 20]
    metadata = tmp_path / "seed1" / "metadata.json"
    metadata.write_text(metadata.read_text().replace("--lr=0.01", "--lr=0.02"))
    with pytest.raises(ValueError, match="differ in more than their seeds"):
        page.main("add", "small", *runs)


def test_seeds_of_the_same_command_are_joined():
    (old, *_) = page.records()
    other = dict(old["runs"][0], seed=99)
    both = page.joined(old, old | {"runs": [other]})
    assert [run["seed"] for run in both["runs"]] == [*(run["seed"] for run in old["runs"]), 99]
    changed = old | {"steps": old["steps"] + 1, "runs": [other]}
    assert page.joined(old, changed) == changed


def test_intervals_are_those_of_student():
    assert page._mean([10.0]) == "10.0"
    assert page._mean([10.0, 12.0]) == "11.0"
    assert page._mean([10.0, 12.0, 14.0]) == "12.0 ± 5.0"  # 4.303 * 2 / sqrt(3)
