"""More of what a stranger may hand over, found by trying it by hand: a sentence or an answer."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml

from composerl._files import open_plain, read_yaml, replace_file
from composerl.bookkeeping import manifest, trees
from composerl.bookkeeping.metrics import MetricsFile
from composerl.bookkeeping.trees import load_tree, save_tree
from composerl.data import read_dataset
from composerl.errors import guard, printable

#: Turned around, marked as such, invisible, a line's end, an accent upon a hundred accents.
TRICKS = "\u202e\u200f\u061c\u200b\u2028\ufeffa" + "\u0301" * 100


def one_sentence(result) -> None:
    assert not {"\x1b", "\x07", "\x9b"} & {*result.out, *result.err}
    assert result.err.startswith("error: "), result.err
    assert result.err.count("\n") == 1, result.err


def edit(file: Path, **values) -> None:
    """Change values of a JSON or YAML file."""
    if file.suffix == ".json":
        file.write_text(json.dumps(json.loads(file.read_text()) | values))
    else:
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | values))


@pytest.fixture
def copy(run, tmp_path, monkeypatch) -> Path:
    """A copy of a run, in the working directory."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(run, "run"))


def said(result, *words: str) -> None:
    """It ends in one sentence with these words."""
    assert result.code == 2, result
    one_sentence(result)
    for word in words:
        assert word in result.err


# ---- environments ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "kwargs", "told"),
    [
        ("Pendulum-v1", {"g": "x"}, "cannot be played with {'g': 'x'}"),
        ("Pendulum-v1", {"render_mode": 5}, "cannot be made with {'render_mode': 5}"),
        ("Pendulum-v1", {"max_episode_steps": 0}, "to be positive"),
        ("HalfCheetah-v5", {"xml_file": "/etc/passwd"}, "cannot be made with"),
        ("HalfCheetah-v5", {"xml_file": "/dev/zero"}, "cannot be made with"),
    ],
)
def test_arguments_that_an_environment_chokes_on(cli, copy, env, kwargs, told):
    file = copy / "policy.safetensors"
    save_tree(file, "policy", load_tree(file, "policy") | {"env": env, "env_kwargs": kwargs})
    said(cli("evaluate", copy, "--episodes", 1), env, told)


def test_arguments_of_a_new_run_that_its_environment_chokes_on(cli, tmp_path):
    words = ("run", "bc_pendulum", "--steps", 2, "--wandb", "disabled", "--out", tmp_path / "new")
    result = cli(*words, "--env-kwargs", '{"g": "x"}')
    assert (result.code, "cannot be played with {'g': 'x'}" in result.err) == (2, True)
    assert "Traceback" not in result.err
    assert not (tmp_path / "new").exists()


# ---- words -------------------------------------------------------------------------------------


def test_no_name_turns_a_line_around(cli, copy):
    """Nor a page: there each name is in order, too."""
    shown = printable(TRICKS)
    assert shown.startswith(r"\u202e\u200f\u061c\u200b\u2028\ufeffa")
    assert len(shown) > 500
    assert printable("Ärger, naïve, résumé, e\u0301, 日本語, 👩\u200d🔬") == (
        "Ärger, naïve, résumé, e\u0301, 日本語, 👩\u200d🔬"
    )
    edit(copy / "config.yaml", env=TRICKS)
    edit(copy / "metadata.json", recipe=TRICKS, platform=TRICKS)
    (copy / "images").mkdir(exist_ok=True)
    (copy / "images" / os.fsdecode(b"\xff\xe2\x80\xae.png")).write_bytes(b"x")
    for words in (("compare", copy, copy), ("verify", copy), ("plot", copy), ("report", copy)):
        result = cli(*words)
        assert not {*TRICKS[:6]} & {*result.out, *result.err}, words
        assert "Traceback" not in result.err
    page = Path("report.html").read_text(encoding="utf-8")
    assert not {*TRICKS[:6]} & {*page}
    assert r"\udcff" in page


def test_a_sentence_is_no_longer_than_a_person_reads(cli, copy):
    file = copy / "policy.safetensors"
    tree = load_tree(file, "policy") | {"description": None, "class": "x" * 10**6}
    save_tree(file, "policy", tree)
    result = cli("evaluate", copy)
    said(result, "holds a policy of your own class", "--recipe my_recipe.py")
    assert len(result.err) < 2500
    edit(copy / "config.yaml", env="x" * 200_000)
    assert cli("plot", copy).code == 0  # took 23 seconds
    assert len(cli("compare", copy, copy).out) < 250_000


