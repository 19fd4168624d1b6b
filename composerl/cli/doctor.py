"""``composerl doctor``: what is installed here, and what of it is known to go wrong."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from composerl.config import wait_passively

__all__ = ["doctor", "warnings_for"]

#: What each extra is for, and a module that shows whether it is there.
EXTRAS = {
    "plot": ("matplotlib", "pictures of curves"),
    "export": ("onnxruntime", "ONNX files"),
    "video": ("pygame", "films of most environments, MP4"),
    "sweep": ("optuna", "local sweeps"),
    "minari": ("minari", "Minari's own tools"),
    "mujoco": ("mujoco", "HalfCheetah, Hopper, ..."),
    "atari": ("ale_py", "ALE/..."),
    "minatar": ("minatar", "MinAtar/..."),
    "crafter": ("crafter", "Crafter"),
    "tensorboard": ("tensorboard", "--tensorboard"),
    "ray": ("ray", "--workers, --on ray"),
    "docs": ("pdoc", "the API reference"),
}


#: What composerl is made for: from this version on, and below that one.
SUPPORTED = (
    ("torch", "2.13", None),
    ("torchrl", "0.14.1", "0.15"),
    ("tensordict", "0.14.3", "0.15"),
    ("gymnasium", "1", "2"),
)


def doctor() -> None:
    """Versions, TorchRL's extension, devices, threads, W&B login and extras; warns of trouble."""
    wait_passively(2)  # as a recipe with --threads 2 would
    import torch
    from torchrl.data.replay_buffers.samplers import prioritized

    from composerl.bookkeeping.console import print_table
    from composerl.bookkeeping.rundir import versions
    from composerl.catalog import recipes, recipes_directory

    extension = prioritized.SumSegmentTreeFp32 is not None
    devices = ["cpu", *(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    found = versions()
    rows = [
        ("python", f"{platform.python_version()}, {sys.executable}"),
        *((name, number or "not installed") for name, number in found.items()),
        ("TorchRL's C++ extension", "loaded" if extension else "not loaded"),
        ("devices", ", ".join(devices)),
        ("threads", f"{torch.get_num_threads()} of {os.cpu_count()} cores; recipes use --threads"),
        ("--threads 2", two_threads()),
        ("W&B", _wandb()),
        ("recipes", f"{len(recipes())} in {recipes_directory()}"),
    ]
    for extra, (module, purpose) in EXTRAS.items():
        missing = f"no, for {purpose}: pip install 'composerl[{extra}]'"
        rows.append((f"extra {extra}", "yes" if find_spec(module) else missing))
    print_table("composerl doctor", ("", "found"), rows, align="left")
    for warning in warnings_for(found, extension=extension):
        print(f"warning: {warning}")


def two_threads(small: int = 64, large: int = 512) -> str:
    """What a second thread gains here, for a layer of either width: fastest of a few steps."""
    import torch

    def fastest(width: int, threads: int, seconds: float = 0.05) -> float:
        torch.set_num_threads(threads)
        layer, batch = torch.nn.Linear(width, width), torch.randn(256, width)
        times: list[float] = []
        end = time.perf_counter() + seconds
        while len(times) < 3 or time.perf_counter() < end:
            start = time.perf_counter()
            layer(batch).sum().backward()
            times.append(time.perf_counter() - start)
        return min(times[1:])  # the first one makes the threads

    before = torch.get_num_threads()
    try:
        shares = [fastest(width, 2) / fastest(width, 1) for width in (small, large)]
    finally:
        torch.set_num_threads(before)
    first, second = f"{shares[0]:.2f}", f"{shares[1]:.2f}"
    return f"takes {first} of one thread's time for a layer of {small} units, {second} for {large}"


def warnings_for(
    versions: Mapping[str, str | None],
    *,
    extension: bool,
    python: tuple[int, ...] = sys.version_info[:2],
    environ: Mapping[str, str] = os.environ,
) -> list[str]:
    """Sentences about combinations that are known to go wrong."""
    told = []
    for name, low, high in SUPPORTED:
        found = _numbers(versions.get(name))
        if found and (found < _numbers(low) or (high and found >= _numbers(high))):
            wanted = f"{low} or newer" + (f" and below {high}" if high else "")
            told.append(f"{name} {versions[name]} is installed, composerl is made for {wanted}")
    if not extension:
        told.append(
            "TorchRL's C++ extension does not load with this torch: composerl's own prioritized "
            "replay works all the same, TorchRL's PrioritizedSampler does not"
        )
    if not (3, 10) <= python <= (3, 13):
        told.append(f"Python {'.'.join(map(str, python))} is untested, 3.10 to 3.13 are tested")
    threads = environ.get("OMP_NUM_THREADS")
    if threads is not None and not threads.isdecimal():
        told.append(f"OMP_NUM_THREADS is {threads!r}, expected a number")
    if Path("wandb", "__init__.py").is_file():
        told.append("a directory named wandb here hides the package wandb")
    return told


def _numbers(text: str | None) -> tuple[int, ...]:
    parts = (text or "").partition("+")[0].split(".")
    return tuple(int(part) for part in parts if part.isdecimal())


def _wandb() -> str:
    from composerl.bookkeeping.wandb_run import wandb_mode

    try:
        mode = wandb_mode("auto")
    except ValueError as error:
        return str(error)
    reason = "a key is configured" if mode == "online" else "no key, or switched off"
    return f"--wandb auto is {mode} ({reason})"
