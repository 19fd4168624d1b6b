"""``composerl bisect`` and ``verify --replay-from``: where runs part, and what comes out again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

import composerl
from composerl.bookkeeping import manifest
from composerl.bookkeeping.checkpoint import checkpoints
from composerl.bookkeeping.trees import load_tree, save_tree


@pytest.fixture
def copy(run, tmp_path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


def tamper(checkpoint: Path, by: float) -> None:
    """Change one number of one tensor, so that every checksum fits."""
    tree = load_tree(checkpoint, "checkpoint")
    weights = tree["tracked"]["update"]["loss"]
    name = next(key for key in weights if "weight" in key and weights[key].numel() > 3)
    weights[name].view(-1)[3] += by
    save_tree(checkpoint, "checkpoint", tree)


def partings(result) -> dict[str, tuple[str, str]]:
    return {one["what"]: (one["where"], one["how"]) for one in result.json["partings"]}


def test_equal_runs(cli, run, copy):
    result = cli("bisect", run, copy, "--json")
    assert result.code == 0, result.out
    assert result.json["settings"] == {}
    assert [*partings(result)] == [
        "metrics", "checkpoint of step 40", "checkpoint of step 60", "policy.safetensors",
        "checkpoints/best.safetensors",
    ]  # fmt: skip
    assert not any(how for _, how in partings(result).values())
    assert "equal" in cli("bisect", run, copy).out


def test_two_seeds(cli, runs):
    """Said first, and told apart from the first row on."""
    pair = [runs / "iql_pendulum" / f"seed{seed}" for seed in (0, 1)]
    result = cli("bisect", *pair, "--json")
    assert result.code == 1
    assert result.json["settings"] == {"seed": "0 and 1"}
    found = partings(result)
    assert found["metrics"][0] == "row 1, step 0: eval/return"
    assert "apart" in found["metrics"][1]
    assert "numbers differ, by" in found["checkpoint of step 40"][1]
    assert "checkpoint of step 60" not in found  # the first is what is asked for
    table = cli("bisect", *pair).out
    assert table.index("seed") < table.index("metrics")


def test_one_tampered_tensor(cli, run, copy):
    tamper(checkpoints(copy)[0], 0.25)
    result = cli("bisect", run, copy, "--json")
    assert result.code == 1
    found = partings(result)
    assert [what for what, (_, how) in found.items() if how] == ["checkpoint of step 60"]
    where, how = found["checkpoint of step 60"]
    assert "tracked: update: loss" in where
    assert "weight" in where
    assert how.startswith("1 of ")
    assert how.endswith("by 0.25 at most")
    found = partings(cli("bisect", run, copy, "--replay", "--json"))
    what = "trained again from step 40 to 60, beside"
    assert found[f"{what} A"] == ("", "")
    assert found[f"{what} B"][0] == where


LONG = {
    "save_every": 20, "keep_checkpoints": 9, "eval_every": 30, "log_every": 10, "eval_episodes": 1,
    "hidden": (8,), "dataset_size": 500, "wandb": "disabled",
}  # fmt: skip


@pytest.fixture(scope="module")
def lengths(tmp_path_factory) -> list[Path]:
    """Runs of 40 and of 60 steps, and one of 60 with another seed."""
    root = tmp_path_factory.mktemp("lengths")
    for name, steps, seed in (("short", 40, 0), ("long", 60, 0), ("other", 60, 1)):
        composerl.train("bc_pendulum", out=root / name, steps=steps, seed=seed, **LONG)
    return [root / name for name in ("short", "long", "other")]


@pytest.mark.parametrize("letters", ["AB", "BA"])
def test_one_run_is_just_longer(cli, lengths, letters):
    """The shorter one was evaluated out of turn when it ended, which is no difference."""
    pair = lengths[:2] if letters == "AB" else lengths[1::-1]
    result = cli("bisect", *pair, "--json")
    assert result.code == 1
    found = partings(result)
    said = f"{letters[0]} ends there, equal so far; {letters[1]} goes on to step 60"
    assert found["metrics"] == ("step 40", said)
    assert found["checkpoint of step 20"] == found["checkpoint of step 40"] == ("", "")
    steps = ("40", "60") if letters == "AB" else ("60", "40")
    said = "that of A is of step {}, that of B of {}".format(*steps)
    assert found["policy.safetensors"] == ("", said)
    assert "numbers differ" not in str(found)


def test_runs_of_unequal_length_part_where_they_first_differ(cli, lengths, tmp_path):
    """And not where the shorter one ends, which is later."""
    short, long, other = lengths
    found = partings(cli("bisect", short, other, "--json"))
    assert found["metrics"][0] == "row 1, step 0: eval/return"
    copy = Path(shutil.copytree(long, tmp_path / "copy"))
    file = copy / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    row = json.loads(lines[2])
    assert row["step"] == 20
    loss = next(key for key in row if key.startswith("train/loss"))
    lines[2] = json.dumps(row | {loss: row[loss] + 0.5}) + "\n"
    file.write_text("".join(lines))
    where, how = partings(cli("bisect", short, copy, "--json"))["metrics"]
    assert where == f"row 3, step 20: {loss}"
    assert how.endswith("0.5 apart")
    file.write_text("".join([*lines[:1], *lines[2:]]))  # a row is gone
    found = partings(cli("bisect", short, copy, "--json"))
    assert found["metrics"] == ("row 2, step 10", "is in A only")


def test_the_step_at_which_other_settings_tell(cli, tmp_path):
    """A schedule that falls from the first update on, and a rate that is there from the start."""
    flags = {
        "steps": 8, "save_every": 2, "keep_checkpoints": 9, "eval_every": 8, "log_every": 1,
        "eval_episodes": 1, "hidden": (8,), "dataset_size": 500, "wandb": "disabled",
    }  # fmt: skip
    for name, schedule in (("a", "constant"), ("b", "step")):
        composerl.train("bc_pendulum", out=tmp_path / name, lr_schedule=schedule, **flags)
    result = cli("bisect", tmp_path / "a", tmp_path / "b", "--replay", "--json")
    assert result.code == 1
    assert result.json["settings"] == {"lr_schedule": "'constant' and 'step'"}
    found = partings(result)
    first = next(what for what, (_, how) in found.items() if how and what != "metrics")
    again = next(what for what in found if what.startswith("trained again"))
    low, high = (int(word.strip(",")) for word in again.split() if word.strip(",").isdecimal())
    assert high - low == 1
    assert high <= int(first.split()[-1])
    assert found[again][1]


def test_what_cannot_be_compared_or_trained(cli, run, copy, tmp_path):
    for path in checkpoints(copy):
        path.unlink()
    found = partings(cli("bisect", run, copy, "--json"))
    assert "no step of which both" in found["checkpoints"][1]
    assert cli("bisect", run, tmp_path / "nothing").code == 2
    assert cli("bisect", run, run / "config.yaml").err.endswith("expected a run directory\n")


# ---- verify --replay-from ------------------------------------------------------------------------


def verdict(result) -> tuple[str, str]:
    claim = json.loads(result.out)["claims"][-1]
    return claim["what"], claim["verdict"]


@pytest.mark.parametrize("which", ["run", "cartpole"])
def test_from_one_checkpoint_to_the_next(cli, which, request, tmp_path):
    run = request.getfixturevalue(which)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    for since in ("last", "40"):
        result = cli("verify", run, "--replay-from", since, "--json")
        assert result.code == 0, result.out
        assert verdict(result) == ("trained again from step 40 to 60: checkpoint", "verified")
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    tamper(checkpoints(copy)[1], 1e-3)
    manifest.write_manifest(copy, yaml.safe_load((copy / "config.yaml").read_text()))
    result = cli("verify", copy, "--replay-from", "last", "--json")
    assert result.code == 1
    assert verdict(result) == ("trained again from step 40 to 60: checkpoint", "differs")


def test_one_checkpoint_is_too_few(cli, copy):
    checkpoints(copy)[1].unlink()
    manifest.write_manifest(copy, yaml.safe_load((copy / "config.yaml").read_text()))
    result = cli("verify", copy, "--replay-from", "last", "--json")
    assert result.code == 3
    assert "1 checkpoint is kept, and it takes two" in result.out


def test_words_that_name_no_checkpoint(cli, run):
    assert "step of a checkpoint, or last" in cli("verify", run, "--replay-from", "x").err
    assert "has no checkpoint of step 7" in cli("verify", run, "--replay-from", "7").err
    assert "cannot be given" in cli("verify", run, "--replay", "--replay-from", "last").err
