"""``pytest --composerl-losses``: what is collected, how it is reported, what it costs others."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Before pytester does, which forgets what a run has imported: torch cannot be imported twice.
import composerl.losses.ppo
import composerl.testing.conformance  # noqa: F401

pytest_plugins = ["pytester"]

MODULE = """
from composerl.losses import GAILLoss, IQLLoss, RowLoss
from composerl.testing.building import build

class Base(RowLoss): ...

class Sound(IQLLoss): ...

class Forgetful(IQLLoss):
    def _loss_mask_keys(self):
        return ()

class Odd(IQLLoss):
    def __init__(self, world):
        super().__init__(*world)

class Broken(IQLLoss): ...

def broken():
    raise RuntimeError("no network today")

examples = {"Base": None, "GAIL-plain": lambda: build(GAILLoss), "Broken": broken}
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Pytest inside of pytest, with the plugin whether or not composerl is installed with it."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(checked_losses=MODULE, test_mine="def test_other(): pass")
    pytester.syspathinsert()
    return lambda *arguments: pytester.runpytest_inprocess(
        "-p", "composerl.testing.plugin", "-p", "no:cacheprovider", *arguments
    )


def test_every_check_of_every_loss_is_a_test(run):
    done = run(
        "--composerl-losses", "checked_losses", "-k", "mask or example or logits", "-v", "-rs"
    )
    done.assert_outcomes(
        passed=3, failed=3, skipped=2, deselected=done.parseoutcomes()["deselected"]
    )
    done.stdout.fnmatch_lines_random([
        "checked_losses::GAIL-plain::mask PASSED*",
        "checked_losses::GAIL-plain::logits PASSED*",
        "checked_losses::Sound::mask PASSED*",
        "checked_losses::Forgetful::mask FAILED*",
        "checked_losses::Odd::example FAILED*",
        "checked_losses::Broken::example FAILED*",
        "SKIPPED*does not apply without a discriminator",
        # a sentence, not a traceback
        "*_ checked_losses::Forgetful::mask _*",
        "*loss_actor with NaN in rows masked by*",
        "Odd cannot be made by its signature (it needs world): give checked_losses a dictionary *",
        # but where the user's own code fails
        "*RuntimeError: no network today",
    ])  # fmt: skip
    done.stdout.no_fnmatch_line("checked_losses::Base*")
    done.stdout.no_fnmatch_line("*test_other*")


def test_other_tests_run_where_they_are_named(run):
    done = run(
        "--composerl-losses", "checked_losses", "test_mine.py", "-k", "test_other or dispatch"
    )
    done.assert_outcomes(passed=4, deselected=done.parseoutcomes()["deselected"])
    run().assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("no_such_module", "No module named 'no_such_module' (python -m pytest finds *"),
        ("test_mine", "there are no losses in test_mine"),
    ],
)
def test_a_wrong_module_is_named(run, module, message):
    done = run("--composerl-losses", module)
    assert done.ret == pytest.ExitCode.INTERRUPTED
    done.stdout.fnmatch_lines(["*ERROR collecting " + module + "*", message])


def test_pytest_starts_without_torch():
    code = (
        "import sys, composerl.testing.plugin; print(sorted({'torch', 'numpy'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
