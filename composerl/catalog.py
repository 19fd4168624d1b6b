"""The recipes that come with composerl: found, listed, copied, trained by name. Needs no torch."""

from __future__ import annotations

import ast
import importlib.util
import shutil
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from composerl import analysis
from composerl._files import replace_file
from composerl.config import config_start, preset_files, suggest, wait_passively

if TYPE_CHECKING:
    from composerl.analysis import Trained

__all__ = ["copy_recipe", "find_recipe", "load_recipe", "recipes", "recipes_directory", "train"]


def recipes() -> dict[str, str]:
    """The packaged recipes: name and, from the first line of the file, what it is."""
    found = {}
    for path in sorted(recipes_directory().glob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found[path.stem] = text.partition("\n")[0].rstrip(".")
    return found


def train(recipe: str | Path, **flags: Any) -> Trained:
    """Run a recipe: ``train("cql_pendulum", steps=1000, seed=3)``.

    Args:
        recipe: name of a packaged recipe (see :func:`recipes`), or the path of a recipe file.
        flags: fields of the recipe's ``Config``, the same as its command line's flags. They come
            on top of the file ``config`` or, with ``out`` and ``resume``, of the run found there.

    Returns: its policy, which knows the run: ``directory``, ``metrics`` and ``plot()``.
    """
    module = load_recipe(recipe)
    known = {field.name for field in fields(module.Config)}
    for name in flags:
        if name not in known:
            raise ValueError(f"Config of {recipe} has no {name!r}: {suggest(name, known)}")
    source, out, resume = map(flags.get, ("config", "out", "resume"))
    start = config_start(module.Config, source, out, resume, flags)
    values = (vars(start) if start else {}) | flags | module.Config.implied(set(flags))
    config = module.Config(**values)
    wait_passively(config.threads)
    policy = module.main(config)
    return analysis.Trained(policy) if getattr(policy, "directory", None) else policy


def recipes_directory() -> Path:
    """Where the packaged recipes are: inside an installed wheel, or beside a clone's package."""
    package = Path(__file__).parent
    for place in (package / "_recipes", package.parent / "recipes"):
        if place.is_dir():
            return place
    raise FileNotFoundError(f"composerl's recipes are missing from its installation in {package}")


def find_recipe(recipe: str | Path) -> Path:
    """The file of a packaged recipe's name, or of a path; an unknown one says what is near."""
    text = str(recipe)
    if text.endswith(".py"):
        path = Path(text).expanduser()
        if path.is_file():
            return path
        # A clone's `recipes/iql_pendulum.py`, typed where there is no clone.
        packaged = recipes_directory() / path.name
        if path.parts[:-1] == ("recipes",) and packaged.is_file():
            return packaged
        raise FileNotFoundError(f"{path}: there is no such recipe file")
    names = set(recipes())
    if text in names:
        return recipes_directory() / f"{text}.py"
    raise ValueError(f"there is no recipe {text!r}: {suggest(text, names)}")


def load_recipe(recipe: str | Path) -> ModuleType:
    """Import a recipe's file, which may import others beside it; it has ``Config`` and ``main``."""
    path = find_recipe(recipe)
    beside = str(path.resolve().parent)
    if beside not in (str(recipes_directory()), *sys.path):  # as Python does with a script's
        sys.path.insert(0, beside)
    # Not the bare stem: a recipe called json.py must not replace a module of that name.
    name = f"_recipe_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and type hints look their module up there
    vars(module)["__recipe__"] = str(recipe)  # what train() needs to go on with it
    spec.loader.exec_module(module)
    for needed in ("Config", "main"):
        if not hasattr(module, needed):
            raise ValueError(f"{path} is no recipe: it has no {needed}")
    if not isinstance(module.Config, type) or not is_dataclass(module.Config):
        raise ValueError(f"{path} is no recipe: its Config is no dataclass")
    return module


def copy_recipe(recipe: str, file: str | Path) -> Path:
    """Copy a packaged recipe, to edit it, with its presets and sweep; nothing is overwritten."""
    target = Path(file)
    if target.is_dir():
        target = target / f"{Path(recipe).stem}.py"
    if target.exists():
        raise FileExistsError(f"{target} exists already: choose another name")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target.parent}: there is no such directory")
    source = find_recipe(recipe)
    replace_file(target, lambda file: shutil.copyfile(source, file))
    presets = target.parent / "presets" / target.stem
    if preset_files(source) and not presets.exists():
        shutil.copytree(source.parent / "presets" / source.stem, presets)
    sweep, copied = (p.parent / "sweeps" / f"{p.stem}.yaml" for p in (source, target))
    if sweep.is_file() and not copied.exists():
        text = sweep.read_text(encoding="utf-8")
        for old, new in ((f"  - {source.stem}\n", f"  - {target}\n"),
                         (f"recipes/{source.name}", str(target)),
                         (f"recipes/sweeps/{sweep.name}", str(copied))):  # fmt: skip
            text = text.replace(old, new)
        copied.parent.mkdir(exist_ok=True)
        copied.write_text(text, encoding="utf-8")
    return target
