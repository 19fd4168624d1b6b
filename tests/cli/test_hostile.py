"""Files and words of somebody who means no good: a sentence or an answer, never a traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import composerl
from composerl.analysis.curves import curve_of
from composerl.analysis.runs import read_run
from composerl.bookkeeping.evaluation import Evaluation, Score
from composerl.bookkeeping.trees import load_tree, save_tree
from composerl.data import read_dataset

DEEP = 100_000
ESCAPE = "\x1b]0;owned\x07\x9b31m"


def one_sentence(result):
    """How a command may end on such input; whatever is printed leaves the terminal alone."""
    assert not {"\x1b", "\x07", "\x9b"} & {*result.out, *result.err}
    if result.code:
        assert result.err.startswith("error: "), result.err
        assert result.err.count("\n") == 1, result.err
    return result.err


# ---- text --------------------------------------------------------------------------------------

FILES = [
    ("config.yaml", "a: " + "[" * DEEP, "not valid YAML"),
    ("config.yaml", "a: " + "{b: " * 60 + "1" + "}" * 60, "deep"),
    ("config.yaml", "a: &a [x]\n" + "".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n"
        for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    ), "characters"),
    ("config.yaml", "a: &a [*a]", "repeats what it is part of"),
    ("config.yaml", "a: 2024-99-99", "not valid YAML"),
    ("config.yaml", "a: !!timestamp x", "not valid YAML"),
    ("config.yaml", "a: " + "9" * 5000, "not valid YAML"),
    ("config.yaml", "a: [0x" + "f" * 5000 + "]", "more than 40 digits"),
    ("config.yaml", "env: [x]", "env must be text"),
    ("config.yaml", "seed: {}", "seed must be a whole number"),
    ("config.yaml", "1: 2", "a key must be text"),
    ("config.yaml", "x" * (1 << 19), "characters"),
    ("metadata.json", "[" * DEEP, "nested too deeply"),
    ("metadata.json", '{"recipe": 5}', "recipe must be text"),
    ("metadata.json", '{"run_id": 5}', "run_id must be text"),
    ("metadata.json", '{"versions": []}', "versions must be a mapping"),
    ("metadata.json", '{"recipe": "\\ud800"}', "surrogates"),
    ("summary.json", '{"final": [1]}', "final must be a mapping"),
    ("summary.json", '{"final": {"return": "x"}}', "return must be a number"),
    ("summary.json", '{"final": {"return": 1, "returns": ["x"]}}', "each of returns"),
    ("summary.json", '{"final": {"return": %s}}' % ("9" * 400), "400 digits"),
    ("summary.json", '{"steps": true}', "steps must be a whole number"),
    ("metrics.jsonl", '{"step": "x"}\n', "step must be a whole number"),
    ("metrics.jsonl", '{"eval/return": 1.0}\n', "line 1 has no step"),
    ("metrics.jsonl", '{"step": 1, "eval/return": [1]}\n', "must be a number or text"),
    ("metrics.jsonl", "[" * DEEP + "\n", "nested too deeply"),
    ("metrics.jsonl", "x" * (1 << 24) + "\n", "line 1"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "content", "told"), FILES)
def test_files_of_a_run(cli, tmp_path, run, monkeypatch, file, content, told):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "run")
    Path("run", file).write_text(content)
    assert told in one_sentence(cli("report", "run"))
    one_sentence(cli("compare", "run", run))


def test_what_a_summary_does_not_say_is_left_out(cli, tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "run")
    told = {"final": {"return": -1.5, "std": None}, "best": {"return": None, "step": None}}
    Path("run/summary.json").write_text(json.dumps(told))
    result = cli("report", "run", "-o", "page.html")
    assert result.code == 0, result.err
    assert "-1.5 ± 0.0" in Path("page.html").read_text()


@pytest.mark.filterwarnings("error:Glyph")  # it repeats the character on the terminal
def test_names_are_drawn_as_they_are(cli, tmp_path, run, monkeypatch):
    r"""``$\frac{`` is no formula that matplotlib knows, and no control character is for us."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "run")
    config = Path("run/config.yaml").read_text()
    Path("run/config.yaml").write_text(config.replace("env: Pendulum-v1", r'env: "$\\frac{"'))
    name = json.dumps({"recipe": r"$\frac{" + ESCAPE})
    Path("run/metadata.json").write_text(name)
    for words in (["plot", "run"], ["report", "run"]):
        result = cli(*words)
        one_sentence(result)
        assert result.code == 0, result.err
    one_sentence(cli("compare", "run", run))


def test_control_characters_do_not_reach_the_terminal(cli, tmp_path, run, capsys):
    from composerl.bookkeeping.console import print_table, say

    say(f"a {ESCAPE} b")
    print_table(ESCAPE, (ESCAPE, "x"), [(ESCAPE, 1)])
    captured = capsys.readouterr()
    assert not {"\x1b", "\x07", "\x9b"} & {*captured.out, *captured.err}
    assert r"\x1b]0;owned\x07\x9b31m" in captured.err
    place = tmp_path / f"run{ESCAPE}"
    place.mkdir()
    assert r"\x1b]0" in one_sentence(cli("evaluate", place))


# ---- policies ----------------------------------------------------------------------------------

WRONG = [
    ({"description": {"arguments": {"hidden": [16384] * 3}}}, "larger than the"),
    ({"description": {"arguments": {"hidden": [4] * 1000}}}, "1000 arguments or layers"),
    ({"description": {"arguments": {"hidden": [10**9]}}}, "1000000000"),
    ({"description": {"arguments": {"hidden": "x"}}}, "cannot be built"),
    ({"description": {"arguments": {"hidden": [None]}}}, "cannot be built"),
    ({"description": {"arguments": 3}}, "arguments must be a mapping"),
    ({"description": {"factory": ["x"]}}, "unknown network"),
    ({"description": {"factory": "dreamer_actor", "arguments": {"size": {"layers": 10**5}}}},
     "is refused"),
    ({"description": [1]}, "description must be a mapping"),
    ({"spaces": {"obs_shape": [10**9, 10**9]}}, "too large"),
    ({"spaces": {"obs_shape": ["a"]}}, "wrong type"),
    ({"spaces": {"obs_shape": [2]}}, "other spaces"),
    ({"spaces": {"obs_dtype": "os"}}, "obs_dtype"),
    ({"spaces": {"low": ["a"]}}, "wrong type"),
    ({"spaces": 5}, "spaces must be a mapping"),
    ({"env": 5}, "env must be text"),
    ({"env_kwargs": [1]}, "env_kwargs must be a mapping"),
    ({"state": {"x": "y"}}, "must be a tensor"),
    ({"state": [1]}, "state must be a mapping"),
    ({"state": {}}, "does not fit the network"),
    ({"state": {3: torch.zeros(3000)}}, "does not fit the network"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "told"), WRONG)
def test_policies_that_do_not_fit_together(cli, tmp_path, run, change, told):
    tree = load_tree(run / "policy.safetensors", "policy")
    for key, value in change.items():
        new = isinstance(value, dict) and key != "state"
        tree[key] = tree[key] | value if new else value
    save_tree(tmp_path / "a.safetensors", "policy", tree)
    assert told in one_sentence(cli("evaluate", tmp_path / "a.safetensors"))
    with pytest.raises(ValueError, match=r"a\.safetensors|network|built"):
        composerl.load(tmp_path / "a.safetensors")


# ---- datasets ----------------------------------------------------------------------------------


def arrays(rows=4):
    return {
        "observations": np.zeros((rows, 3)), "actions": np.zeros((rows, 1)),
        "rewards": np.zeros(rows), "terminals": np.arange(rows) == rows - 1,
    }  # fmt: skip


def lying_npz(path):
    """An array whose header says ten million million rows."""
    np.savez(path, **arrays())
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    honest = members["rewards.npy"]
    members["rewards.npy"] = honest.replace(b"(4,), }" + b" " * 13, b"(10000000000000,), }")
    with zipfile.ZipFile(path, "w") as new:
        for name, content in members.items():
            new.writestr(name, content)


def bomb_npz(path):
    """A gigabyte of zeros that is a megabyte: four of these claim more than there is."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("observations.npy", b"\x93NUMPY\x01\x00v\x00" + b"x" * 118)
        info = file.infolist()[0]
        info.file_size = 1 << 50


def strange_npz(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("observations.npy", b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535)


def hdf5(write):
    def make(path):
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            for key, value in arrays().items():
                file[key] = value
            write(h5py, file, path)

    return make


def loop(h5py, file, path):
    del file["observations"]
    file["observations/again"] = h5py.SoftLink("/observations")


def hard_loop(h5py, file, path):
    del file["observations"]
    group = file.create_group("observations")
    group["a"] = group["b"] = group


def secret(h5py, path):
    with h5py.File(path.with_name("secret.h5"), "w") as other:
        other["x"] = np.zeros((4, 3))


def external(h5py, file, path):
    secret(h5py, path)
    del file["observations"]
    file["observations"] = h5py.ExternalLink("secret.h5", "/x")


def soft_external(h5py, file, path):
    secret(h5py, path)
    del file["observations"]
    file["way"] = h5py.ExternalLink("secret.h5", "/x")
    file["observations"] = h5py.SoftLink("/way")


def stored_elsewhere(h5py, file, path):
    path.with_name("secret.bin").write_bytes(bytes(96))
    del file["observations"]
    where = [(str(path.with_name("secret.bin")), 0, 96)]
    file.create_dataset("observations", (4, 3), "f8", external=where)


def virtual(h5py, file, path):
    secret(h5py, path)
    del file["observations"]
    layout = h5py.VirtualLayout((4, 3), "f8")
    layout[:] = h5py.VirtualSource(str(path.with_name("secret.h5")), "x", (4, 3))
    file.create_virtual_dataset("observations", layout)


def huge(h5py, file, path):
    del file["observations"]
    file.create_dataset("observations", (10**12, 3), "f8", chunks=(1000, 3))


DATASETS = {
    "lying.npz": (lying_npz, "rewards cannot be read: shape (10000000000000,)"),
    "bomb.npz": (bomb_npz, "claims"),
    "strange.npz": (strange_npz, "observations cannot be read"),
    "loop.h5": (hdf5(loop), "is a link to what contains it"),
    "hard.h5": (hdf5(hard_loop), "is a link to what contains it"),
    "external.h5": (hdf5(external), "another file"),
    "soft.h5": (hdf5(soft_external), "another file"),
    "stored.h5": (hdf5(stored_elsewhere), "other files"),
    "virtual.h5": (hdf5(virtual), "other files"),
    "huge.h5": (hdf5(huge), "claims 24000000000000 bytes"),
    "pipe.npz": (os.mkfifo, "neither a file nor a directory"),
}


@pytest.mark.parametrize("name", DATASETS)
def test_datasets(cli, tmp_path, name):
    make, told = DATASETS[name]
    make(tmp_path / name)
    assert told in one_sentence(cli("data", "info", tmp_path / name))
    with pytest.raises(ValueError, match=name):
        read_dataset(tmp_path / name)


def test_arrays_are_read_only_where_there_is_memory_for_them(tmp_path, monkeypatch):
    """What is free counts: four arrays of a quarter each do not fit beside something else."""
    from composerl.data.offline import room

    np.savez_compressed(tmp_path / "a.npz", **arrays(100_000))
    monkeypatch.setattr(room, "_memory", lambda: 2_000_000)
    with pytest.raises(ValueError, match=r"than fit into memory, 2000000 bytes"):
        read_dataset(tmp_path / "a.npz")
    monkeypatch.undo()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < room._memory() < total


def test_modules_are_found_wherever_an_argument_names_them():
    from composerl._schema import imported

    assert imported("Pendulum-v1", "json:x", {"a": ["json:x", 5]})
    for value in ("evil:x", ["evil:x"], {"inner": {"id": "evil:x"}}, [{"a": ("evil:x",)}]):
        assert not imported("Pendulum-v1", value)


def test_a_compressed_dataset_may_be_larger_than_its_file(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", **arrays(100_000))
    assert len(read_dataset(tmp_path / "a.npz")) == 99_999 + 1


# ---- the service -------------------------------------------------------------------------------


def test_a_line_that_is_wrong_is_answered_and_the_service_goes_on(cli, run):
    lines = ["[1, 0, 0]", "[1, 2", "[NaN, 0, 0]", "[1e999, 0, 0]", "[" * DEEP, '{"obs": 1}', "null",
             "[" + "9" * 400 + ", 0, 0]", '"\\ud800"', "[1, 0, 0]"]  # fmt: skip
    result = cli("predict", run, stdin="\n".join(lines) + "\n")
    answers = [json.loads(line) for line in result.out.splitlines()]
    assert [list(answer) for answer in answers] == [["action"], *[["error"]] * 8, ["action"]]
    assert answers[0] == answers[-1]
    assert "NaN or infinity" in answers[2]["error"]
    assert answers[5]["error"].startswith('line 6 has no "observation"')
    assert result.code == 2
    assert result.err == "error: 8 of 10 lines were answered by an error\n"


# ---- flags -------------------------------------------------------------------------------------

FLAGS = [
    ("iqn_cartpole", ["--threads", "100000"], "threads"),
    ("iqn_cartpole", ["--wandb-project", "a/b"], "wandb_project"),
    ("iqn_cartpole", ["--exponents", "nan", "0"], "exponents"),
    ("iqn_cartpole", ["--exponents", "-1", "0"], "exponents"),
    ("iqn_cartpole", ["--tau", "nan"], "tau"),
    ("iqn_cartpole", ["--tau", "2"], "tau"),
    ("iqn_cartpole", ["--kappa", "nan"], "kappa"),
    ("dreamer_catch", ["--train-ratio", "nan"], "train_ratio"),
    ("dreamer_catch", ["--train-ratio", "-1"], "train_ratio"),
    ("iql_pendulum", ["--hidden", "99999999", "99999999"], "hidden"),
    ("iql_pendulum", ["--hidden", *["8"] * 100], "hidden"),
    ("iql_pendulum", ["--gamma", "2"], "gamma"),
    ("iql_pendulum", ["--gamma", "nan"], "gamma"),
    ("iql_pendulum", ["--steps", str(10**30)], "steps"),
    ("iql_pendulum", ["--dataset-seed", "-1"], "dataset_seed"),
    ("iql_pendulum", ["--env-kwargs", "[" * 5000], "env_kwargs"),
    ("iql_pendulum", ["--env-kwargs", '{"g": NaN}'], "env_kwargs"),
    ("ppo_cartpole", ["--clip", "-1"], "clip"),
]


def test_values_that_tell_by_themselves_are_refused_without_torch():
    code = """if True:
        import json, sys
        from composerl.catalog import load_recipe
        from composerl.config import parse
        for recipe, flags, name in json.loads(sys.stdin.read()):
            try:
                parse(load_recipe(recipe).Config, flags)
            except ValueError as error:
                flag = "--" + name.replace("_", "-")
                assert flag in str(error) and "\\n" not in str(error), error
            else:
                raise AssertionError(f"{flags} are accepted")
        assert "torch" not in sys.modules
    """
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(FLAGS), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_seeds_of_evaluations(cli, run):
    for seed in ("-1", str(2**40)):
        assert "--seed must be in" in one_sentence(cli("evaluate", run, "--seed", seed))


def test_too_little_memory_is_told_in_a_sentence(capsys):
    from composerl.errors import guard

    for action in (lambda: torch.empty(1 << 50, dtype=torch.uint8), lambda: np.empty(1 << 55)):
        with pytest.raises(SystemExit):
            guard(action)
        assert capsys.readouterr().err.startswith("error: there is not enough memory")


def test_a_number_is_better_than_nan():
    score, nan, number = Score(), Evaluation((np.nan,), (1,)), Evaluation((-5.0,), (1,))
    results = enumerate([nan, nan, number, nan])
    kept = [score.add(step, result, None, None) for step, result in results]
    assert kept == [True, False, True, False]
    assert score.best["return"] == -5.0


# ---- resuming what is somebody's -----------------------------------------------------------------


def test_another_recipe_does_not_go_on_with_a_run(cli, tmp_path, run):
    shutil.copytree(run, tmp_path / "run")
    recipe = Path(composerl.catalog.find_recipe("iql_pendulum"))
    shutil.copy(recipe, tmp_path / "mine.py")
    words = ["run", tmp_path / "mine.py", "--out", tmp_path / "run", "--resume", "--steps", "80"]
    told = "holds a run of iql_pendulum, which mine cannot go on with"
    assert told in one_sentence(cli(*words))
    (tmp_path / "run" / "metadata.json").unlink()  # the checkpoint knows it, too
    assert told in cli(*words).err


def test_changed_threads_are_warned_of(cli, tmp_path, run):
    shutil.copytree(run, tmp_path / "run")
    result = cli("run", "iql_pendulum", "--out", tmp_path / "run", "--resume", "--threads", "2")
    assert "--threads was 1 and is 2 now: the numbers may differ" in result.err
    torch.set_num_threads(1)


def test_a_resume_imports_no_module_that_a_file_names(cli, tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("evil.py").write_text("open('executed', 'w')\n")
    shutil.copytree(run, "run")
    config = Path("run/config.yaml").read_text()
    for new in ("env: evil:Pendulum-v1", "env: Pendulum-v1\nenv_kwargs: {a: 'evil:X'}"):
        text = config.replace("env_kwargs: {}\n", "") if "kwargs" in new else config
        Path("run/config.yaml").write_text(text.replace("env: Pendulum-v1", new))
        told = one_sentence(cli("run", "iql_pendulum", "--out", "run", "--resume"))
        assert "names a module to import: to import it, add --env" in told
        with pytest.raises(ValueError, match="names a module to import"):
            composerl.train("iql_pendulum", out=Path("run"), resume=True)
    assert not Path("executed").exists()


def test_a_config_file_imports_no_module_unless_the_flag_says_so_too(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("other_env.py").write_text("open('executed', 'w')\n")
    monkeypatch.delitem(sys.modules, "other_env", raising=False)
    small = "steps: 1\neval_episodes: 1\nhidden: [8]\nwandb: disabled\n"
    small += "dataset: random\ndataset_size: 500\n"
    for text, flag in (
        ("env: other_env:Pendulum-v1\n", "--env other_env:Pendulum-v1"),
        ("env_kwargs: {a: 'other_env:X'}\n", """--env-kwargs '{"a": "other_env:X"}'"""),
    ):
        Path("theirs.yaml").write_text(small + text)
        told = one_sentence(cli("run", "iql_pendulum", "--config", "theirs.yaml", "--out", "run"))
        assert f"theirs.yaml names a module to import: to import it, add {flag}" in told
        with pytest.raises(ValueError, match="names a module to import"):
            composerl.train("iql_pendulum", config="theirs.yaml", out=Path("run"))
    assert not Path("run").exists()
    assert not Path("executed").exists()
    Path("theirs.yaml").write_text(small + "env: other_env:Pendulum-v1\n")
    words = ["--config", "theirs.yaml", "--env", "other_env:Pendulum-v1", "--out", "run"]
    assert cli("run", "iql_pendulum", *words).code == 0
    assert Path("executed").exists()


def test_presets_and_defaults_of_a_recipe_may_name_a_module(tmp_path, monkeypatch):
    """They lie beside its code, which is executed anyway; so does what a league's file names."""
    from composerl.catalog import load_recipe
    from composerl.cli.league import _read
    from composerl.config import parse

    monkeypatch.chdir(tmp_path)
    text = Path(composerl.catalog.find_recipe("iql_pendulum")).read_text()
    Path("mine.py").write_text(text.replace('env: str = "Pendulum-v1"', 'env: str = "other_a:X"'))
    Path("presets/mine").mkdir(parents=True)
    Path("presets/mine/small.yaml").write_text("env: other_b:X\n")
    Path("run").mkdir()
    Path("run/config.yaml").write_text("env: other_a:X\n")
    config = load_recipe("mine.py").Config
    assert parse(config, ["--config", "small"]).env == "other_b:X"
    assert parse(config, ["--config", "presets/mine/small.yaml"]).env == "other_b:X"
    assert parse(config, ["--out", "run", "--resume"]).env == "other_a:X"
    Path("beside.yaml").write_text("env: other_c:X\nenv_kwargs: {a: 'other_c:X'}\n")
    Path("league.yaml").write_text("recipes: {mine.py: [small, beside.yaml]}\n")
    _, entries, _ = _read(Path("league.yaml"))
    assert [parse(config, flags).env for *_, flags in entries] == ["other_b:X", "other_c:X"]


# ---- long runs -----------------------------------------------------------------------------------


def test_curves_of_long_runs_need_little_memory(tmp_path):
    """Five runs of 4,000 evaluations: all their resamples at once are 320 MB and more."""
    rows = "".join(
        json.dumps({"step": i, "eval/return": i % 7, "time/seconds": i * 0.1}) + "\n"
        for i in range(4000)
    )
    for seed in range(5):
        (tmp_path / str(seed)).mkdir()
        (tmp_path / str(seed) / "config.yaml").write_text(f"env: A\nseed: {seed}\n")
        (tmp_path / str(seed) / "metrics.jsonl").write_text(rows)
    tracemalloc.start()
    curve = curve_of("a", [read_run(tmp_path / str(seed)) for seed in range(5)], "eval/return")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6
    assert len(curve.x) == 4000
    assert (curve.low <= curve.middle).all()


def test_settings_that_changed_in_the_file_are_told(cli, tmp_path, run):
    """A damaged config.yaml may change when rows are written, which is allowed, but not unsaid."""
    shutil.copytree(run, tmp_path / "run")
    config = tmp_path / "run" / "config.yaml"
    was = yaml.safe_load(config.read_text())["log_every"]
    config.write_text(config.read_text().replace(f"log_every: {was}", f"log_every: {was + 4}"))
    steps = yaml.safe_load(config.read_text())["steps"] + 8
    result = cli("run", "iql_pendulum", "--out", tmp_path / "run", "--resume", "--steps", steps)
    assert result.code == 0
    assert f"--steps {steps} (was {steps - 8})" in result.err
    assert f"--log-every {was + 4} (was {was})" in result.err
