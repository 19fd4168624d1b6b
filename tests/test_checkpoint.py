"""Trees in files: exact round trip, atomic, refuse what is damaged, execute nothing."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict, lazy_stack

from composerl.bookkeeping import blocks, checkpoint, trees
from composerl.bookkeeping.machine import restore_rng, rng_state
from composerl.bookkeeping.trees import load_tree, save_tree


def test_round_trip_is_exact(tmp_path):
    weight = torch.randn(3, 4)
    tree = {
        "int": 3, "float": 0.1, "none": None, "true": True, "text": "ä", "inf": float("inf"),
        "tuple": (1, (2.5, "x")), "list": [1, [2]], 7: {"integer key": torch.tensor(1.5)},
        "weight": weight, "again": weight, "view": weight[:, 1], "slice": weight[1:],
        "scalar": torch.tensor(3), "empty": torch.zeros(0), "bool": torch.tensor([True]),
        "half": torch.ones(2, dtype=torch.bfloat16), "double": torch.tensor(0.1).double(),
    }  # fmt: skip
    save_tree(tmp_path / "a.safetensors", "thing", tree)
    back = load_tree(tmp_path / "a.safetensors", "thing")
    assert list(back) == list(tree)
    for key, value in tree.items():
        if isinstance(value, torch.Tensor):
            assert back[key].dtype == value.dtype
            assert torch.equal(back[key], value), key
        elif key != 7:
            assert back[key] == value
            assert type(back[key]) is type(value)
    assert back[7]["integer key"] == 1.5


def test_what_torchrl_s_states_have_comes_back(tmp_path):
    """Shapes, devices, TensorDicts, and what a TensorDict's state says of itself."""
    inner = TensorDict({"x": torch.arange(6).view(2, 3), "flag": torch.ones(2, 3)}, [2, 3])
    content = TensorDict({"a": torch.randn(2), "inner": inner}, [2], device="cpu")
    tree = {"size": torch.Size([2, 3]), "device": torch.device("cpu"), "content": content}
    tree |= {"state": content.state_dict(), "module": torch.nn.Linear(2, 1).state_dict()}
    save_tree(tmp_path / "a", "checkpoint", tree)
    back = load_tree(tmp_path / "a", "checkpoint")
    for key in ("size", "device"):
        assert back[key] == tree[key]
        assert type(back[key]) is type(tree[key])
    assert back["state"]._metadata == tree["state"]._metadata
    again = TensorDict().load_state_dict(back["state"], strict=False)
    for got in (back["content"], again):
        assert got.batch_size == (2,)
        assert got["inner"].batch_size == (2, 3)
        assert (got == content).all()
    torch.nn.Linear(2, 1).load_state_dict(back["module"])


@pytest.mark.parametrize("number", [10, 2_000_000])
def test_memory_that_was_never_written_is_not_taken_for_damage(number, tmp_path):
    """Flags of other bytes than 0 and 1, as a buffer has them beyond its last row."""
    odd = torch.full((number,), 171, dtype=torch.uint8).view(torch.bool)
    odd[0] = False
    save_tree(tmp_path / "a", "checkpoint", {"flags": odd, "one": odd[3]})
    back = load_tree(tmp_path / "a", "checkpoint")
    assert not back["flags"][0]
    assert back["flags"][1:].all()
    assert back["one"]


def test_a_device_that_is_none_is_refused(tmp_path):
    save_tree(tmp_path / "a", "thing", {"device": torch.device("cpu")})
    about = {"kind": "thing", "format": 3, "tree": {"!device": "cpx"}}
    about["checksum"] = trees._checksum(about, {})
    write_raw(tmp_path / "a", {"composerl": json.dumps(about)})
    with pytest.raises(ValueError, match=r"damaged or not a thing file: .*cpx"):
        load_tree(tmp_path / "a", "thing")


def test_the_same_tree_is_the_same_bytes(tmp_path):
    tree = {"b": torch.arange(3.0), "a": {"x": [1, float("nan")], "y": torch.zeros(2, 2)}}
    for name in "abcd":
        save_tree(tmp_path / name, "thing", tree)
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


