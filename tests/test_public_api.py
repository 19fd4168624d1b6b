"""Public names: listed, documented, importable as promised."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import composerl

ROOT = Path(composerl.__file__).parent
#: Packages inside a room list nothing: the room does.
FOUND = [
    found
    for found in pkgutil.walk_packages(composerl.__path__, "composerl.")
    if not (found.ispkg and found.name.count(".") > 1)
]
MODULES = [m.name for m in FOUND]
PACKAGES = ["composerl", *(m.name for m in FOUND if m.ispkg)]


@pytest.mark.parametrize("name", PACKAGES)
def test_public_names_exist_and_are_documented(name):
    module = importlib.import_module(name)
    assert sorted(module.__all__) == sorted(set(module.__all__))
    # Importing a submodule would put it in the place of the lazy name.
    assert not {m.name for m in pkgutil.iter_modules(module.__path__)} & {*module.__all__}
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


#: Which rooms (and files of the root) a room may import: each looks down, none up or sideways.
BELOW = {
    "_lazy": set(),
    "_files": set(),
    "_private": set(),
    "_schema": set(),
    "_ray": set(),
    "errors": set(),
    "config": {"errors"},
    "envs": set(),
    "spaces": {"envs"},
    "losses": set(),
    "modules": {"envs"},
    "optim": {"losses"},
    "update": {"modules", "optim"},
    "data": {"envs"},
    "bookkeeping": {"config", "data", "envs", "errors", "modules", "optim"},
    "policy": {"bookkeeping", "envs", "modules"},
    "run": {"bookkeeping", "config", "envs", "policy"},
    "catalog": {"analysis", "config"},
    "analysis": {"bookkeeping", "config", "data", "errors", "losses", "modules", "policy", "run",
                 "update"},
    "testing": {"losses"},
    "fleet": {"analysis", "bookkeeping", "catalog", "config", "errors"},
    "cli": {"analysis", "bookkeeping", "catalog", "config", "data", "envs", "errors", "fleet",
            "policy"},
}  # fmt: skip

#: What every room may use, and which itself uses no room.
BASE = ("_lazy", "_files", "_schema", "_private", "_ray", "__version__")


def imports_of(path):
    """(module, whether at the top of the file) of each import of ours."""
    tree = ast.parse(path.read_text())
    top = [*tree.body, *(n for block in tree.body if isinstance(block, ast.If) for n in block.body)]
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "composerl":
                names = [f"composerl.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("composerl."):
                yield name, node in top


def room(name):
    return name.split(".")[1]


def test_imports_go_one_way():
    """Lazy imports and those for type checkers count too: none may dodge a cycle."""
    for path in ROOT.glob("**/*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts == ("__init__",) or parts == ("__main__",):
            continue
        mine = parts[0]
        for name, _ in imports_of(path):
            where = room(name)
            allowed = BELOW[mine] | {mine, *BASE}
            assert where in allowed, (
                f"{path.relative_to(ROOT)} imports {name}: {mine} may only import {BELOW[mine]}"
            )


def test_only_commands_import_late():
    """A late import saves a command the time of torch; elsewhere it would hide a cycle."""
    for path in ROOT.glob("**/*.py"):
        if path.parent.name == "cli" or path.name == "__init__.py":
            continue
        late = [name for name, top in imports_of(path) if not top]
        assert not late, f"{path.relative_to(ROOT)} imports {late} inside a function"


def test_the_root_is_an_entrance_hall():
    assert len(list(ROOT.glob("[!_]*.py"))) <= 8


@pytest.mark.parametrize(
    "name",
    [
        "bc", "dreamer", "dynamics", "fqe", "fqf", "gail", "iql", "iqn", "pure", "pure_quantiles",
        "pure_sac", "sac", "td3_bc", "world_model",
    ],
)  # fmt: skip
def test_examples_in_docstrings_run(name):
    results = doctest.testmod(importlib.import_module(f"composerl.losses.{name}"))
    assert results.attempted > 0
    assert results.failed == 0
