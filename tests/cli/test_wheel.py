"""The built wheel, unpacked away from the clone, carries the recipes and runs them."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import composerl

ROOT = Path(__file__).parents[2]

#: All in one process: each would import torch anew.
SCRIPT = """
import sys
import composerl
from composerl.catalog import recipes_directory
from composerl.cli import main

assert composerl.__file__.startswith(sys.argv[1]), composerl.__file__
assert str(recipes_directory()).startswith(sys.argv[1])
small = "--steps 10 --hidden 8 --dataset-size 300 --eval-episodes 1 --wandb disabled".split()
main(["run", "iql_pendulum", *small, "--out", "run"])
main(["recipes", "copy", "iql_pendulum", "mine.py"])
main(["run", "mine.py", *small, "--out", "mine"])
main(["predict", "run", "--obs", "[1, 0, 0]"])
main(["export", "run", "-o", "policy.pt2"])
main(["plot", "run", "mine"])
main(["report", "run", "mine"])
main(["evaluate", "run", "--episodes", "1"])
"""


def build(kind, directory):
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (made,) = directory.iterdir()
    return made


def test_the_source_distribution_is_complete(tmp_path):
    with tarfile.open(build("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {"LICENSE", "CHANGELOG.md", "README.md", "pyproject.toml"}
    assert names >= {"composerl/analysis/report.html.j2", "tests/cli/test_wheel.py"}
    assert not [name for name in names if "__pycache__" in name]


def test_the_wheel_works_away_from_the_clone(tmp_path):
    wheel = build("wheel", tmp_path)
    site, place = tmp_path / "site", tmp_path / "place"
    place.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        names = archive.namelist()
        (entry,) = [name for name in names if name.endswith("entry_points.txt")]
        entries = archive.read(entry).decode()
        assert "composerl = composerl.cli:main" in entries
        assert "[pytest11]\ncomposerl = composerl.testing.plugin" in entries
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]
    (license,) = [name for name in names if name.endswith("licenses/LICENSE")]
    assert (site / license).read_text() == (ROOT / "LICENSE").read_text()
    shipped = {Path(name).stem for name in names if name.startswith("composerl/_recipes/")}
    assert shipped >= set(composerl.recipes())
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(site)],
        cwd=place, env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {path.name for path in place.iterdir()} - {"__pycache__"} == {
        "run", "mine", "mine.py", "presets", "sweeps", "policy.pt2", "curves.png", "report.html"
    }  # fmt: skip