def test_shared_tensor_is_stored_once(tmp_path):
    weight = torch.randn(1000)
    save_tree(tmp_path / "once", "thing", {"a": weight})
    save_tree(tmp_path / "twice", "thing", {"a": weight, "b": weight})
    assert (tmp_path / "twice").stat().st_size - (tmp_path / "once").stat().st_size < 200


def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    save_tree(path, "thing", {"x": 1})
    real = Path.write_bytes

    def full_disk(file, content):
        real(file, content[:5])
        raise OSError(28, "No space left on device", str(file))

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save_tree(path, "thing", {"x": 2})
    assert load_tree(path, "thing") == {"x": 1}
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_what_a_checkpoint_cannot_hold_is_named(tmp_path):
    with pytest.raises(TypeError, match="cannot hold a object"):
        save_tree(tmp_path / "a", "thing", {"x": object()})
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("keep", [0, 4, 20, -1, -50])
def test_truncated_file_is_refused_in_one_sentence(tmp_path, keep):
    path = tmp_path / "a.safetensors"
    save_tree(path, "thing", {"x": torch.randn(100)})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"a\.safetensors is damaged or not a thing file"):
        load_tree(path, "thing")


def test_other_kinds_formats_and_files_are_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    save_tree(path, "policy", {})
    with pytest.raises(ValueError, match="holds a policy, expected a checkpoint"):
        load_tree(path, "checkpoint")
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_tree(tmp_path / "b", "policy")
    write_raw(path, {"composerl": json.dumps({"kind": "policy", "format": 99, "tree": {}})})
    with pytest.raises(ValueError, match="update composerl"):
        load_tree(path, "policy")
    write_raw(path, {"format": "pt"})
    with pytest.raises(ValueError, match="not written by composerl"):
        load_tree(path, "policy")


@pytest.mark.parametrize(
    "tree",
    [
        {"!tensor": "missing"},
        {"!code": "import os"},
        {"!dict": [[]]},
        {"!dict": 3},
        {"!dict": [[{"!dict": []}, 1]]},
        {"!tensor": ["t0"]},
        {},
    ],
)
def test_malformed_headers_are_refused(tmp_path, tree):
    path = tmp_path / "a.safetensors"
    write_raw(path, {"composerl": json.dumps({"kind": "policy", "format": 1, "tree": tree})})
    with pytest.raises(ValueError, match="damaged"):
        load_tree(path, "policy")


def test_a_pickle_in_place_of_a_checkpoint_is_not_executed(tmp_path):
    marker = tmp_path / "executed"

    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(marker),))

    for content in (pickle.dumps(Bomb()), pickle.dumps({"tree": Bomb()}, protocol=0)):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(ValueError, match="damaged"):
            load_tree(tmp_path / "a", "checkpoint")
    torch.save({"x": Bomb()}, tmp_path / "a")
    with pytest.raises(ValueError, match="damaged"):
        load_tree(tmp_path / "a", "checkpoint")
    assert not marker.exists()


def test_random_generators_go_on_where_they_were(tmp_path):
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    random.gauss(0, 1), np.random.normal()  # both keep a second number for the next call
    save_tree(tmp_path / "rng", "rng", rng_state())
    expected = random.gauss(0, 1), np.random.normal(), torch.rand(3)
    restore_rng(load_tree(tmp_path / "rng", "rng"))
    again = random.gauss(0, 1), np.random.normal(), torch.rand(3)
    assert expected[:2] == again[:2]
    assert torch.equal(expected[2], again[2])


def write_raw(path, metadata):
    header = json.dumps({"__metadata__": metadata}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)


def test_two_views_of_one_storage(tmp_path):
    x = torch.arange(6.0)
    save_tree(
        tmp_path / "a", "thing", {"flat": x, "square": x.view(2, 3), "bytes": x.view(torch.int32)}
    )
    back = load_tree(tmp_path / "a", "thing")
    assert torch.equal(back["flat"], x)
    assert torch.equal(back["square"], x.view(2, 3))
    assert torch.equal(back["bytes"], x.view(torch.int32))


def test_a_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / "a"
    save_tree(path, "thing", {"x": torch.zeros(100)})
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="checksum"):
        load_tree(path, "thing")


