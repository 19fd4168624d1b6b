"""The API reference as web pages: python -m tests.reference [DIRECTORY], by default reference."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from pathlib import Path

import pdoc

#: What is public: the names that these packages offer. Their files are not.
ROOMS = ("analysis", "config", "data", "envs", "losses", "modules", "optim", "testing")
PACKAGES = ("composerl", *(f"composerl.{room}" for room in ROOMS))

#: What pdoc says of members that TorchRL's classes hand down, with names that it never imports.
INHERITED = (
    r"Error parsing type annotation .*(_AcceptedKeys|Collector|StorageCheckpointerBase)",
    r"Cannot determine where composerl\.data\.\w+Storage\.max_size is taken from",
)


def make(directory: Path) -> None:
    """Write a page for each package."""
    for name in PACKAGES:
        package = import_module(name)
        # pdoc reads a module's dictionary, where a lazy name is missing until it is put there.
        for public in package.__all__:
            setattr(package, public, getattr(package, public))
    pdoc.render.configure(docformat="google", math=True)
    with warnings.catch_warnings():
        for words in INHERITED:
            warnings.filterwarnings("ignore", words)
        pdoc.pdoc(*PACKAGES, rf"!(?!({'|'.join(PACKAGES)})$)", output_directory=directory)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("reference")
    make(target)
    print(target / "composerl.html")
