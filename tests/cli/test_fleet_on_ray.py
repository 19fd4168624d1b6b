"""Runs on a Ray cluster: any worker, node or driver may die, and the results are the same bits."""

from __future__ import annotations

import json
import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from ray_cluster import Killer, SmallCluster, composerl, wait_for
from recipes.harness import (
    RECIPES,
    SMALL,
    load_recipe,
    metrics,
    run_in_process,
    small_config,
    weights,
)

from composerl.bookkeeping.owner import owner_of
from composerl.config import config_to_dict

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray"),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to find workers"),
]

SLEEPY = Path(__file__).with_name("sleepy.py")
#: What harness.SMALL would change, as the recipe has it; and no need to wait.
SLEEPY_SMALL = {"log_every": 5, "eval_every": 50, "save_every": 10, "pause": 0.0}
PATHS = {path.stem: path for path in RECIPES}
NEEDS = {"dreamer_breakout": "ale_py", "dreamer_crafter": "crafter"}


@pytest.fixture(scope="module")
def cluster():
    small = SmallCluster()
    yield small
    small.close()


def settings(name, **changes):
    """Small settings of a recipe, as YAML has them."""
    config = small_config(load_recipe(PATHS[name]), None, **changes)
    known = {*SMALL, *changes, "env_kwargs"} & {*config_to_dict(config)}
    return {key: value for key, value in config_to_dict(config).items() if key in known}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The same runs, here and in one piece."""
    made = {}

    def run(path, seed, **changes):
        key = (path, seed, *changes.items())
        if key not in made:
            made[key] = tmp_path_factory.mktemp(path.stem) / "run"
            assert run_in_process(path, made[key], seed=seed, **changes) == 0
        return made[key]

    return run


def test_workers_killed_at_random(cluster, undisturbed, tmp_path):
    """Six of them, of a run offline and one online."""
    league(
        cluster,
        ["iql_pendulum", "iqn_cartpole"],
        (6, 6),
        (0.3, 1.5),
        undisturbed,
        tmp_path,
        steps=300,
    )


@pytest.mark.slow
def test_every_recipe_with_workers_killed_at_random(cluster, undisturbed, tmp_path):
    names = [name for name in PATHS if find_spec(NEEDS.get(name, "torch"))]
    league(cluster, names, (40, 100), (1, 5), undisturbed, tmp_path)


def league(cluster, names, kills, pause, undisturbed, tmp_path, **changes):
    """So many workers die; every policy is that of an undisturbed run, none is lost or twice."""
    recipes = {name: {"small": settings(name, **changes)} for name in names}
    file = tmp_path / "league.yaml"
    file.write_text(yaml.safe_dump({"seeds": [0], "recipes": recipes}))
    killer = Killer(cluster, tmp_path / "out", kills[1], pause)
    words = ["--out", "out", "--on", f"ray={cluster.address}"]
    driver = composerl("league", file, *words, cwd=tmp_path)
    killer.start()
    out, err = driver.communicate(timeout=3600)
    killer.stop()
    assert driver.returncode == 0, err
    assert len(killer.victims) >= kills[0], killer.victims
    print(f"{len(killer.victims)} workers were killed: {sorted(killer.victims)}")
    # Who is killed when all is written, at the very end, needs no further attempt.
    deaths = len(killer.victims)
    assert deaths - len(names) <= err.count("; going on from step") <= deaths, err
    place = tmp_path / "out"
    for name in names:
        run, whole = place / name / "small" / "seed0", undisturbed(PATHS[name], 0, **changes)
        assert_undisturbed(run, whole)
        assert err.count(f"\n{name}/small/seed0: return ") == 1, err
    results = json.loads((place / "results.json").read_text())
    assert [(row["recipe"], list(row["returns"])) for row in results] == [
        (name, ["seed0"]) for name in names
    ]
    assert not list(place.glob("**/.*.tmp"))
    assert not list(place.glob(".driver-*"))
    assert "ray" not in out.lower()


@pytest.mark.parametrize(
    ("words", "environ", "expected"),
    [
        (
            ["--threads", 2],
            {},
            "seed 0 asks for 2 cores and 0 GPUs, but the nodes have 1 cores",
        ),
        (
            ["--gpus", 1],
            {},
            "seed 0 asks for 1 cores and 1 GPUs, but the nodes have 1 cores",
        ),
        ([], {"RAY_AUTH_TOKEN": "1" * 64}, "the cluster does not accept this shell's token"),
    ],
    ids=["cores", "gpus", "token"],
)
def test_what_a_cluster_refuses(words, environ, expected, cluster, tmp_path):
    words = ["--seeds", 0, 1, "--out", "out", "--on", f"ray={cluster.address}", *words]
    driver = composerl("run", SLEEPY, *words, cwd=tmp_path, environ=environ)
    out, err = driver.communicate(timeout=120)
    assert driver.returncode == 2
    assert (out, err.count("\n")) == ("", 1), err
    assert err.startswith("error: ")
    assert expected in err
    assert not list(tmp_path.glob("out/*"))


def saved(run):
    """Steps of the checkpoints of a run."""
    return [int(path.stem[5:]) for path in (run / "checkpoints").glob("step-*")]


def test_a_driver_stopped_and_killed_goes_on_with_resume(cluster, undisturbed, tmp_path):
    """First by Ctrl-C, which leaves a checkpoint; then by SIGKILL, which takes its worker along."""
    run = tmp_path / "out" / "seed0"
    words = ["--seeds", 0, "--steps", 200, "--out", "out", "--on", f"ray={cluster.address}"]

    def start(*more):
        return composerl("run", SLEEPY, *words, *more, cwd=tmp_path)

    driver = start()
    wait_for(lambda: saved(run))
    driver.send_signal(signal.SIGINT)
    _, err = driver.communicate(timeout=120)
    assert driver.returncode == 130, err
    assert "stopped; go on with: composerl run" in err
    assert err.rstrip().endswith("--resume")
    assert not (run / "summary.json").exists()
    stopped = max(saved(run))

    again = start()
    assert "add --resume to go on" in again.communicate(timeout=120)[1]
    assert again.returncode == 2

    driver = start("--resume")
    wait_for(lambda: max(saved(run)) > stopped)
    driver.kill()
    driver.communicate()
    driver = start("--resume")
    _, err = driver.communicate(timeout=300)
    assert driver.returncode == 0, err
    assert_undisturbed(run, undisturbed(SLEEPY, 0, **SLEEPY_SMALL, steps=200))

    driver = start("--resume")  # nothing is left to do
    out, err = driver.communicate(timeout=120)
    assert driver.returncode == 0
    assert "1 of them finished before" in err
    assert "seed 0: return" not in err
    assert "sleepy, final return" in out


def test_a_node_that_was_taken_for_dead_comes_back(cluster, undisturbed, tmp_path):
    """It is paused, with a run on it, which Ray takes for its death; the run goes on elsewhere."""
    words = ["--seeds", 0, 1, "--steps", 400, "--out", "out", "--on", f"ray={cluster.address}"]
    driver = composerl("run", SLEEPY, *words, cwd=tmp_path)
    runs = [tmp_path / "out" / "seed0", tmp_path / "out" / "seed1"]
    wait_for(lambda: all(saved(run) for run in runs))
    (run,) = [run for run in runs if cluster.node_of(owner_of(run)["pid"])[0] == 1]
    worker = owner_of(run)["pid"]
    raylet = cluster.node_of(worker)[1]
    for process in (worker, raylet):
        os.kill(process, signal.SIGSTOP)
    try:
        _, err = driver.communicate(timeout=300)
        assert driver.returncode == 0, err
        assert err.count("its node does not answer any more; going on from step") == 1, err
        before = content(run)
        os.kill(worker, signal.SIGCONT)
        wait_for(lambda: "was taken over by" in run.with_name(f"{run.name}.log").read_text())
    finally:
        os.kill(raylet, signal.SIGCONT)
    wait_for(lambda: not Path(f"/proc/{worker}").exists())
    assert content(run) == before
    for seed, run in enumerate(runs):
        assert_undisturbed(run, undisturbed(SLEEPY, seed, **SLEEPY_SMALL, steps=400))
    cluster.add_node()


def content(run):
    return {path: path.read_bytes() for path in run.glob("**/*") if path.is_file()}


def assert_undisturbed(run, whole):
    assert weights(run) == weights(whole), run
    assert metrics(run) == metrics(whole), run
