"""Runs recipes in processes of their own, and really kills them."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import pkgutil
import signal
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

from safetensors.numpy import load_file

import composerl

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.py"))

#: Small values for whichever of these flags a recipe has: seconds instead of minutes.
SMALL: dict[str, Any] = {
    "steps": 60, "log_every": 10, "eval_every": 30, "eval_episodes": 2, "save_every": 20,
    "hidden": (16, 16), "batch_size": 32, "dataset_size": 1000, "wandb": "disabled",
    "num_envs": 2, "warmup": 4, "buffer_size": 500, "updates": 2,
    "rollout": 10, "demonstrations": 2, "ppo_epochs": 4,
    "fit_every": 20, "rollouts": 50, "model_hidden": (8, 8), "model_patience": 1,
    "members": 3, "elites": 2,
    "size": "debug", "length": 2, "train_ratio": 16.0, "horizon": 2,
}  # fmt: skip

#: Environments that are small too: an untrained policy plays Breakout until it is cut.
GAMES = {
    "dreamer_breakout": {"size": 64, "stack": 1, "colour": True, "life_loss": True, "limit": 30},
    "dreamer_crafter": {"size": 32, "limit": 15},
}

#: What recipes import, and what TorchRL and gymnasium import when first used: once, in the server
#: that their processes are forked from. What is not installed is left out there.
PRELOADED = [
    *(
        module.name
        for module in pkgutil.walk_packages(composerl.__path__, "composerl.")
        if module.name.split(".")[1] not in ("analysis", "cli", "fleet", "testing")
    ),
    "ale_py", "cv2", "gymnasium.envs.classic_control", "h5py", "pandas", "rich._emoji_codes",
    "torchrl.objectives.value",
]  # fmt: skip

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(PRELOADED)


def load_recipe(path: Path) -> ModuleType:
    """Import a recipe file by its path."""
    if path.stem not in sys.modules:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[path.stem])
    return sys.modules[path.stem]


def small_config(recipe: ModuleType, out: Path, **changes: Any) -> Any:
    """The recipe's configuration, made small."""
    known = {field.name for field in fields(recipe.Config)}
    values = {name: value for name, value in SMALL.items() if name in known}
    if "length" in known:
        values["batch_size"] = 8  # sequences
    if recipe.__name__ in GAMES:
        values["env_kwargs"] = GAMES[recipe.__name__]
    return recipe.Config(out=out, **(values | changes))


def run_in_process(path: Path, out: Path, kill_at: str | None = None, **changes: Any) -> int:
    """Run a small version of a recipe in a new process; returns its exit code.

    ``kill_at`` is where the process kills itself, or others, with SIGKILL, see :func:`_arm`.
    """
    process = _context.Process(target=_main, args=(path, out, kill_at, changes))
    process.start()
    process.join(300)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(f"{path.name} hangs")
    return process.exitcode


def _main(path: Path, out: Path, kill_at: str | None, changes: dict[str, Any]) -> None:
    for where in (kill_at or "").split():
        _arm(where)
    recipe = load_recipe(path)
    recipe.main(small_config(recipe, out, **changes))


def _arm(kill_at: str) -> None:
    """Patch the library so that the process dies at a chosen point, for example ``update:33``.

    ``update:n`` in the n-th update, before its optimizer steps; ``checkpoint:n`` with the n-th
    checkpoint half written; ``rename:n`` with it written but not renamed; ``row:n`` with half of
    the n-th metrics row on the disk. ``worker:n`` kills a worker before the n-th batch is asked of
    it, and the process itself goes on.
    """
    where, number = kill_at.split(":")
    left = int(number)

    def due() -> bool:
        nonlocal left
        left -= 1
        return left == 0

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    from composerl import update
    from composerl.bookkeeping import metrics, trees
    from composerl.data.collect import workers

    if where == "update":
        whole_step = update.Update.__call__

        def step(self: Any, batch: Any) -> Any:
            if due():
                self.loss(batch)
                die()
            return whole_step(self, batch)

        update.Update.__call__ = step
    elif where in ("checkpoint", "rename"):
        replace = trees.replace_file

        def replace_file(path: Path, write: Any, check: Any = None) -> None:
            def write_and_die(file: Path) -> None:
                write(file)
                if path.name.startswith("step-") and due():
                    if where == "checkpoint":
                        os.truncate(file, file.stat().st_size // 2)
                    die()

            replace(path, write_and_die, check)

        trees.replace_file = replace_file
    elif where == "row":
        write = metrics.MetricsFile.write

        def half(self: Any, row: Any) -> Any:
            written = write(self, row)
            if due():
                os.truncate(self.path, self.path.stat().st_size - 20)
                die()
            return written

        metrics.MetricsFile.write = half
    elif where == "worker":
        ask = workers.Workers.ask

        def murder(self: Any, *args: Any, **options: Any) -> None:
            if due():
                pid = self._shares[-1].__ray_call__.remote(lambda share: os.getpid())
                os.kill(self._ray.get(pid), signal.SIGKILL)
            ask(self, *args, **options)

        workers.Workers.ask = murder
    else:
        raise ValueError(kill_at)


def metrics(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run, without those that depend on the clock."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def weights(run: Path) -> dict[str, bytes]:
    """The tensors of a run's policy, as bytes."""
    return {k: v.tobytes() for k, v in load_file(run / "policy.safetensors").items()}


def summary(run: Path) -> dict[str, Any]:
    """A run's summary, without its times."""
    values = json.loads((run / "summary.json").read_text())
    return {k: v for k, v in values.items() if not k.startswith("time/")}
