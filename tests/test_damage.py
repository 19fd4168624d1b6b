"""Run directories that are damaged or a trap: nothing is lost in silence or touched beyond them."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from dataclasses import dataclass

import pytest
import torch

import composerl
from composerl import Run, RunConfig
from composerl.bookkeeping import blocks, checkpoint, trees
from composerl.bookkeeping.metrics import read_metrics
from composerl.bookkeeping.owner import Owner
from composerl.bookkeeping.trees import load_tree, save_tree
from composerl.cli import main
from composerl.envs.spaces import Spaces
from composerl.modules import gaussian_actor


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    env: str = "Pendulum-v1"
    steps: int = 6
    log_every: int = 1
    eval_every: int = 3
    eval_episodes: int = 1
    save_every: int = 2
    wandb: str = "disabled"


class Ring:
    """Something with state, most of which is the same in all checkpoints: three blocks."""

    def __init__(self):
        self.rows = torch.zeros(300, 10, dtype=torch.uint8)

    def state_dict(self):
        return {"rows": self.rows}

    def load_state_dict(self, state):
        self.rows.copy_(state["rows"])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    for module in (blocks, trees):
        monkeypatch.setattr(module, "LARGE", 2000)


def train(out, hook=None, name="toy", **changes):
    run = Run(Config(out=out, resume=(out / "config.yaml").exists(), **changes), name=name)
    ring, actor = Ring(), gaussian_actor(Spaces.of("Pendulum-v1"), (4,))
    run.track(ring=ring)
    for step in run.steps(run.config.steps):
        ring.rows[200 + step] = torch.randint(255, (10,))
        run.log({"loss_x": ring.rows.float().mean()})
        run.evaluate(actor)
        if hook is not None:
            hook(step)
    run.finish(actor)


def numbers(run):
    rows = read_metrics(run / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def flip(path, place=-1):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        for module in (blocks, trees):
            patch.setattr(module, "LARGE", 2000)
        train(out)
    return out


@pytest.fixture
def half(whole, tmp_path):
    """A copy that was killed after its last checkpoint."""
    shutil.copytree(whole, tmp_path / "run")
    for name in ("summary.json", "policy.safetensors"):
        (tmp_path / "run" / name).unlink()
    return tmp_path / "run"


# ---- links -------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path):
    """Somebody else's files, which have names that we might take for our own."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    for name in ("letter.txt", ".abcdefgh.tmp", f"{'0' * 32}.safetensors", "step-x.safetensors"):
        (place / name).write_text('{"private": 1}\n')
    (place / ".ijklmnop.tmp").mkdir()
    return place


def content(place):
    return {path.name: path.is_file() and path.read_bytes() for path in place.rglob("*")}


@pytest.mark.parametrize(
    "name",
    ["checkpoints", "checkpoints/blocks", "images", "tensorboard", "wandb", ".lock", ".owner",
     "metrics.jsonl", "config.yaml", "metadata.json", "policy.safetensors"],
)  # fmt: skip
def test_a_resume_goes_through_no_link(half, elsewhere, name):
    before, target = content(elsewhere), elsewhere
    path = half / name
    if "." in path.name:
        target = elsewhere / "letter.txt"
    if path.is_dir():
        shutil.copytree(path, elsewhere, dirs_exist_ok=True)
        shutil.rmtree(path)
        before = content(elsewhere)
    elif path.exists():
        path.unlink()
    path.symlink_to(target)
    with pytest.raises(ValueError, match=f"{path} is a link"):
        train(half, steps=8)
    assert content(elsewhere) == before


def test_files_of_others_in_a_run_directory_stay(half):
    """What is no block, no checkpoint, and was not written aside."""
    names = ("blocks/notes.txt", ".mine.tmp", "step-old.safetensors", "../images/.abcdefgh.tmp")
    kept = [half / "checkpoints" / name for name in names]
    for path in kept:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    (half / "checkpoints" / "step-000000000001.safetensors").mkdir()
    train(half, steps=12)
    assert all(path.read_text() == "mine" for path in kept)
    assert (half / "checkpoints" / "step-000000000001.safetensors").is_dir()


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl"])
def test_a_file_with_two_names_changes_under_one(half, elsewhere, name):
    letter = elsewhere / "letter.txt"
    letter.write_text('{"step": 1}\n{"half')
    (half / name).unlink()
    os.link(letter, half / name)
    with pytest.raises(ValueError, match=r"not the empty file|cannot be cut back"):
        train(half, steps=8)
    assert letter.read_text() == '{"step": 1}\n{"half'


