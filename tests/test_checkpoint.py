"""Trees in files: exact round trip, atomic, refuse what is damaged, execute nothing."""

from __future__ import annotations

import json
import os
import pickle
import random
import struct

import numpy as np
import pytest
import torch

from composerl import checkpoint
from composerl.checkpoint import load_tree, save_tree
from composerl.machine import restore_rng, rng_state


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


def test_shared_tensor_is_stored_once(tmp_path):
    weight = torch.randn(1000)
    save_tree(tmp_path / "once", "thing", {"a": weight})
    save_tree(tmp_path / "twice", "thing", {"a": weight, "b": weight})
    assert (tmp_path / "twice").stat().st_size - (tmp_path / "once").stat().st_size < 200


def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    save_tree(path, "thing", {"x": 1})
    real = checkpoint.save_file

    def full_disk(tensors, file, metadata):
        real(tensors, file, metadata=metadata)
        os.truncate(file, 5)
        raise OSError(28, "No space left on device", str(file))

    monkeypatch.setattr(checkpoint, "save_file", full_disk)
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
