"""Every command on bad input: one sentence, a non-zero exit, no traceback."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

#: Commands that take a run, as they are typed after its name.
ON_A_RUN = {
    "evaluate": ["evaluate", "RUN"],
    "predict": ["predict", "RUN", "--obs", "[0, 0, 0]"],
    "lines": ["predict", "RUN"],
    "export": ["export", "RUN", "-o", "policy.onnx"],
    "plot": ["plot", "RUN", "-o", "curves.png"],
    "report": ["report", "RUN", "-o", "report.html"],
    "compare": ["compare", "RUN", "RUN"],
}


def assert_refused(result, *words):
    assert result.code not in (0, None)
    assert result.out == ""
    assert result.err.startswith("error: "), result.err
    assert result.err.count("\n") == 1, result.err
    for word in words:
        assert word in result.err, result.err


def bad_runs(tmp_path, run):
    """Places that are no run, or a broken one, by name."""
    places = {"missing": tmp_path / "missing"}
    places["empty"] = tmp_path / "empty"
    places["empty"].mkdir()
    places["file"] = tmp_path / "file.txt"
    places["file"].write_text("no run\n")
    places["started"] = tmp_path / "started"  # killed before anything but its config was written
    places["started"].mkdir()
    shutil.copy(run / "config.yaml", places["started"])
    (places["started"] / "checkpoints").mkdir()
    return places


@pytest.mark.parametrize("command", ON_A_RUN)
@pytest.mark.parametrize("kind", ["missing", "empty", "file", "started"])
def test_what_is_no_run_is_refused(cli, tmp_path, run, monkeypatch, command, kind):
    monkeypatch.chdir(tmp_path)
    place = bad_runs(tmp_path, run)[kind]
    words = [str(place) if word == "RUN" else word for word in ON_A_RUN[command]]
    assert_refused(cli(*words, stdin="[0, 0, 0]\n"), place.name)
    assert not list(tmp_path.glob("policy.*"))
    assert not list(tmp_path.glob("curves.*"))


@pytest.mark.parametrize("command", [c for c in ON_A_RUN if c != "compare"])
def test_half_a_run_is_used_as_far_as_it_got(cli, tmp_path, half, monkeypatch, command):
    """From its newest checkpoint, and from the rows that were written whole."""
    monkeypatch.chdir(tmp_path)
    words = [str(half) if word == "RUN" else word for word in ON_A_RUN[command]]
    result = cli(*words, stdin="[0, 0, 0]\n")
    assert result.code == 0, result.err


def test_half_a_run_has_no_final_score(cli, half, run):
    assert_refused(cli("compare", half, run), "has not finished")


@pytest.mark.parametrize("command", ["evaluate", "predict", "export"])
@pytest.mark.parametrize("damage", ["newer", "cut", "foreign"])
def test_a_policy_of_another_version_or_damaged(cli, tmp_path, run, monkeypatch, command, damage):
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    content = (run / "policy.safetensors").read_bytes()
    if damage == "newer":
        content = content.replace(rb"\"format\": 3", rb"\"format\": 9")
    elif damage == "cut":
        content = content[: len(content) // 2]
    else:
        content = b"PK\x03\x04" + bytes(100)
    (other / "policy.safetensors").write_bytes(content)
    words = [str(other) if word == "RUN" else word for word in ON_A_RUN[command]]
    expected = "update composerl" if damage == "newer" else "policy.safetensors"
    assert_refused(cli(*words), expected)


@pytest.mark.parametrize("command", ["plot", "report", "compare"])
@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("config.yaml", "a: [", "not valid YAML"),
        ("config.yaml", "!!python/object/apply:os.getcwd []", "not valid YAML"),
        ("config.yaml", "just words", "key: value"),
        ("summary.json", "{", "not valid JSON"),
        ("summary.json", "[]", "must hold a JSON object"),
        ("metadata.json", "nonsense", "not valid JSON"),
    ],
)
def test_files_of_a_run_that_say_nothing(
    cli, tmp_path, run, monkeypatch, command, file, content, told
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / file).write_text(content)
    words = ["run" if word == "RUN" else word for word in ON_A_RUN[command]]
    assert_refused(cli(*words), told, file)


def test_metrics_that_are_broken_in_the_middle(cli, tmp_path, run):
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_bytes(b"{broken\n" + path.read_bytes())
    assert_refused(cli("plot", tmp_path / "run", "-o", tmp_path / "a.png"), "line 1")


@pytest.mark.parametrize("command", ["plot", "report"])
def test_no_such_key_names_those_there_are(cli, tmp_path, run, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    assert_refused(cli(command, run, "--key", "eval/retrun"), "'eval/retrun'", "eval/return")
    assert_refused(cli(command, run, "--group-by", "nothing"), "--group-by nothing", "expectile")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["plot", "RUN", "-o", "curves.txt"], "must end in .png"),
        (["plot", "RUN", "-o", "no/such/curves.png"], "there is no directory"),
        (["plot"], "one run directory or more"),
        (["report", "RUN", "-o", "report.pdf"], "must end in .html"),
        (["export", "RUN", "-o", "policy"], "neither .onnx nor .pt2"),
        (["export", "RUN", "-o", "no/such/policy.pt2"], "does not exist"),
        (["evaluate", "RUN", "--episodes", "0"], "at least 1"),
        (["evaluate", "RUN", "--video", "a.avi"], "GIF or MP4"),
        (["evaluate", "RUN", "--video", "no/such/a.gif"], "no such directory"),
        (["predict", "RUN", "--obs", "[1, 2"], "--obs is not valid JSON"),
        (["predict", "RUN", "--obs", "[1, 2]"], "expected (3,)"),
        (["predict", "RUN", "--obs", '["a", "b", "c"]'], "must be numbers"),
        (["predict", "RUN", "--obs", '{"a": 1}'], 'has no "observation"'),
        (["predict", "RUN", "--obs", "[1,2,3]", "--npz", "a.npz"], "cannot be given together"),
        (["predict", "RUN", "--npz", "missing.npz"], "there is no such file"),
        (["predict", "RUN", "--npz", "two.npz"], "it has a, b"),
        (["predict", "RUN", "--npz", "text.npz"], "not a readable npz"),
        (["recipes", "copy", "nothing", "x.py"], "there is no recipe 'nothing'"),
        (["recipes", "copy"], "needs a name"),
        (["recipes", "copy", "iql_pendulum", "no/such/x.py"], "no such directory"),
        (["run", "iql_pendulm"], "did you mean iql_pendulum?"),
        (["run", "iql"], "did you mean iql_pendulum?"),
        (["run", "missing.py"], "no such recipe file"),
        (["run", "text.py"], "it has no Config"),
        (["run", "iql_pendulum", "--expectile", "2", "--dataset-size", "500"], "expectile"),
        (["run", "iql_pendulum", "--seeds", "0", "1", "--jobs", "0"], "--jobs"),
        (["run", "iql_pendulum", "--seeds", "0", "0"], "--seeds must differ"),
        (["run", "iql_pendulum", "--seeds", "0", "--seed", "1"], "--seed and --seeds"),
        (["run", "iql_pendulum", "--seeds", "0", "--stepz", "1"], "did you mean --steps"),
        (["run", "iql_pendulum", "--seeds", "0", "--out", "text.py"], "is a file"),
        (["sweep", "iql_pendulum"], "several values"),
        (["sweep", "iql_pendulum", "--lr", "1e-3", "1e-4", "--trials", "0"], "--trials"),
        (["sweep", "iql_pendulum", "--lrr", "1e-3", "1e-4"], "unknown flag --lrr"),
        (["sweep", "iql_pendulum", "--lr", "1e-3", "1e-3"], "twice"),
        (["sweep", "iql_pendulum", "--seed", "1", "2"], "own business"),
        (["sweep", "iql_pendulum", "--lr", "1", "2", "--out", "text.py"], "is a file"),
        (["data", "info", "missing.npz"], "does not exist"),
        (["data", "info", "two.npz"], "no observations"),
        (["data", "info", "text.py"], "expected .npz"),
        (["data", "make", "Nothing-v0", "-o", "x.npz"], "Nothing"),
        (["data", "make", "Acrobot-v1", "-o", "x.npz"], "Acrobot-v1"),
        (["data", "make", "CartPole-v1", "--size", "10", "-o", "two.npz"], "exists already"),
        (["data", "make", "CartPole-v1", "--size", "10", "-o", "a.csv"], "'.csv'"),
        (["data", "convert", "two.npz", "-o", "b.hdf5"], "no observations"),
        (["data", "make", "CartPole-v1", "-o", "x.npz", "--env-kwargs", "5"], "JSON object"),
        (["data", "make", "Nope-v1", "-o", "x.npz"], "environment 'Nope-v1' cannot be made"),
        (["data", "mak"], "there is no command 'mak': did you mean make?"),
        (["train", "iql_pendulum"], "there is no command 'train': did you mean run?"),
        (["evalute", "RUN"], "there is no command 'evalute': did you mean evaluate?"),
        (["evaluate"], "give one run directory or more"),
        (["predict", "RUNS"], "holds 2 runs, name one of them: RUN, "),
        (["plot", "RUN", "--x", "foo"], "--x must be one of 'steps', 'updates', 'time', got 'foo'"),
        (["run", "iql_pendulum", "--steps", "1e5x"], "--steps: expected a whole number, got"),
        (["run", "iql_pendulum", "--steps", "1.5"], "--steps: expected a whole number, got '1.5'"),
        (["run", "iql_pendulum", "--lr", "much"], "--lr: expected a number, got 'much'"),
        (["run", "iql_pendulum", "--device", "mps"], "the 'MPS' backend\n"),
        (["run", "iql_pendulum", "--out", "RUN"], "holds a run already"),
    ],
)
def test_bad_arguments(cli, tmp_path, run, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    np.savez("two.npz", a=np.zeros(2), b=np.zeros(2))
    (tmp_path / "text.npz").write_text("not an archive")
    (tmp_path / "text.py").write_text("print\n")
    before = sorted(tmp_path.iterdir())
    given = {"RUN": str(run), "RUNS": str(run.parent)}
    result = cli(*(given.get(word, word) for word in words))
    assert_refused(result, told.replace("RUN", str(run)))
    assert len(result.err) < 500
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "words",
    [
        ["run", "iql_pendulum", "--gamma", "2"],
        ["run", "iql_pendulum", "--out", "."],
        ["recipe", "--out", "."],
        ["evaluate", "nosuch"],
        ["predict", "nosuch"],
    ],
)
def test_what_needs_no_torch_is_told_before_it_is_imported(tmp_path, words):
    (tmp_path / "file").touch()
    call = "from composerl.cli import main; main(sys.argv[1:])"
    if words[0] == "recipe":
        call = "from composerl.catalog import load_recipe\nfrom composerl.config import cli\n"
        call += "made = load_recipe('iql_pendulum'); cli(made.Config, made.main, sys.argv[2:])"
    code = f"import sys, atexit\natexit.register(lambda: print('torch' in sys.modules))\n{call}"
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "False\n"), done.stderr
    assert done.stderr.startswith("error: ")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[1, 2", "line 2 is not valid JSON"),
        ("[1, 2]", "line 2: observation has shape (2,)"),
        ('{"obs": [1, 2, 3]}', 'line 2 has no "observation"'),
        ("null", "line 2: observation must be numbers"),
    ],
)
def test_a_bad_line_is_named_between_the_good_ones(cli, run, line, told):
    result = cli("predict", run, stdin=f"[1, 0, 0]\n{line}\n[1, 0, 0]\n")
    assert result.code == 2
    first, wrong, last = map(json.loads, result.out.splitlines())
    assert wrong["error"].startswith(told)
    assert "action" in first
    assert first == last


@pytest.mark.parametrize("words", [["recipes"], ["--help"], ["data", "info", "a.npz"]])
def test_a_closed_pipe_ends_in_a_sentence(tmp_path, words):
    """The reader is gone before the first byte."""
    np.savez(
        tmp_path / "a.npz", observations=np.eye(3), actions=np.zeros((3, 1)),
        rewards=np.zeros(3), terminals=np.zeros(3, bool), timeouts=np.array([False, False, True]),
    )  # fmt: skip
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "composerl", *words],
        stdout=write, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    os.close(write)
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1, done.stderr
    assert "closed it before all was written" in done.stderr


def test_a_bug_keeps_its_traceback(cli, run, monkeypatch):
    def broken(*_, **__):
        return 1 / 0

    monkeypatch.setattr("composerl.policy.load", broken)
    with pytest.raises(ZeroDivisionError):
        cli("evaluate", run)


def test_missing_extras_are_named(cli, run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    for name in ("analysis.curves", "bookkeeping.export", "cli.sweep"):
        module = importlib.import_module(f"composerl.{name}")
        monkeypatch.setattr(module, "find_spec", lambda _: None)
    monkeypatch.chdir(tmp_path)
    assert_refused(cli("plot", run), "composerl[plot]")
    assert cli("report", run).code == 0  # a report draws its curves itself
    assert_refused(cli("evaluate", run, "--video", "a.gif"), "composerl[video]")
    assert_refused(cli("export", run, "-o", "a.onnx"), "composerl[export]")
    assert_refused(cli("sweep", "iql_pendulum", "--lr", "1e-3", "1e-4"), "composerl[sweep]")
    helped = cli("sweep", "iql_pendulum", "--help")
    assert (helped.code, "--expectile" in helped.out) == (0, True)
    monkeypatch.setitem(sys.modules, "minatar.gym", None)
    refused = cli("run", "iqn_cartpole", "--env", "MinAtar/Breakout-v1")
    assert refused.err.endswith("; pip install 'composerl[minatar]'\n")
