"""``composerl verify``: what a run says of itself is true, or it is told where not."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from tensordict import TensorDict

import composerl
from composerl.analysis.differences import first_difference
from composerl.analysis.verification import verify_run
from composerl.bookkeeping import manifest
from composerl.bookkeeping.trees import load_tree, save_tree


@pytest.fixture
def copy(run, tmp_path) -> Path:
    shutil.copytree(run, tmp_path / "copy")
    return tmp_path / "copy"


def renew(run: Path) -> None:
    """The manifest of the run as it is now, as its author could make it."""
    manifest.write_manifest(run, yaml.safe_load((run / "config.yaml").read_text()))


def edit(file: Path, **values) -> None:
    """Change values of a JSON or YAML file."""
    read, write = (json.loads, json.dumps) if file.suffix == ".json" else (
        yaml.safe_load, yaml.safe_dump)  # fmt: skip
    file.write_text(write(read(file.read_text()) | values))


def verdicts(result) -> dict[str, str]:
    return {claim["what"]: claim["verdict"] for claim in result.json["claims"]}


def first_wrong(run: Path) -> str | None:
    """What is told first to be wrong by the hashes alone: nothing is played for it."""
    for claim in verify_run(run, lambda file: pytest.fail("no file was found to differ")):
        if claim.verdict == "differs":
            return claim.what
    return None


def test_untouched_and_copied(cli, run, copy, cartpole):
    result = cli("verify", run, copy, cartpole, "--json")
    assert result.code == 0, result.out
    first, second, third = map(json.loads, result.out.splitlines())
    assert first["claims"] == second["claims"]
    assert len(first["claims"]) == len(third["claims"]) == 3
    assert "verified" in cli("verify", run).out


def test_any_flipped_byte_is_noticed(copy):
    """Every byte of small files; of others the ends and a byte between, of manifest.json more."""
    files = [path for path in copy.rglob("*") if path.is_file() and path.name != ".lock"]
    names = {path.relative_to(copy).as_posix() for path in files}
    told = json.loads((copy / "manifest.json").read_text())["files"]
    assert names == {*told, "manifest.json"}
    for kind in ("config.yaml", "metadata.json", "metrics.jsonl", "summary.json",
                 "policy.safetensors", "checkpoints/best.safetensors",
                 "checkpoints/step-000000000060.safetensors"):  # fmt: skip
        assert kind in names
    for path in files:
        whole = path.read_bytes()
        step = 1 if len(whole) <= 1024 else 11 if path.name == "manifest.json" else len(whole)
        spots = {0, len(whole) // 3, len(whole) - 1, *range(0, len(whole), step)}
        for spot in spots:
            broken = bytearray(whole)
            broken[spot] ^= 1 << spot % 8
            path.write_bytes(broken)
            assert first_wrong(copy) == path.relative_to(copy).as_posix(), spot
        path.write_bytes(whole)


def test_blocks_pictures_and_tensorboard_are_under_it(copy):
    for name in ("checkpoints/blocks/x.safetensors", "images/a.png", "tensorboard/events"):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_bytes(b"x")
        assert first_wrong(copy) == name
        renew(copy)
        (copy / name).write_bytes(b"y")
        assert first_wrong(copy) == name
        renew(copy)


def test_missing_added_and_linked_files(cli, copy, tmp_path):
    shutil.move(copy / "metrics.jsonl", tmp_path / "metrics.jsonl")
    assert first_wrong(copy) == "metrics.jsonl"
    (copy / "metrics.jsonl").symlink_to(tmp_path / "metrics.jsonl")
    assert first_wrong(copy) == "metrics.jsonl"
    (copy / "metrics.jsonl").unlink()
    shutil.move(tmp_path / "metrics.jsonl", copy / "metrics.jsonl")
    (copy / "more").symlink_to(tmp_path)
    assert first_wrong(copy) == "more"
    (copy / "more").unlink()
    (copy / ".lock").write_text("x")
    result = cli("verify", copy, "--json")
    assert result.code == 1
    assert verdicts(result)[".lock"] == "differs"


def test_an_unfinished_run_cannot_be_checked(cli, half):
    result = cli("verify", half, "--json")
    assert result.code == 3
    assert verdicts(result) == {"manifest.json": "cannot be checked"}


def test_hostile_manifests(cli, copy):
    for text in ("[]", "{}", '{"made_with": {}, "files": {"x": 1}}', "{" * 9,
                 '{"files": {}, "made_with": {"x": ' + "[" * 900 + "]" * 900 + "}}"):  # fmt: skip
        (copy / "manifest.json").write_text(text)
        result = cli("verify", copy, "--json")
        assert result.code == 1
        assert verdicts(result) == {"manifest.json": "differs"}


def test_what_is_told_must_be_what_is_played(cli, copy):
    """The author of a run can make its manifest fit, but not the policy play so."""
    summary = json.loads((copy / "summary.json").read_text())
    told = summary["final"]["returns"]
    raised = [told[0], math.nextafter(told[1], 0), *told[2:]]
    edit(copy / "summary.json", final=summary["final"] | {"returns": raised})
    renew(copy)
    result = cli("verify", copy, "--json")
    assert result.code == 1
    (wrong,) = [claim for claim in result.json["claims"] if claim["verdict"] == "differs"]
    assert wrong["what"] == "returns of the final policy"
    assert "episode 1" in wrong["why"]
    edit(copy / "summary.json", **summary)
    metrics = (copy / "metrics.jsonl").read_text().splitlines()
    last = json.loads(metrics[-1])
    last["eval/return"] += 1
    (copy / "metrics.jsonl").write_text("\n".join([*metrics[:-1], json.dumps(last)]) + "\n")
    renew(copy)
    assert "metrics.jsonl" in cli("verify", copy).out


def test_another_machine_is_a_reason(cli, copy):
    """The same bits are the same on any machine; others may be so because of it."""

    def renew_on_another():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(manifest, "_cpu", lambda: "Z80")
            renew(copy)

    renew_on_another()
    assert cli("verify", copy).code == 0
    tree = load_tree(copy / "policy.safetensors", "policy")
    for tensor in tree["state"].values():
        tensor.add_(1)
    save_tree(copy / "policy.safetensors", "policy", tree)
    renew_on_another()
    result = cli("verify", copy, "--json")
    assert result.code == 3, result.out
    assert verdicts(result)["returns of the final policy"] == "cannot be checked"
    assert "cpu was Z80" in result.out
    renew(copy)
    assert cli("verify", copy).code == 1


@pytest.mark.parametrize("which", ["run", "cartpole"])
def test_replay(cli, tmp_path, which, request):
    """Offline and online: trained again, the same rows and bits; with another seed, others."""
    run = request.getfixturevalue(which)
    result = cli("verify", run, "--replay", "--json")
    assert result.code == 0, result.out
    assert verdicts(result)["trained again: metrics"] == "verified"
    assert verdicts(result)["trained again: policy"] == "verified"
    copy = shutil.copytree(run, tmp_path / "other")
    edit(copy / "config.yaml", seed=7)
    renew(copy)
    result = cli("verify", copy, "--replay", "--json")
    assert result.code == 1
    found = {claim["what"]: claim for claim in result.json["claims"]}
    assert found["returns of the final policy"]["verdict"] == "verified"
    assert found["trained again: metrics"]["verdict"] == "differs"
    assert "row 1, step 0" in found["trained again: metrics"]["why"]
    assert "numbers differ" in found["trained again: policy"]["why"]


def test_nothing_that_a_run_names_is_imported(cli, copy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("evil_env.py", "evil.py"):
        Path(name).write_text("open('executed', 'w')\n")
    edit(copy / "config.yaml", env="evil_env:Evil-v0")
    tree = load_tree(copy / "policy.safetensors", "policy")
    save_tree(copy / "policy.safetensors", "policy", tree | {"env": "evil_env:Evil-v0"})
    renew(copy)
    result = cli("verify", copy, "--replay", "--json")
    assert result.code == 3
    assert verdicts(result)["returns of the final policy"] == "cannot be checked"
    assert verdicts(result)["trained again: metrics, policy"] == "cannot be checked"
    assert cli("verify", copy, "--env", "Pendulum-v1").code == 2
    edit(copy / "config.yaml", env="Pendulum-v1")
    edit(copy / "metadata.json", recipe=str(tmp_path / "evil.py"))
    renew(copy)
    result = cli("verify", copy, "--replay", "--json")
    assert verdicts(result)["trained again: metrics, policy"] == "cannot be checked"
    assert "--recipe" in result.out
    assert not Path("executed").exists()


def test_a_run_made_longer_and_its_dataset(cli, tmp_path):
    data, out = tmp_path / "data.npz", tmp_path / "run"
    cli("data", "make", "Pendulum-v1", "--behaviour", "noisy", "--size", 400, "-o", data)
    flags = {"steps": 4, "eval_episodes": 1, "hidden": (8,), "wandb": "disabled"}
    composerl.train("bc_pendulum", out=out, dataset=str(data), **flags)
    assert verdicts(cli("verify", out, "--json"))[str(data)] == "verified"
    before = (out / "manifest.json").read_bytes()
    composerl.train("bc_pendulum", out=out, resume=True, steps=6)
    assert (out / "manifest.json").read_bytes() != before
    result = cli("verify", out, "--replay", "--json")
    assert result.code == 3
    assert "from step 4 with other settings" in result.out
    data.write_bytes(data.read_bytes() + b"x")
    assert verdicts(cli("verify", out, "--json"))[str(data)] == "differs"
    data.unlink()
    result = cli("verify", out, "--json")
    assert result.code == 3
    assert verdicts(result)[str(data)] == "cannot be checked"


def test_going_on_takes_the_old_manifest_away(copy, monkeypatch):
    """A run that is killed on its second way is not held against its first end."""

    def die(self, step, metrics):
        raise InterruptedError

    monkeypatch.setattr("composerl.bookkeeping.rows.Rows.add", die)
    with pytest.raises(InterruptedError):
        composerl.train("iql_pendulum", out=copy, resume=True, steps=80)
    assert not (copy / "manifest.json").exists()


def test_first_difference():
    a = {"x": [1, math.nan, torch.tensor([1.0, math.nan])], "y": TensorDict({"z": torch.ones(2)})}
    b = {"x": [1, math.nan, torch.tensor([1.0, math.nan])], "y": TensorDict({"z": torch.ones(2)})}
    assert first_difference(a, b) is None
    b["y"]["z"][1] = 1.5
    assert first_difference(a, b) == "y: z: 1 of 2 numbers differ, by 0.5 at most"
    assert first_difference([1], [1, 2]) == "one has 1 items, the other 2"
    assert first_difference(1, 1.0) == "1 and 1.0"
    assert first_difference({"a": 1}, {}) == "a is in one of them only"
    assert first_difference(torch.zeros(1), torch.tensor([-0.0])) is not None
    assert "torch.int64 (2,)" in first_difference(torch.zeros(2), torch.zeros(2).long())
