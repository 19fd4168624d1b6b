"""The API reference: it builds without a warning, and shows what ``help`` shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import composerl.losses

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    pytest.importorskip("pdoc", reason="NO API REFERENCE: needs the extra docs")
    out = tmp_path_factory.mktemp("reference")
    made = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-m", "tests.reference", out],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return out / "composerl"


def test_every_public_loss_has_its_words(pages):
    text = (pages / "losses.html").read_text(encoding="utf-8")
    for name in composerl.losses.__all__:
        assert f'id="{name}"' in text, name
    assert "smaller is closer to the maximum" in text  # of XQLLoss


def test_no_markup_is_left(pages):
    for page in pages.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        shown = re.sub(r"<(pre|code)\b.*?</\1>", "", text, flags=re.DOTALL)
        left = re.findall(r".*:(?:class|func|meth|attr|mod|math|data):`.*", shown)
        assert not left, (page.name, left[:3])


def test_files_inside_a_package_have_no_page(pages):
    assert not [path for path in pages.iterdir() if path.is_dir()]
