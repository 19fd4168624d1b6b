"""Many runs at once: deaths and new attempts, what is shown, what is refused; leagues."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray_cluster import wait_for
from recipes.harness import load_recipe as load_small
from recipes.harness import metrics, run_in_process, small_config, weights
from rich.console import Console

from composerl.analysis.runs import read_run
from composerl.bookkeeping import console
from composerl.bookkeeping.owner import owner_of
from composerl.catalog import find_recipe
from composerl.fleet import Ended, Job, cluster, driver, read_progress, worker
from composerl.fleet.mark import Mark

TOY = Path(__file__).with_name("toy.py")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory with the toy in it."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(TOY, tmp_path)
    return tmp_path


def start(*words):
    """A command in a process of its own, to be killed or interrupted."""
    return subprocess.Popen(
        [sys.executable, "-m", "composerl", *map(str, words)], stderr=subprocess.PIPE, text=True
    )


# ---- attempts


def test_who_dies_is_gone_on_with_until_done(cli, here):
    result = cli("run", "toy.py", "--seeds", 0, 2, "--deaths", 3, "--jobs", 2, "--out", "out")
    assert result.code == 0, result.err
    for seed in (0, 2):
        attempts = (here / "out" / f"seed{seed}" / "attempts").read_text().split()
        assert attempts == ["new", "resumed", "resumed", "resumed"]
        for step in (1, 2, 3):
            assert f"seed {seed}: killed by signal 9" in result.err
            assert f"; going on from step {step}" in result.err


def test_who_dies_again_and_again_without_a_checkpoint_is_given_up(cli, here):
    result = cli("run", "toy.py", "--seeds", 0, "--deaths", 99, "--no-saves", "--out", "out")
    assert result.code == 2
    assert "10 times in a row without a new checkpoint (--save-every)" in result.err
    assert len((here / "out" / "seed0" / "attempts").read_text().split()) == 10


def test_what_is_finished_is_not_done_again(cli, here):
    words = ["run", "toy.py", "--seeds", 0, 2, "--out", "out"]
    assert cli(*words).code == 0
    again = cli(*words)
    assert (again.code, again.err.count("\n")) == (2, 1)
    assert "add --resume to go on with them" in again.err
    more = cli("run", "toy.py", "--seeds", 0, 2, 3, "--out", "out", "--resume")
    assert more.code == 0, more.err
    assert "3 runs, 2 of them finished before" in more.err
    attempts = {path.parent.name: path.read_text() for path in here.glob("out/*/attempts")}
    assert attempts == {"seed0": "new\n", "seed2": "new\n", "seed3": "new\n"}
    longer = cli(*words, "--resume", "--steps", 5)
    assert longer.code == 0, longer.err
    assert "seed 0: return" in longer.err
    assert "seed 0: step 1, return" not in longer.err  # that was before
    assert (here / "out" / "seed0" / "attempts").read_text() == "new\nresumed\n"


def test_ctrl_c_stops_all_and_says_how_to_go_on(here):
    process = start("run", "toy.py", "--seeds", 0, 2, 3, "--jobs", 2, "--pause", 30, "--out", "out")
    wait_for(lambda: len(list(here.glob("out/*/attempts"))) == 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "2 runs save a checkpoint; Ctrl-C again ends them at once" in err
    assert err.count(": stopped") == 2
    assert "stopped; go on with: composerl run toy.py --seeds 0 2 3" in err
    assert err.rstrip().endswith("--out out --resume")
    assert not (here / "out" / "seed3").exists()
    assert not list(here.glob("out/.driver-*"))


def test_a_driver_that_was_killed_leaves_runs_which_the_next_one_takes_over(tmp_path, monkeypatch):
    """They are processes of their own; what they still write goes nowhere."""
    monkeypatch.chdir(tmp_path)
    path = find_recipe("iql_pendulum")
    changes = {"steps": 300, "eval_every": 300}
    assert run_in_process(path, tmp_path / "whole", **changes) == 0
    config = small_config(load_small(path), tmp_path / "whole", **changes)
    names = ["steps", "log_every", "eval_every", "eval_episodes", "save_every", "batch_size",
             "dataset_size", "wandb"]  # fmt: skip
    flags = [f"--{name.replace('_', '-')}={getattr(config, name)}" for name in names]
    words = ["run", "iql_pendulum", "--seeds", 0, "--out", "out", "--hidden=[16, 16]", *flags]
    process, run = start(*words), tmp_path / "out" / "seed0"
    wait_for(lambda: list(run.glob("checkpoints/step-*")))
    late = owner_of(run)["pid"]
    os.kill(late, signal.SIGSTOP)
    process.kill()
    process.communicate()
    process = start(*words, "--resume")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    os.kill(late, signal.SIGCONT)
    log = tmp_path / "out" / "seed0.log"
    wait_for(lambda: f"was taken over by {socket.gethostname()}" in log.read_text())
    assert weights(run) == weights(tmp_path / "whole")
    assert metrics(run) == metrics(tmp_path / "whole")


# ---- one driver at a time


def test_two_drivers_do_not_share_runs(cli, here):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        mark = Mark(here / "out")
        mark.path.write_text(json.dumps({"host": socket.gethostname(), "pid": other.pid}))
        words = ["run", "toy.py", "--seeds", 0, "--out", "out"]
        result = cli(*words)
        assert result.code == 2
        assert f"the runs in out are driven by process {other.pid}" in result.err
        other.communicate(b"\n")
    assert cli(*words).code == 0  # that one is dead
    assert not list(here.glob("out/.driver-*"))


def test_a_driver_elsewhere_lives_as_long_as_it_gives_signs(tmp_path):
    mine, other = Mark(tmp_path), Mark(tmp_path)
    other.path.write_text(json.dumps({"host": "elsewhere", "pid": 1}))
    assert mine.others() == {other.name: {"host": "elsewhere", "pid": 1}}
    now = mine.path.stat().st_mtime
    os.utime(other.path, (now - 100, now - 100))
    assert mine.others() == {}
    assert not other.path.exists()


# ---- what is shown


def test_progress_is_read_from_what_a_run_writes(tmp_path):
    assert read_progress(tmp_path / "nothing").row("a", 0)[-2:] == ("waiting", "")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-000000000200.safetensors").touch()
    (tmp_path / "metadata.json").write_text('{"total": 10000}')
    (tmp_path / ".owner").write_text('{"token": "x", "host": "node7", "pid": 1}')
    rows = [{"step": 100 * n, "train/x": n, "time/seconds": 0.5 * n} for n in range(1, 2000)]
    rows[-3]["eval/return"] = -12.34
    text = "".join(json.dumps(row) + "\n" for row in rows) + '\0\0\n{"step": 200000, "tra'
    (tmp_path / "metrics.jsonl").write_text(text)
    progress = read_progress(tmp_path)
    assert (progress.step, progress.saved, progress.rate) == (199900, 200, 200.0)
    assert progress.evaluations == ((199700, -12.34),)
    shown = read_progress(tmp_path).row("a", 2)
    assert shown == ("a", "199,900 of 10,000", "-12.3", "200/s", "0:00:00", "node7", "2")


def test_a_terminal_shows_a_table_of_what_goes_on(cli, here, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(console, "_console", Console(file=screen, force_terminal=True, width=120))
    monkeypatch.setattr(driver, "WATCH", 0.1)
    words = ["--seeds", 0, 2, "--pause", "0.3", "--jobs", 2, "--deaths", 1, "--out", "out"]
    assert cli("run", "toy.py", *words).code == 0
    text = screen.getvalue()
    for word in ("run", "step", "return", "rate", "left", "node", "restarts", "seed 2", "-0.7"):
        assert word in text


# ---- leagues


def test_a_league_runs_a_grid_and_tells_what_came_out(cli, here):
    (here / "presets").mkdir()
    (here / "presets" / "slow.yaml").write_text("lr: 0.2\ntau: 0.0\n")
    (here / "league.yaml").write_text(
        "seeds: [0, 2]\n"
        "settings: {width: 3}\n"
        "scale: {Toy-v0: [-0.1, 0.0]}\n"
        "recipes:\n"
        "  toy.py:\n"
        "    slow: presets/slow.yaml\n"
        "    best: {lr: 0.3, tau: 0.0, hidden: [2, 2], deaths: 1}\n"
    )
    result = cli("league", "league.yaml", "--out", "out", "--jobs", 2)
    assert result.code == 0, result.err
    results = json.loads((here / "out" / "results.json").read_text())
    assert [(r["recipe"], r["preset"], r["env"]) for r in results] == [
        ("toy", "slow", "Toy-v0"),
        ("toy", "best", "Toy-v0"),
    ]
    assert results[1]["returns"] == {"seed0": 0.0, "seed2": 0.002}
    assert results[1]["iqm"] == pytest.approx(0.001)
    assert results[1]["interval"] == pytest.approx([0.0, 0.002])
    run = read_run(here / "out" / "toy" / "best" / "seed2")
    assert (run.config["width"], run.config["hidden"]) == (3, [2, 2])
    assert (run.final()["group"], run.final()["resumed"]) == ("out", True)
    for words in ("toy slow", "toy best", "interquartile mean", "Toy-v0", "optimality gap"):
        assert words in result.out
    # slow: -0.1 and -0.098 are 0 and 0.02 on the scale; best: 1 and 1.02; the middle two of four.
    assert "0.510 (" in result.out
    assert (here / "out" / "profiles.png").stat().st_size > 1000
    again = cli("league", "league.yaml", "--out", "out", "--resume")
    assert again.code == 0
    assert "4 runs, 4 of them finished before" in again.err
    assert json.loads((here / "out" / "results.json").read_text()) == results


def test_a_league_s_failures_do_not_stop_the_others(cli, here):
    (here / "league.yaml").write_text("seeds: [0, 1]\nrecipes:\n  toy.py:\n")
    result = cli("league", "league.yaml")
    assert result.code == 2
    assert "1 of 2 runs failed: toy/default/seed1; see their .log files" in result.err
    assert list(json.loads(Path("runs/league/league/results.json").read_text())[0]["returns"]) == [
        "seed0"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("recipe: toy.py", "unknown key 'recipe': did you mean recipes?"),
        ("seeds: [0]", "recipes must name one recipe or more, got None"),
        ("recipes: {toy.py: }\nseeds: [0, 0]", "seeds must be a list of different whole numbers"),
        ("recipes: {toy.py: }\nseeds: [0.5]", "seeds must be a list of different whole numbers"),
        ("recipes: {toy.py: [{lr: 1}]}", "must be files, or names with settings"),
        ("recipes: {toy.py: {a: 3}}", "league.yaml: toy.py: a must be settings or a file, got 3"),
        ("recipes: {toy.py: {a: 3}}", "settings need a name: 'toy.py: {mine: {a: 3}}'"),
        ("recipes: {toy.py: {a: {lerning: 3}}}", "unknown flag --lerning"),
        ("recipes: {toy.py: missing.yaml}", "there is no such file"),
        ("recipes: {tory.py: }", "tory.py: there is no such recipe file"),
        ("recipes: {iql_pendul: }", "did you mean iql_pendulum?"),
    ],
)
def test_mistakes_in_a_league_s_file(text, expected, cli, here):
    (here / "league.yaml").write_text(text)
    result = cli("league", "league.yaml", "--out", "out")
    assert result.code == 2
    assert expected in result.err
    assert not (here / "out").exists()


# ---- clusters, as far as they can be had without one


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--on", "slurm"], "--on must be ray or ray=ADDRESS, got 'slurm'"),
        (["--on", "ray="], "--on must be ray or ray=ADDRESS"),
        (["--gpus", "1"], "--gpus is for --on ray"),
        (["--on", "ray", "--gpus", "nan"], "--gpus is for --on ray and at least 0, got nan"),
        (["--jobs", "0"], "--jobs must be at least 1"),
        (["--on", "ray=127.0.0.1:1"], "--on ray=127.0.0.1:1: no Ray cluster answers"),
        (["--on", "ray=somewhere"], "expected auto or HOST:PORT"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(words, expected, cli, here):
    result = cli("run", "toy.py", "--seeds", 0, 2, *words, "--out", "out")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert expected in result.err
    assert not (here / "out").exists()


def test_one_run_needs_no_cluster(cli, here):
    result = cli("run", "toy.py", "--on", "ray")
    assert "--on is for several runs: name their seeds" in result.err


def test_without_ray_a_sentence_says_what_to_install(cli, here, monkeypatch):
    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "ray":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Blocker(), *sys.meta_path])
    result = cli("run", "toy.py", "--seeds", 0, 2, "--on", "ray", "--out", "out")
    assert result.code == 2
    assert result.err == "error: --on ray: Ray is not installed: pip install 'composerl[ray]'\n"


def test_ray_is_imported_by_nobody_who_does_not_ask(here):
    code = (
        "import sys; from composerl.cli import main; sys.argv = ['composerl']\n"
        "main(['run', 'toy.py', '--seeds', '0', '--out', 'out'])\n"
        "print([name for name in ('ray', 'torch', 'optuna') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_worker_that_does_not_share_the_storage_says_what_to_mount(tmp_path):
    job = {"name": "a", "recipe": "toy.py", "directory": tmp_path / "a", "flags": ()}
    order = {"job": job, "cwd": str(tmp_path), "mark": tmp_path / ".driver-x", "environ": {}}
    said = worker.work(order, "node7")
    assert f"node7 does not see {tmp_path / '.driver-x'}" in said
    assert "mount the same storage at the same place on all nodes" in said
    order["cwd"] = str(tmp_path / "gone")
    assert f"node7 does not see {tmp_path / 'gone'}" in worker.work(order, "node7")


def test_versions_are_compared():
    mine = cluster.installed()
    assert cluster.differences(mine, "node7") == ""
    theirs = mine | {"python": "3.9.1", "torch": "1.0"}
    said = cluster.differences(theirs, "node7")
    assert f"node7 has python {mine['python']} instead of 3.9.1, torch {mine['torch']}" in said
    assert "install the same versions everywhere" in said
    assert "+" not in mine["torch"], "a build for another device is the same version"


@pytest.fixture
def workers(monkeypatch, tmp_path):
    """Workers of a cluster that only tells what a task came to."""
    ray = pytest.importorskip("ray")
    fake = SimpleNamespace(exceptions=ray.exceptions, wait=lambda refs, timeout: (refs, []))
    fake.remote = lambda **options: (
        lambda function: SimpleNamespace(
            options=lambda **more: SimpleNamespace(remote=lambda *args: "ref")
        )
    )
    fake.shutdown = lambda: None
    fake.nodes = lambda: [
        {"NodeID": "a", "Alive": True, "Resources": {"CPU": 4.0}},
        {"NodeID": "b", "Alive": True, "Resources": {"CPU": 8.0, "GPU": 1.0}},
        {"NodeID": "c", "Alive": False, "Resources": {}},
    ]
    monkeypatch.setattr(cluster, "connect", lambda purpose, address: fake)

    def make(gpus=0.0, result=None):
        def get(ref):
            if isinstance(result, Exception):
                raise result
            return result

        fake.get = get
        found = cluster.RayWorkers("auto", tmp_path / "mark", gpus)
        found.start(Job("a", "toy.py", tmp_path / "a", ()), {})
        return found

    return make


def test_what_a_task_came_to(workers, tmp_path):
    errors = pytest.importorskip("ray").exceptions
    (tmp_path / "a.log").write_text("hello\nerror: it is broken\n")
    assert workers(result=0).ended("ref") == Ended("done")
    assert workers(result=130).ended("ref") == Ended("stopped")
    assert workers(result=2).ended("ref").why == "failed with exit code 2: error: it is broken"
    memory = workers(
        result=errors.OutOfMemoryError("Memory was 15GB used / 16GB limit (0.9)\n..")
    ).ended
    ended = memory("ref")
    assert (ended.how, ended.tries) == ("died", 3)
    assert "its node ran out of memory (15GB used / 16GB limit): run fewer at a time" in ended.why
    assert workers(result=errors.WorkerCrashedError()).ended("ref").how == "died"
    assert workers(result=errors.NodeDiedError("gone")).ended("ref") == Ended("died", "gone")
    assert workers(result=errors.TaskCancelledError()).ended("ref").how == "stopped"
    with pytest.raises(ValueError, match="node7 does not see"):
        workers(result="node7 does not see the storage").ended("ref")
    with pytest.raises(RuntimeError, match="the Ray node of this machine has died"):
        workers(result=errors.LocalRayletDiedError()).ended("ref")


def test_cores_and_gpus_are_counted_by_node(workers):
    def slots(cores, helpers=0, gpus=0.0):
        return workers(gpus).slots(Job("a", "toy.py", Path("a"), (), cores, helpers))

    assert [slots(cores) for cores in (1, 3, 8)] == [12, 3, 1]
    assert [slots(cores, gpus=0.25) for cores in (1, 4)] == [4, 2]
    assert [slots(1, helpers) for helpers in (1, 2, 5, 11, 12)] == [6, 4, 2, 1, 0]
    assert (slots(8), slots(9), slots(1, gpus=2.0)) == (1, 0, 0)


def test_more_than_a_cluster_has_is_refused(cli, here, workers, monkeypatch):
    monkeypatch.setattr(driver, "RayWorkers", lambda address, mark, gpus: workers(gpus))
    words = ["run", "toy.py", "--seeds", 0, "--on", "ray", "--out", "out"]
    result = cli(*words, "--threads", 9)
    expected = "seed 0 asks for 9 cores and 0 GPUs, but the nodes have 4 cores and 0 GPUs, 8 cores"
    assert expected in result.err
    assert "1 cores and 2 GPUs" in cli(*words, "--gpus", 2).err