def test_a_run_directory_may_be_a_link_itself(half, tmp_path):
    (tmp_path / "link").symlink_to(half)
    (half / "checkpoints" / ".abcdefgh.tmp").mkdir()
    train(tmp_path / "link", steps=8)
    assert (half / "policy.safetensors").is_file()
    assert not (half / "checkpoints" / ".abcdefgh.tmp").exists()


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("images/a.png", ["report", "RUN", "-o", "page.html"]),
        ("images", ["report", "RUN", "-o", "page.html"]),
        ("summary.json", ["report", "RUN", "-o", "page.html"]),
        ("metrics.jsonl", ["plot", "RUN", "-o", "a.png"]),
        ("policy.safetensors", ["evaluate", "RUN"]),
    ],
)
def test_nothing_is_published_through_a_link(
    whole, tmp_path, elsewhere, name, command, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(whole, tmp_path / "run")
    path = tmp_path / "run" / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(elsewhere / "letter.txt" if "." in name else elsewhere)
    with pytest.raises(SystemExit):
        main([word.replace("RUN", "run") for word in command])
    assert f"error: run/{name} is a link" in capsys.readouterr().err
    assert not [*tmp_path.glob("page.html"), *tmp_path.glob("a.png")]


def test_a_file_that_somebody_names_may_be_a_link(whole, tmp_path):
    for name in ("policy.safetensors", "config.yaml"):
        (tmp_path / name).symlink_to(whole / name)
    composerl.load(tmp_path / "policy.safetensors")
    assert composerl.config.config_from_yaml(Config, tmp_path / "config.yaml").steps == 6


# ---- one checksum ------------------------------------------------------------------------------


def test_every_byte_of_a_checkpoint_counts(tmp_path):
    """A changed one is noticed, or nothing else is read because of it."""
    tree = {
        "step": 12,
        "text": "a",
        "t": (1.5, None),
        3: torch.arange(2.0),
        "b": torch.zeros(2) > 1,
    }
    save_tree(tmp_path / "a", "checkpoint", tree)
    whole, same = (tmp_path / "a").read_bytes(), 0
    first = repr(load_tree(tmp_path / "a", "checkpoint"))
    for place in range(len(whole)):
        for bit in (1, 4, 32):
            changed = bytearray(whole)
            changed[place] ^= bit
            (tmp_path / "a").write_bytes(changed)
            try:
                assert repr(load_tree(tmp_path / "a", "checkpoint")) == first
                same += 1
            except ValueError:
                continue
    assert same < 40  # white space of the header


def test_a_header_of_an_earlier_format_needs_its_own_checksum(tmp_path):
    save_tree(tmp_path / "a", "policy", {"x": torch.ones(2)})
    content = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(content.replace(rb"\"format\": 3", rb"\"format\": 1"))
    with pytest.raises(ValueError, match="damaged"):
        load_tree(tmp_path / "a", "policy")


def test_files_of_earlier_versions_are_read(tmp_path):
    """Made by hand as version 2 wrote them: a checksum, CRC, of the tensors alone."""
    from safetensors.torch import save_file

    tensors = {"t0": torch.arange(5.0)}
    tree = {"!dict": [["w", {"!tensor": "t0"}]]}
    about = {"kind": "policy", "tree": tree, "blocks": [], "format": 1}
    about["checksum"] = zlib.crc32(tensors["t0"].numpy().tobytes())
    save_file(tensors, tmp_path / "a", metadata={"composerl": json.dumps(about)})
    assert load_tree(tmp_path / "a", "policy")["w"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("row", [1, 5])
def test_rows_of_metrics_belong_to_the_checkpoint(half, whole, row, capsys):
    """One changed after the older checkpoint costs what is after that; one before it, the run."""
    path = half / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[row] = lines[row].replace(b'"train/loss_x":', b'"train/loss_y":')
    path.write_bytes(b"".join(lines))
    if row == 1:
        with pytest.raises(ValueError, match=r"it has other rows.*no checkpoint"):
            train(half)
        return
    train(half)
    assert "going on from step 4: 2 steps are trained again" in capsys.readouterr().err
    assert numbers(half) == numbers(whole)


@pytest.mark.parametrize(
    "change",
    [{"step": 5}, {"step": "x"}, {"config": 3}, {"metrics": "x"}, {"metrics": None}, {"rng": []}],
)
def test_a_checkpoint_that_is_none_does_not_stop_the_older_one(half, whole, change, capsys):
    """With a checksum that fits, as whoever means no good can make it."""
    newest = checkpoint.checkpoints(half)[0]
    save_tree(newest, "checkpoint", load_tree(newest, "checkpoint") | change)
    train(half)
    assert "going on from step 4" in capsys.readouterr().err
    assert numbers(half) == numbers(whole)


# ---- what a kill leaves ------------------------------------------------------------------------


def test_what_was_written_aside_goes_at_the_start_and_at_the_end(tmp_path):
    places = [tmp_path / name for name in (".", "checkpoints", "checkpoints/blocks", "images")]

    def litter():
        for place in places:
            (place / ".abcdefgh.tmp").mkdir(parents=True)
            (place / ".abcdefgh.tmp" / ".tmpX1y2Z3").write_text("half")

    litter()
    owner = Owner(tmp_path)
    owner.take()
    assert not list(tmp_path.rglob(".*.tmp"))
    litter()
    owner.release()
    assert not list(tmp_path.rglob(".*.tmp"))


# ---- blocks that checkpoints share -------------------------------------------------------------


def shared(run):
    first, second = ({*trees.block_files(path)} for path in checkpoint.checkpoints(run))
    return sorted(first & second)[0]


@pytest.mark.parametrize("damage", ["cut", "flipped", "header", "gone", "other"])
def test_a_block_that_is_damaged_while_the_run_goes_on_is_written_again(
    whole, tmp_path, damage, monkeypatch
):
    """And what is killed then can be resumed; all of a small block is in its sample."""
    out = tmp_path / "run"

    def hurt(step):
        if step == 5:
            path = shared(out)
            {
                "cut": lambda: os.truncate(path, 500),
                "flipped": lambda: flip(path),
                "header": lambda: flip(path, 20),
                "gone": path.unlink,
                "other": lambda: path.write_bytes(b"x"),
            }[damage]()

    train(out, hurt)
    assert torch.equal(
        load_tree(checkpoint.checkpoints(out)[0], "checkpoint")["tracked"]["ring"]["rows"],
        load_tree(checkpoint.checkpoints(whole)[0], "checkpoint")["tracked"]["ring"]["rows"],
    )
    train(out, steps=7)


def test_a_damaged_block_that_all_checkpoints_need_says_what_is_lost(half):
    flip(shared(half))
    with pytest.raises(ValueError, match=r"is damaged.*no checkpoint of .* to train all 6 steps"):
        train(half, steps=7)


def test_blocks_are_verified_in_full_on_resume(half, whole, capsys):
    """That of the newest checkpoint alone: a later one would trust its name."""
    newest, older = checkpoint.checkpoints(half)
    path = ({*trees.block_files(newest)} - {*trees.block_files(older)}).pop()
    flip(path)
    monkey = pytest.MonkeyPatch()
    monkey.setattr(blocks, "SAMPLE", 0)  # chance does not hit it
    try:
        train(half)
    finally:
        monkey.undo()
    told = capsys.readouterr().err
    assert f"{path} is damaged" in told
    assert "going on from step 4: 2 steps are trained again" in told
    assert numbers(half) == numbers(whole)
    load_tree(newest, "checkpoint")
    assert newest.with_name(f"{newest.name}.damaged").exists()


# ---- a full disk, and what is no file -----------------------------------------------------------


@pytest.mark.parametrize("target", ["block", "checkpoint"])
def test_a_full_disk_is_told_in_a_sentence(tmp_path, monkeypatch, target, capsys):
    """``/dev/full`` takes nothing."""
    real = open

    def full(file, mode="r", *rest, **more):
        name = str(file)
        wanted = "blocks" in name if target == "block" else "step-" in name
        return real("/dev/full" if "w" in mode and wanted else file, mode, *rest, **more)

    from composerl.errors import guard

    monkeypatch.setattr("builtins.open", full)
    monkeypatch.setattr("io.open", full)
    with pytest.raises(SystemExit):
        guard(lambda: train(tmp_path / "run"))
    told = capsys.readouterr().err
    assert told.endswith("free some space, then --resume goes on from the last checkpoint\n")
    assert "Traceback" not in told


OBSTACLES = {
    "dangling": lambda path: path.symlink_to("nowhere"),
    "directory": lambda path: path.mkdir(),
    "pipe": lambda path: os.mkfifo(path),
    "garbage": lambda path: path.write_bytes(b"x" * 100),
    "empty": lambda path: path.touch(),
}


@pytest.mark.parametrize("kind", OBSTACLES)
def test_what_is_no_checkpoint_does_not_stop_the_older_one(half, whole, kind, capsys):
    newest = checkpoint.checkpoints(half)[0]
    newest.unlink()
    OBSTACLES[kind](newest)
    assert composerl.load(half).predict([1, 0, 0]).shape == (1,)
    assert f"{newest}" in capsys.readouterr().err
    train(half)
    told = capsys.readouterr().err
    assert "going on from step 4: 2 steps are trained again" in told
    assert numbers(half) == numbers(whole)
    load_tree(newest, "checkpoint")


@pytest.mark.parametrize("which", ["final", "best"])
@pytest.mark.parametrize("kind", ["directory", "pipe", "garbage", "flipped"])
def test_a_damaged_policy_is_taken_from_a_checkpoint(whole, tmp_path, which, kind, capsys):
    shutil.copytree(whole, tmp_path / "run")
    run = tmp_path / "run"
    path = run / "policy.safetensors" if which == "final" else checkpoint.best_path(run)
    expected = composerl.load(run, which=which).actor.state_dict()
    if kind == "flipped":
        flip(path)
    else:
        path.unlink()
        OBSTACLES[kind](path)
    capsys.readouterr()
    found = composerl.load(run, which=which).actor.state_dict()
    assert f"instead of it {checkpoint.checkpoints(run)[0]} is used" in capsys.readouterr().err
    assert all(torch.equal(found[key], value) for key, value in expected.items())


def test_files_of_a_run_have_the_mode_that_the_umask_leaves(tmp_path):
    before = os.umask(0o027)
    try:
        train(tmp_path / "run")
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert any(path.parent.name == "blocks" for path in files)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in files if path.name != ".lock"}
    assert {*modes.values()} == {"0o640"}, modes
