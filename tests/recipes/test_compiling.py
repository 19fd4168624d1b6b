"""``--compile``: how many graphs a run has, what ``auto`` decides, and who follows it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
import yaml
from harness import RECIPES, load_recipe, small_config

from composerl.bookkeeping.compiling import COSTS, decide, mark_warm, warm_marker
from composerl.cli.warmup import shortest

PATHS = {path.stem: path for path in RECIPES}


@pytest.fixture
def graphs(monkeypatch):
    """The number of graphs compiled so far, by a compiler that only traces."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return lambda: torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.parametrize(
    ("name", "number", "options"),
    [
        ("cql_pendulum", 1, {"steps": 4, "online_steps": 6}),
        # One for the updates at which the policy waits, one for the others.
        ("td3bc_pendulum", 2, {"steps": 4, "online_steps": 6}),
        ("gail_cartpole", 2, {"steps": 80, "rollout": 40, "batch_size": 16, "ppo_epochs": 2}),
        ("mbpo_pendulum", 2, {"steps": 60, "warmup": 50, "fit_every": 50, "rollouts": 4}),
    ],
)
def test_one_graph_for_each_update(name, number, options, graphs, tmp_path):
    """Also when the run goes online, when the last batch is smaller, and after a resume."""
    recipe = load_recipe(PATHS[name])
    config = small_config(recipe, tmp_path / "run", compile="on", **options)
    recipe.main(config)
    assert graphs() == number
    torch._dynamo.reset()  # as in a new process
    recipe.main(replace(config, resume=True, steps=config.steps * 2))
    assert graphs() == 2 * number


def test_dreamer_compiles_its_parts_once(graphs, tmp_path):
    """Encoder, decoder, a step of a sequence and one of imagination, actor, and with gradients and
    without them the heads, critic and its average: none anew in later updates, evaluations or
    acting. The same run as without, as this compiler only traces."""
    recipe = load_recipe(PATHS["dreamer_catch"])
    config = small_config(recipe, tmp_path / "run", compile="on", steps=40)
    recipe.main(config)
    number = graphs()
    assert 8 <= number <= 12
    recipe.main(replace(config, out=tmp_path / "longer", steps=80))
    assert graphs() <= 2 * number  # of other networks: as many again, however long the run
    eager = replace(config, out=tmp_path / "eager", compile="off")
    recipe.main(eager)
    rows = [
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in (config.out, eager.out)
    ]
    for one, other in zip(*rows, strict=True):
        for key in one:
            if not key.startswith("time/"):
                assert one[key] == pytest.approx(other[key], rel=1e-4), key


def test_auto_decides_by_the_length_of_the_run(tmp_path):
    """Where the gain is the cost: IQL's cold seconds over its milliseconds an update."""
    recipe = load_recipe(PATHS["iql_pendulum"])
    config = small_config(recipe, tmp_path / "run")
    cost = COSTS["iql"]
    even = int(1000 * cost.cold / cost.gain)
    assert decide(config, "iql_pendulum", {"iql": even + 1})[0]
    assert not decide(config, "iql_pendulum", {"iql": even - 1})[0]
    on, why = decide(config, "iql_pendulum", {"iql": even + 1, "gail": 1})  # two to compile
    assert not on
    assert "compile auto: off" in why
    assert "no figures for mine" in decide(config, "mine", {"mine": 10**9})[1]
    assert "not of cuda" in decide(replace(config, device="cuda"), "iql", {"iql": 10**9})[1]


def test_a_warm_machine_counts_with_less(tmp_path, monkeypatch):
    """For these settings of this recipe; a seed and the length leave the graph as it is."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    recipe = load_recipe(PATHS["iql_pendulum"])
    config = small_config(recipe, tmp_path / "run")
    cost = COSTS["iql"]
    between = {"iql": int(500 * (cost.cold + cost.warm) / cost.gain)}
    on, why = decide(config, "iql_pendulum", between)
    assert not on
    assert "on after composerl warmup" in why
    mark_warm(config, "iql_pendulum")
    assert decide(replace(config, seed=5, steps=9), "iql_pendulum", between)[0]
    assert not decide(replace(config, hidden=(9, 9)), "iql_pendulum", between)[0]


def test_the_decision_is_recorded_and_followed(tmp_path, graphs, monkeypatch, capfd):
    """A run that began eagerly goes on so, though it would now be compiled."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    recipe = load_recipe(PATHS["iql_pendulum"])
    config = small_config(recipe, tmp_path / "run", steps=4)
    recipe.main(config)
    assert "compile auto: off, as 4 updates" in capfd.readouterr().err
    written = tmp_path / "run" / "config.yaml"
    assert yaml.safe_load(written.read_text())["compile"] == "off"
    monkeypatch.setitem(COSTS, "iql", replace(COSTS["iql"], cold=0.0))
    recipe.main(replace(config, resume=True, steps=8))
    assert graphs() == 0
    assert yaml.safe_load(written.read_text())["compile"] == "off"
    # One written before there was a choice.
    written.write_text(written.read_text().replace("compile: 'off'", "compile: false"))
    recipe.main(replace(config, resume=True, compile="off", steps=9))
    recipe.main(replace(config, out=tmp_path / "other"))
    assert yaml.safe_load((tmp_path / "other" / "config.yaml").read_text())["compile"] == "on"
    assert graphs() == 1


def test_warmup_runs_the_updates_and_marks_the_settings(tmp_path, graphs, monkeypatch):
    from composerl.cli import main
    from composerl.config import parse

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    flags = ["--hidden", "8", "8", "--batch-size", "8", "--warmup", "9"]
    main(["warmup", "iqn_cartpole", *flags])
    assert graphs() == 1
    config = parse(load_recipe(PATHS["iqn_cartpole"]).Config, flags)
    assert warm_marker(config, "iqn_cartpole").is_file()
    assert not warm_marker(replace(config, n_step=1), "iqn_cartpole").is_file()


@pytest.mark.parametrize("name", sorted(PATHS))
def test_warmup_knows_the_settings_of_every_recipe(name, tmp_path):
    config = load_recipe(PATHS[name]).Config()
    short = replace(config, **shortest(config, tmp_path / "run"))
    assert (short.compile, short.eval_episodes) == ("on", 1)
    assert getattr(short, "online_steps", 0) == 0


def test_a_run_that_is_not_compiled_imports_no_compiler(tmp_path):
    code = (
        "import sys, composerl\n"
        f"composerl.train('iql_pendulum', steps=2, out={str(tmp_path / 'run')!r}, hidden=(8, 8),\n"
        "    dataset_size=1000, eval_episodes=1, wandb='disabled')\n"
        "print('INDUCTOR', 'torch._inductor.compile_fx' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert "INDUCTOR False" in done.stdout, done.stderr
