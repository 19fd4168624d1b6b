"""Run directories of somebody who means no good, made at random from good ones."""

from __future__ import annotations

import json
import os
import pickle
import random
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import load

from composerl.bookkeeping import manifest, trees
from composerl.bookkeeping.checkpoint import checkpoints

from . import nasty
from .child import command
from .flips import LOOKS
from .material import Material, copy, files, snapshot
from .tries import Try

COMMANDS: dict[str, list[str]] = LOOKS | {
    "resume": ["run", "RECIPE", "--out", "run", "--resume"],
    "predict": ["predict", "run"],
    "export": ["export", "run", "-o", "policy.onnx"],
    "bisect": ["bisect", "run", "run"],
    "verify a part": ["verify", "run", "--replay-from", "last"],
    "verify all": ["verify", "run", "--replay"],
}
_RARE = ("export", "verify all", "plot")
_TEXTS = ("config", "metadata", "metrics", "summary")
#: What a command reads, which most harm is done to; of those not named it is the texts.
_READ: dict[str, tuple[str, ...]] = {
    "evaluate": ("policy", "step-"),
    "best": ("best", "step-"),
    "predict": ("policy",),
    "export": ("policy",),
    "replay": ("step-", "blocks"),
    "resume": ("step-", "step-", "step-", *_TEXTS, "blocks", ".owner", "best"),
    "bisect": ("step-", "step-", *_TEXTS, "blocks"),
    "verify a part": ("step-", "step-", "metrics", "config", "blocks"),
    "verify": ("manifest", *_TEXTS, "policy", "best"),
}


def hostile(material: Material, rng: random.Random, place: Path, alone: bool) -> Try:
    """A directory with one to three things wrong in it, and a command on it."""
    recipe = material.pick(rng)
    name = rng.choice([name for name in COMMANDS if name not in _RARE or rng.random() < 0.2])
    half = name == "resume" and rng.random() < 0.8
    run = copy(material.half(recipe) if half else material.whole(recipe), place)
    elsewhere = somebody_s(place)
    before, read = snapshot(elsewhere), _READ.get(name, _TEXTS)
    done = [_harm(run, elsewhere, read, rng) for _ in range(rng.choice((1, 1, 2, 3)))]
    if rng.random() < (0.8 if "verify" in name else 0.2):
        done.append(_renew(run))
    words = [recipe if word == "RECIPE" else word for word in COMMANDS[name]]
    ended = command(words, place, run, stdin="[1, 0, 0]\n[1, 0, 0, 0]\n", alone=alone)
    what = f"{recipe}, {name}, {'; '.join(done)}"
    touched = snapshot(elsewhere) != before or (place / "executed").exists()
    return Try(what, "outside" if touched else ended.how, ended.why)


def somebody_s(place: Path) -> Path:
    """Somebody's files that must stay as they are, and a module that must not be imported."""
    (place / "evil_env.py").write_text("open('executed', 'w')\n")
    elsewhere = place / "elsewhere"
    (elsewhere / ".abcdefgh.tmp").mkdir(parents=True)
    for name in ("letter.txt", f"{'0' * 32}.safetensors", "step-000000000001.safetensors"):
        (elsewhere / name).write_text('{"step": 1}\n')
    return elsewhere


def _harm(run: Path, elsewhere: Path, read: Sequence[str], rng: random.Random) -> str:
    """Do something to a run directory, mostly to what is read of it; gives what, in words."""
    for _ in range(20):
        named = rng.choice(read)
        found = [path for path in files(run) if named in str(path.relative_to(run))]
        path = rng.choice(found if found and rng.random() < 0.8 else files(run))
        tensors = path.suffix == ".safetensors"
        inside = (_tree, _tree, _header) if tensors else (_values, _values, _text)
        how: Sequence[Callable[[Path, Path, Path, random.Random], str]]
        how = (*inside, *inside, *inside, _thing, _poison, _module, _more)
        try:
            return rng.choice(how)(path, run, elsewhere, rng)
        except Exception:  # harmed before, or not to be written so
            continue
    return "nothing"


def _values(path: Path, run: Path, elsewhere: Path, rng: random.Random) -> str:
    if path.suffix == ".yaml":
        tree, done = nasty.changed(rng, yaml.safe_load(path.read_text()))
        path.write_text(yaml.safe_dump(tree, allow_unicode=True))
    elif path.suffix == ".jsonl":
        rows = path.read_text().splitlines()
        at = rng.randrange(len(rows))
        tree, done = nasty.changed(rng, json.loads(rows[at]))
        rows[at] = json.dumps(tree)
        path.write_text("\n".join(rows) + "\n")
    else:
        tree, done = nasty.changed(rng, json.loads(path.read_text()))
        path.write_text(json.dumps(tree, indent=2))
    return f"{path.name}: {done}"