# ---- large tensors ---------------------------------------------------------------------------


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 1 kB: a hundred rows of ten bytes each, or less."""
    for module in (blocks, trees):
        monkeypatch.setattr(module, "LARGE", 2000)


def written(directory):
    """The blocks by name, each with when it was written."""
    return {path.name: path.stat().st_mtime_ns for path in (directory / "blocks").iterdir()}


def test_a_ring_buffer_writes_only_the_blocks_that_changed(tmp_path, small_blocks):
    """500 of 600 rows of 10 bytes: 5 blocks; 50 more rows: one new block; one row overwritten:
    one other. The first checkpoint still reads as it was."""
    ring = torch.randint(0, 255, (600, 10), dtype=torch.uint8)
    first, second, third = (tmp_path / name for name in "abc")
    before = ring[:500].clone()
    save_tree(first, "checkpoint", {"ring": ring[:500], "small": torch.ones(3)})
    one = written(tmp_path)
    save_tree(second, "checkpoint", {"ring": ring[:550]})
    two = written(tmp_path)
    ring[120] += 1
    save_tree(third, "checkpoint", {"ring": ring[:550]})
    three = written(tmp_path)
    assert [len(found) for found in (one, two, three)] == [5, 6, 7]
    assert one.items() <= two.items() <= three.items()
    assert torch.equal(load_tree(first, "checkpoint")["ring"], before)
    assert torch.equal(load_tree(third, "checkpoint")["ring"], ring[:550])
    assert first.stat().st_size < 2500


@pytest.mark.parametrize("full", [False, True], ids=["growing", "a full ring"])
@pytest.mark.parametrize("megabytes", [1, 5, 16, 64])
def test_a_checkpoint_writes_what_is_new(megabytes, full, tmp_path):
    """100 kB of new rows: their blocks, of a quarter of a megabyte, and one more at the most."""
    rows = megabytes * 10_000
    ring = torch.randint(0, 255, (rows + 3000, 100), dtype=torch.uint8)
    kept = blocks.Blocks(tmp_path / "blocks")
    kept.add(ring[:rows])
    kept.flush()
    for k in range(1, 4):
        before = written(tmp_path)
        if full:
            ring[7000:8000] += k
        kept.add(ring[:rows] if full else ring[: rows + 1000 * k])
        kept.flush()
        new = written(tmp_path).keys() - before.keys()
        size = sum((tmp_path / "blocks" / name).stat().st_size for name in new)
        assert 100_000 <= size < 100_000 + 2 * 270_000


def test_blocks_begin_at_the_same_rows_in_a_tensor_of_any_length():
    """Each has at most a 128th of what is before it, or a quarter of a megabyte."""
    whole = [*blocks._cuts(2_000_000, 100)]
    starts = np.cumsum([0, *whole])
    assert starts[-1] == 2_000_000
    assert len(whole) < 600
    assert all(n <= max(2621, start / 128) for n, start in zip(whole, starts, strict=False))
    for rows in (1, 5000, 700_000, 1_999_999):
        ends = np.cumsum([*blocks._cuts(rows, 100)])
        assert {*ends[:-1]} <= {*starts}
        assert ends[-1] == rows
    assert [*blocks._cuts(3, 1 << 30)] == [1, 1, 1]


def test_rotation_removes_the_blocks_nobody_needs(tmp_path, small_blocks):
    run = tmp_path
    (run / "checkpoints" / "blocks").mkdir(parents=True)
    ring = torch.zeros(400, 10, dtype=torch.uint8)
    for step in range(4):
        ring[step * 100 : (step + 1) * 100] = torch.arange(100, dtype=torch.uint8)[:, None] + step
        checkpoint.save_checkpoint(run, step, {"ring": ring})
    kept = checkpoint.checkpoints(run)
    needed = {file for path in kept for file in trees.block_files(path)}
    assert len(kept) == 2
    assert {*(run / "checkpoints" / "blocks").iterdir()} == needed
    assert len(needed) == 5  # four of the newest; that of zeros, which the one before had
    assert torch.equal(load_tree(kept[0], "checkpoint")["ring"], ring)
    # A damaged checkpoint must not end the training that goes on.
    kept[1].write_bytes(b"x")
    checkpoint.save_checkpoint(run, 3, {"ring": ring})
    assert torch.equal(load_tree(kept[0], "checkpoint")["ring"], ring)


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped", "renamed"])
def test_damaged_block_is_noticed_and_the_checkpoint_before_it_used(
    tmp_path, small_blocks, damage, capsys
):
    (tmp_path / "checkpoints").mkdir()
    for step in (1, 2):
        tree = {"step": step, "ring": torch.full((50, 100), step, dtype=torch.uint8)}
        checkpoint.save_checkpoint(tmp_path, step, tree)
    newest = checkpoint.checkpoints(tmp_path)[0]
    block = trees.block_files(newest)[0]
    data = bytearray(block.read_bytes())
    data[-1] ^= 1
    {
        "gone": lambda: block.unlink(),
        "cut": lambda: os.truncate(block, len(data) - 5),
        "flipped": lambda: block.write_bytes(data),
        "renamed": lambda: os.replace(
            trees.block_files(checkpoint.checkpoints(tmp_path)[1])[0], block
        ),
    }[damage]()
    with pytest.raises(ValueError, match=f"{block.name} is damaged"):
        load_tree(newest, "checkpoint")
    if damage != "renamed":
        assert checkpoint.load_newest(tmp_path)["step"] == 1
        assert "is damaged" in capsys.readouterr().err


def test_blocks_of_earlier_versions_are_read(tmp_path, small_blocks, monkeypatch):
    """Their names are by blake2b; what is written next has names by xxh3."""
    tensor = torch.arange(1000)
    new = blocks._name
    old = "1a9fe5cbc915542b7956b595d16f316d"  # made by the version before
    with monkeypatch.context() as patch:
        patch.setattr(blocks, "_name", lambda part: new(part, hashlib.blake2b(digest_size=16)))
        save_tree(tmp_path / "a", "checkpoint", {"x": tensor})
    names = [path.stem for path in trees.block_files(tmp_path / "a")]
    assert names[0] == old
    assert torch.equal(load_tree(tmp_path / "a", "checkpoint")["x"], tensor)
    save_tree(tmp_path / "b", "checkpoint", {"x": tensor})
    assert not {path.stem for path in trees.block_files(tmp_path / "b")} & {*names}
    assert torch.equal(load_tree(tmp_path / "b", "checkpoint")["x"], tensor)


def test_part_of_a_checkpoint_needs_no_other_blocks(tmp_path, small_blocks):
    tree = {"policy": {"w": torch.ones(3)}, "buffer": torch.zeros(2000)}
    save_tree(tmp_path / "a", "checkpoint", tree)
    trees.block_files(tmp_path / "a")[0].unlink()
    assert load_tree(tmp_path / "a", "checkpoint", "policy")["w"].tolist() == [1, 1, 1]


def test_block_names_are_no_paths(tmp_path):
    with pytest.raises(ValueError, match="no name of a block"):
        blocks.Blocks(tmp_path).read({"shape": [1], "names": ["../../etc/passwd"]})


@pytest.mark.parametrize("shape", [[4, 7], [3, 6], [10**15, 6], []])
def test_a_shape_that_does_not_fit_the_blocks_is_noticed(tmp_path, shape):
    kept = blocks.Blocks(tmp_path)
    about = kept.add(torch.zeros(4, 6))
    kept.flush()
    assert kept.read(about).shape == (4, 6)
    with pytest.raises(ValueError, match=r"is no part of|holds 4 of|too few for"):
        kept.read(about | {"shape": shape})


def test_policies_hold_everything_themselves(tmp_path, small_blocks):
    save_tree(tmp_path / "a", "policy", {"w": torch.ones(2000)})
    assert os.listdir(tmp_path) == ["a"]
    assert load_tree(tmp_path / "a", "policy")["w"].sum() == 2000


def test_tensors_made_for_the_state_alone_are_told_apart(tmp_path):
    """A lazy stack makes its tensors when it is asked: one may lie where the last one lay."""
    rows = blocks.LARGE // 4
    stacks = {
        i: lazy_stack([TensorDict({"x": torch.full((rows,), float(i))}) for _ in range(2)])
        for i in range(4)
    }
    for _ in range(2):  # the second time all blocks are there, and nobody holds what they are of
        save_tree(tmp_path / "a", "checkpoint", stacks)
    back = load_tree(tmp_path / "a", "checkpoint")
    assert [back[i]["x"].unique().tolist() for i in range(4)] == [[0.0], [1.0], [2.0], [3.0]]
