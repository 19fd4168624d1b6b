"""Nothing that is loaded from a run directory or a dataset executes code."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil

import numpy as np
import pytest
import torch
from recipes.harness import RECIPES, load_recipe, run_in_process, small_config

import composerl
from composerl.data import load_dataset

RECIPE = next(path for path in RECIPES if path.stem == "iql_pendulum")


class Bomb:
    """Leaves a mark when unpickled."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return (os.mkdir, (self.mark,))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("safety") / "run"
    assert run_in_process(RECIPE, out, kill_at="update:50") == -9
    return out


def poison(kind, mark, path):
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Bomb(mark)))
    elif kind == "torch":
        with open(path, "wb") as file:
            torch.save({"tree": Bomb(mark), "x": torch.zeros(1)}, file)
    elif kind == "numpy":
        with open(path, "wb") as file:
            np.savez(file, observations=np.array([Bomb(mark)], dtype=object))
    elif kind == "yaml":
        path.write_text(f"!!python/object/apply:os.mkdir [{str(mark)!r}]\n")


def test_the_bombs_are_live(tmp_path):
    """Otherwise the tests below would prove nothing."""
    poison("pickle", tmp_path / "a", tmp_path / "x")
    pickle.loads((tmp_path / "x").read_bytes())
    poison("torch", tmp_path / "b", tmp_path / "x")
    torch.load(tmp_path / "x", weights_only=False)
    poison("numpy", tmp_path / "c", tmp_path / "x")
    dict(np.load(tmp_path / "x", allow_pickle=True))
    assert all((tmp_path / name).is_dir() for name in "abc")


@pytest.mark.parametrize("kind", ["pickle", "torch", "numpy", "yaml"])
def test_poison_in_any_file_of_a_run(run, kind, tmp_path):
    mark = tmp_path / "executed"
    files = [path for path in run.rglob("*") if path.is_file()]
    assert {"config.yaml", "metadata.json", "metrics.jsonl"} <= {path.name for path in files}
    recipe = load_recipe(RECIPE)
    for number, file in enumerate(files):
        copy = tmp_path / f"run{number}"
        shutil.copytree(run, copy)
        poison(kind, mark, copy / file.relative_to(run))
        for use in (
            lambda copy=copy: composerl.load(copy).predict(np.zeros(3)),
            lambda copy=copy: composerl.load(copy, which="best"),
            lambda copy=copy: recipe.main(small_config(recipe, copy, resume=True)),
        ):
            with contextlib.suppress(ValueError, OSError):  # a file that is not read does no harm
                use()
        assert not mark.exists(), file


@pytest.mark.parametrize("name", ["data.npz", "data.hdf5", "data.h5"])
@pytest.mark.parametrize("kind", ["pickle", "torch", "numpy"])
def test_poisoned_datasets(kind, name, tmp_path):
    poison(kind, tmp_path / "executed", tmp_path / name)
    with pytest.raises((ValueError, OSError)):
        load_dataset(str(tmp_path / name), "Pendulum-v1")
    assert not (tmp_path / "executed").exists()


def test_names_cannot_leave_the_run_directory(run):
    """The only name that comes from a file is the W&B id, and it is checked."""
    from composerl.bookkeeping.tracking import Tracker

    with pytest.raises(ValueError, match="run id"):
        Tracker(run, config={}, run_id="../../escape")