def _text(path: Path, run: Path, elsewhere: Path, rng: random.Random) -> str:
    content = nasty.text(rng)
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    return f"{path.name} is {content[:40]!r}"


def _thing(path: Path, run: Path, elsewhere: Path, rng: random.Random) -> str:
    """Something else in place of a file or directory."""
    names = ["checkpoints", "checkpoints/blocks", "images", ".lock", "wandb", "tensorboard"]
    path = rng.choice((path, run / rng.choice(names)))
    kind = rng.choice(("file link", "folder link", "dangling", "loop", "folder", "pipe", "socket",
                       "sparse", "empty", "null"))  # fmt: skip
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name("old"))
    elif os.path.lexists(path):
        path.unlink()
    if kind.endswith("link"):
        path.symlink_to(elsewhere / "letter.txt" if kind == "file link" else elsewhere)
    elif kind in ("dangling", "loop"):
        path.symlink_to("nowhere" if kind == "dangling" else path.name)
    elif kind == "null":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(os.path.relpath(path))
    else:
        path.touch()
        os.truncate(path, 1 << 44 if kind == "sparse" else 0)
    return f"{path.relative_to(run)} is a {kind}"


def _tree(path: Path, run: Path, elsewhere: Path, rng: random.Random) -> str:
    """Another tree, with a checksum that fits."""
    kind = "checkpoint" if path.name.startswith("step-") else "policy"
    tree, done = nasty.changed(rng, trees.load_tree(path, kind), tensors=True)
    trees.save_tree(path, kind, tree)
    return f"{path.name}: {done}"


def _header(path: Path, run: Path, elsewhere: Path, rng: random.Random) -> str:
    """Another header, as no version has written it, with a checksum that fits."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    about = json.loads(content[8 : 8 + size])
    if rng.random() < 0.3:
        about, done = nasty.changed(rng, about)
    else:
        inner = json.loads(about["__metadata__"]["composerl"])
        del inner["checksum"]
        inner, done = nasty.changed(rng, inner)
        tensors = load(content)
        if isinstance(inner, dict):
            inner["checksum"] = trees._checksum(inner, tensors)
        about["__metadata__"]["composerl"] = json.dumps(inner)
    text = json.dumps(about).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])
    return f"header of {path.name}: {done}"


class _Evil:
    def __reduce__(self) -> Any:
        return (open, ("executed", "w"))


def _poison(path: Path, run: Path, elsewhere: Path, rng: random.Random) -> str:
    path.write_bytes(pickle.dumps(_Evil()))
    return f"{path.name} is a pickle"


def _module(path: Path, run: Path, elsewhere: Path, rng: random.Random) -> str:
    """An environment that would have a module imported."""
    env = "evil_env:Evil-v0"
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(config | {"env": env}))
    for path in (run / "policy.safetensors", run / "checkpoints" / "best.safetensors"):
        if path.exists():
            trees.save_tree(path, "policy", trees.load_tree(path, "policy") | {"env": env})
    for path in checkpoints(run):
        state = trees.load_tree(path, "checkpoint")
        state["config"]["env"] = env
        for key in ("policy", "best_policy"):
            state[key] = state[key] and state[key] | {"env": env}
        trees.save_tree(path, "checkpoint", state)
    return f"env is {env}"


def _more(path: Path, run: Path, elsewhere: Path, rng: random.Random) -> str:
    """Files that no run has written."""
    name = rng.choice(("checkpoints/step-999999999999.safetensors", "images/x\x1b[31m-00000001.png",
                       "images/a-00000040.png", "images/b-00000040.gif", "sitecustomize.py",
                       "checkpoints/blocks/" + "0" * 32 + ".safetensors", "wandb/x/config.yaml",
                       "conftest.py", "checkpoints/.zzzzzzzz.tmp/x", ".owner.lock"))  # fmt: skip
    path = run / name
    path.parent.mkdir(parents=True, exist_ok=True)
    newest = [path for path in files(run) if path.name.startswith("step-")]
    path.write_bytes(newest[-1].read_bytes() if newest and rng.random() < 0.5 else b"\x00x")
    return f"there is {name!r}"


def _renew(run: Path) -> str:
    """A manifest of what there is now, as anybody can make it."""
    held = {path.name: path.stat().st_size for path in files(run)}
    if "config.yaml" not in held or max(held.values()) > 1 << 30:
        return "no new manifest"
    try:
        config = yaml.safe_load((run / "config.yaml").read_text())
        manifest.write_manifest(run, config if isinstance(config, dict) else {})
    except Exception as error:  # whatever was done to it
        return f"no new manifest ({type(error).__name__})"
    return "a manifest that fits"