@pytest.mark.parametrize("text", ["seed: 1\nseed: 2", "a: {b: 1, b: 2}", "a: [{b: 1, b: 2}]"])
def test_a_key_is_there_once(cli, tmp_path, text):
    """The last would count, silently."""
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"the key '(seed|b)' is there twice"):
        read_yaml(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_text("a: &x {b: 1}\nc: [*x, *x, {b: 2}]\nd: {<<: *x, b: 3}")
    assert read_yaml(tmp_path / "a.yaml")["d"] == {"b": 3}


# ---- places ------------------------------------------------------------------------------------


def test_directories_in_directories(cli, copy):
    place = os.open(copy, os.O_RDONLY)
    for _ in range(1200):  # deeper than a path can name, and than Python's stack is high
        os.mkdir("d", dir_fd=place)
        place, above = os.open("d", os.O_RDONLY, dir_fd=place), place
        os.close(above)
    os.close(place)
    try:
        result = cli("verify", copy, "--json")
        first = result.json["claims"][0]
        assert (result.code, first["what"], first["verdict"]) == (1, "files", "differs")
        said(cli("report", "."), "deep")
        said(cli("evaluate", "."), "deep")
        Path("empty").mkdir()
        shutil.move(copy / "d", "empty/d")
        said(cli("verify", "empty"), "deep")
    finally:
        os.system("rm -rf run/d empty")  # shutil is not up to it


@pytest.mark.parametrize("target", ["nowhere", "link"])
def test_a_link_that_leads_nowhere_is_no_place_for_a_run(cli, tmp_path, target):
    (tmp_path / "link").symlink_to(target)
    words = ("run", "bc_pendulum", "--steps", 2, "--out", tmp_path / "link")
    said(cli(*words), "is a link that leads nowhere")
    said(cli(*words, "--resume"), "is a link that leads nowhere")


def test_a_pipe_is_no_settings(cli, tmp_path):
    os.mkfifo(tmp_path / "a.yaml")
    said(cli("run", "bc_pendulum", "--config", tmp_path / "a.yaml"), "it is no plain file")


def test_a_picture_that_no_page_holds(cli, copy):
    (copy / "images").mkdir(exist_ok=True)
    (copy / "images" / "a.png").touch()
    os.truncate(copy / "images" / "a.png", 1 << 40)
    said(cli("report", copy), "a.png has more than")


def test_metrics_without_an_end(copy):
    """Of a file of a terabyte only what may be a row is read."""
    whole = (copy / "metrics.jsonl").read_bytes()
    os.truncate(copy / "metrics.jsonl", 1 << 40)
    file = MetricsFile(copy / "metrics.jsonl")
    assert file.sync() == len(whole)
    file.close()
    assert (copy / "metrics.jsonl").read_bytes() == whole


def test_numbers_that_no_axis_has_room_for(cli, copy):
    rows = [{"step": n, "eval/return": x} for n, x in enumerate((1e308, -1e308))]
    (copy / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    said(cli("plot", copy), "1e+308 cannot be drawn")


def test_a_policy_that_may_not_be_read(cli, copy, monkeypatch):
    """It was taken for one that is not there: a checkpoint's was used without a word."""

    def refuse(path):
        if path.name == "policy.safetensors":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return open_plain(path)

    monkeypatch.setattr(trees, "open_plain", refuse)  # for root every file may be read
    result = cli("evaluate", copy, "--episodes", 1)
    assert result.code == 0
    assert "Permission denied: 'run/policy.safetensors'; instead of it" in result.err


# ---- verify ------------------------------------------------------------------------------------


def test_what_cannot_be_looked_at_is_a_claim_of_its_own(cli, copy, run):
    """One claim that cannot be checked is no reason to check none, nor other runs."""
    made = json.loads((copy / "manifest.json").read_text())
    long = "x" * 5000
    inputs = {long: "0", "/dev/zero": "0", "\x00": "0", "~nobody-here/x": "0"}
    told = manifest._manifest(made["made_with"] | {"inputs": inputs}, made["files"])
    manifest.write_json(copy / "manifest.json", told)
    (copy / "checkpoints").rename("elsewhere")
    (copy / "checkpoints").symlink_to(Path("elsewhere").resolve())
    result = cli("verify", copy, run, "--json")
    assert result.code == 1, result.err
    first, second = map(json.loads, result.out.splitlines())
    found = {claim["what"]: claim["verdict"] for claim in first["claims"]}
    assert {found[name] for name in inputs} == {"cannot be checked"}
    assert found["checkpoints"] == "differs"
    assert found["returns of the best policy"] == "cannot be checked"
    assert found["returns of the final policy"] == "verified"
    assert {claim["verdict"] for claim in second["claims"]} == {"verified"}


# ---- datasets ----------------------------------------------------------------------------------


def columns(rows: int = 8) -> dict[str, np.ndarray]:
    ends = np.arange(rows) == rows - 1
    return {"observations": np.zeros((rows, 3)), "actions": np.zeros((rows, 1)),
            "rewards": np.zeros(rows), "terminals": ends}  # fmt: skip


@pytest.mark.parametrize("name", ["rewards.npy", "rewards"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_array_is_there_once(cli, tmp_path, name):
    np.savez(tmp_path / "a.npz", **columns())
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr(name, archive.read("terminals.npy"))
    said(cli("data", "info", tmp_path / "a.npz"), "has rewards twice")


def test_nobody_is_told_to_unpickle(cli, tmp_path):
    """A zip archive may begin with anything; numpy takes that for a pickle."""
    np.savez(tmp_path / "a.npz", **columns())
    (tmp_path / "a.npz").write_bytes(b"#!/bin/sh\n" + (tmp_path / "a.npz").read_bytes())
    result = cli("data", "info", tmp_path / "a.npz")
    said(result, "no zip archive")
    assert "pickle" not in result.err


def test_arrays_share_the_room_of_a_file(tmp_path, cli):
    """Each of many names of the same bytes is another array in memory."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        parts = file.create_group("observations")
        parts["x0"] = np.zeros((1000, 100))
        for number in range(1, 1000):
            parts[f"x{number}"] = parts["x0"]
    said(cli("data", "info", tmp_path / "a.h5"), "with what is before it", "memory")


def test_groups_in_groups(tmp_path, cli):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("observations")
        for _ in range(300):
            group = group.create_group("d")
        group["x"] = np.zeros((8, 3))
    said(cli("data", "info", tmp_path / "a.h5"), "groups in groups, more than")


@pytest.mark.parametrize("number", ["9" * 5000, "٣"])
def test_numbers_of_episodes(tmp_path, cli, number):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.create_group(f"episode_{number}")
    said(cli("data", "info", tmp_path / "a.hdf5"), "a.hdf5: group", "is not named episode_<number>")


def test_actions_that_no_index_holds(tmp_path, cli):
    actions = np.full(8, 2**63, np.uint64)
    np.savez(tmp_path / "a.npz", **columns() | {"actions": actions})
    with pytest.raises(ValueError, match="row 0 of actions is 9223372036854775808"):
        read_dataset(tmp_path / "a.npz")  # was -9223372036854775808
    for wrong in (-1, 10**12):
        np.savez(tmp_path / "a.npz", **columns() | {"actions": np.full(8, wrong)})
        said(cli("data", "info", tmp_path / "a.npz"), f"integers from {wrong} to {wrong}")


def test_sizes_that_nobody_has_time_for(cli, copy):
    said(cli("data", "make", "Pendulum-v1", "--size", 10**30, "-o", "a.npz"), "at most")
    said(cli("evaluate", copy, "--episodes", 10**24), "and at most")


# ---- leagues and recipes -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"recipes": {"bc_pendulum": {"../../x": {"steps": 1}}}}, "the name of a preset"),
        ({"recipes": {"bc_pendulum": {"": {"steps": 1}}}}, "the name of a preset"),
        ({"recipes": {"bc_pendulum": {"\x1b[31m": {"steps": 1}}}}, "the name of a preset"),
        ({"recipes": {5: None}}, "the name of a recipe must be text, got 5"),
        ({"recipes": {"bc_pendulum": None}, "settings": {"out": "/x"}}, "out is the league's own"),
        ({"recipes": {"bc_pendulum": None}, "scale": {"x": [float("nan"), 1]}}, "two different"),
    ],
)
def test_leagues(cli, tmp_path, monkeypatch, values, told):
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(yaml.safe_dump(values))
    said(cli("league", "a.yaml"), "a.yaml", told)
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


def test_a_recipe_whose_config_is_none(cli, tmp_path):
    (tmp_path / "a.py").write_text("Config = main = 5\n")
    said(cli("run", tmp_path / "a.py"), "its Config is no dataclass")


# ---- streams -----------------------------------------------------------------------------------


def test_a_terminal_without_a_character(monkeypatch):
    """``±`` ended a run that was trained, with an exit code."""
    terminal = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(terminal, "ascii"))
    guard(lambda: print("1 ± 2"))
    assert terminal.getvalue() == b"1 \\xb1 2\n"


def test_a_file_that_cannot_grow_is_named(tmp_path):
    """Of a quota or a limit, too: what is told is not where it was written aside."""

    def write(path):
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    with pytest.raises(OSError, match=re.escape(f"File too large: '{tmp_path / 'a'}'")):
        replace_file(tmp_path / "a", write)


def test_a_directory_that_is_gone(tmp_path):
    """Torch said that it cannot load itself."""
    (tmp_path / "gone").mkdir()
    line = f"cd gone; rmdir ../gone; {sys.executable} -m composerl doctor"
    done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: the working directory is gone: go to one that exists\n"


def test_a_terminal_of_one_column(cli, monkeypatch):
    """In which a box never ends."""
    monkeypatch.setenv("COLUMNS", "1")
    assert "--steps" in cli("run", "bc_pendulum", "--help").out


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(tmp_path, closed):
    """The next file to be opened would be standard output, say: into it anything may print."""
    line = f"{sys.executable} -m composerl recipes copy bc_pendulum a.py {closed}"
    done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "a.py").is_file()
