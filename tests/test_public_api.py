"""Public names: listed, documented, importable as promised (X4)."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest

import composerl

PACKAGES = ["composerl", "composerl.losses", "composerl.modules", "composerl.data"]
MODULES = [m.name for m in pkgutil.walk_packages(composerl.__path__, "composerl.")]


@pytest.mark.parametrize("name", PACKAGES)
def test_public_names_exist_and_are_documented(name):
    module = importlib.import_module(name)
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for public in module.__all__:
        thing = getattr(module, public)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), f"{name}.{public} has no docstring"


@pytest.mark.parametrize("name", MODULES)
def test_modules_say_what_they_are_and_list_what_they_offer(name):
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    assert module.__all__, f"{name} has no __all__"
    for public in module.__all__:
        assert hasattr(module, public), f"{name}.__all__ names {public}, which is not there"


def test_promised_names():
    from composerl import Policy, Run, RunConfig, Update, load
    from composerl.losses import IQLLoss, expectile_loss

    assert all((Policy, Run, RunConfig, Update, load, IQLLoss, expectile_loss))
    assert composerl.__version__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        composerl.nothing  # noqa: B018


def test_imports_go_one_way():
    """losses and modules stand alone: neither knows runs, configs or each other."""
    import ast
    from pathlib import Path

    root = Path(composerl.__file__).parent
    allowed = {
        "losses": {"composerl.losses"},
        "modules": {"composerl.modules", "composerl.spaces"},
        # experts may be trained policies, which know networks but no run; online data need an env
        "data": {f"composerl.{name}" for name in ("data", "spaces", "console", "policy", "envs")},
    }
    for package, names in allowed.items():
        for path in (root / package).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("composerl"):
                    assert any(node.module.startswith(name) for name in names), (path, node.module)


@pytest.mark.parametrize(
    "name", ["bc", "dreamer", "dynamics", "fqf", "gail", "iql", "iqn", "sac", "world_model"]
)
def test_examples_in_docstrings_run(name):
    results = doctest.testmod(importlib.import_module(f"composerl.losses.{name}"))
    assert results.attempted > 0
    assert results.failed == 0
