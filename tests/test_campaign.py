"""The campaign in its short form, and that it notices what it looks for."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("needs Linux", allow_module_level=True)

from campaign import child
from campaign.tries import DEFECTS, Table, Try

ROOT = Path(__file__).parents[1]


def test_a_few_of_each():
    """In a process of its own: threads of other tests would not survive its forks."""
    words = [sys.executable, "-m", "tests.campaign", "--count", "3"]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("kills", "flips", "hostile", "datasets", "flags", "disks"):
        assert name in done.stdout


def ended(action, place: Path, **options) -> child.Ended:
    return child.forked(action, child.Watch([place], place / "run"), **options)[0]


def fail():
    raise SystemExit(2)


def told():
    sys.stderr.write("error: so\n")
    raise SystemExit(2)


class Evil:
    def __reduce__(self):
        return (os.getcwd, ())


def test_what_goes_wrong_is_noticed(tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    place = tmp_path / "place"
    place.mkdir()
    elsewhere.touch()
    monkeypatch.setattr(child, "SECONDS", 0.5)
    poisoned = pickle.dumps(Evil())
    cases = {
        "fine": lambda: (place / "x").touch(),
        "told": told,
        "traceback": lambda: 1 / 0,
        "hang": lambda: time.sleep(60),
        "executed": lambda: pickle.loads(poisoned),
        "outside": elsewhere.unlink,
    }
    for how, action in cases.items():
        assert ended(action, place).how == how
    assert ended(fail, place).how == "traceback"  # without a sentence
    assert ended(lambda: print("\x07"), place).how == "traceback"
    assert ended(lambda: os.kill(os.getpid(), signal.SIGTERM), place).how == "traceback"
    monkeypatch.setattr(child, "MEMORY", 1)
    assert ended(lambda: None, place).how == "memory"


def test_a_child_is_killed_right_before_the_change(tmp_path):
    (tmp_path / "run").mkdir()

    def write():
        for name in "abc":
            (tmp_path / "run" / name).mkdir()

    killed, _ = child.forked(write, child.Watch([tmp_path], tmp_path / "run", kill_at=3))
    assert killed.code == -signal.SIGKILL
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["a", "b"]
    for path in (tmp_path / "run").iterdir():
        path.rmdir()
    _, changes = child.forked(write, child.Watch([tmp_path], tmp_path / "run"))
    assert changes == 3


def test_the_table_counts():
    table = Table()
    table.add("kills", Try("x", "fine", weight=3), 1.0)
    table.add("kills", Try("y", "hang"), 2.0)
    assert (table.tried("kills"), table.defects) == (4, 1)
    head, row = table.rows()
    assert row == ("kills", "4", "3", "0", *("1" if how == "hang" else "0" for how in DEFECTS), "3")
    assert len(head) == len(row)
