"""``composerl new``: a recipe, a loss and a test of one's own to start from."""

from __future__ import annotations

import keyword
import re
from importlib.util import find_spec
from pathlib import Path

from tyro.conf import Positional

from composerl._files import write_text
from composerl.catalog import recipes

__all__ = ["new"]

_TEMPLATES = {"recipe": "{}.py", "loss": "{}_loss.py", "test": "test_{}.py"}


def new(name: Positional[str], *, out: Path = Path()) -> None:
    """Write a recipe, a loss and a test to start from: new my_algorithm.

    They train and pass as they are; then put your own equations in.

    Args:
        name: Of the algorithm, as a Python module is called.
        out: Directory to write to, by default this one.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ValueError(
            "a name is small letters, digits and _, and no word of Python's own, such as "
            f"my_algorithm, got {name!r}"
        )
    if name in recipes():
        raise ValueError(
            f"{name} is a packaged recipe: choose another name, or copy it to edit: "
            f"composerl recipes copy {name} my_{name}.py"
        )
    if not out.is_dir():
        raise FileNotFoundError(f"--out {out}: there is no such directory")
    files = {kind: out / place.format(name) for kind, place in _TEMPLATES.items()}
    if there := [str(path) for path in files.values() if path.exists()]:
        raise FileExistsError(f"{', '.join(there)} exists already: choose another name")
    for path in files.values():
        # Directories are found, too, without an origin: one may be called as what is put into it.
        if (spec := find_spec(path.stem)) and spec.origin:
            raise ValueError(
                f"{path.name} would hide the module {path.stem} ({spec.origin}): choose another "
                "name"
            )
    title = "".join(part.capitalize() for part in name.split("_"))
    for kind, path in files.items():
        text = Path(__file__).with_name("new").joinpath(f"{kind}.py.txt").read_text("utf-8")
        write_text(path, text.replace("CLASS", title).replace("NAME", name))
        print(path)
    first = "" if find_spec("pytest") else "pip install pytest, then "
    print(f"try: composerl run {files['recipe']} --steps 100, and {first}pytest {files['test']}")
