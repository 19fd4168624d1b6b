"""``--compile auto``: whether compiling a run's updates pays, from what it cost and gained once."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from composerl import __version__
from composerl._files import cache_dir, write_json
from composerl.config import RunConfig, config_to_dict, may_change

__all__ = ["COSTS", "Cost", "decide", "mark_warm", "warm_marker"]


@dataclass(frozen=True)
class Cost:
    """What compiling an update costs, in CPU seconds, and what it gains at each, in milliseconds.

    ``cold`` is with an empty cache of inductor, ``warm`` with a filled one.
    """

    cold: float
    warm: float
    gain: float


#: Of each kind of update, at the sizes that its recipe has by default, on one thread, as
#: ``OMP_NUM_THREADS=1 python tests/benchmarks/compiling.py`` prints them; where it has not been run
#: there is no figure, and ``auto`` is off. Larger networks gain more milliseconds an update, so
#: that these figures compile rather too late than too early.
COSTS: dict[str, Cost] = {
    "cql": Cost(49.2, 9.4, 8.27),
    "discrete_cql": Cost(10.8, 2.5, 0.72),
    "dynamics": Cost(16.0, 2.4, 0.73),
    "fqf": Cost(34.3, 3.0, 1.75),
    "gail": Cost(22.1, 3.6, 0.72),
    "iql": Cost(38.7, 5.4, 1.62),
    "iqn": Cost(27.8, 2.9, 2.01),
    "ppo": Cost(16.4, 1.1, 1.52),
    "sac": Cost(23.8, 1.9, 1.29),
    "td3bc": Cost(35.7, 4.5, 1.26),
    "xql": Cost(28.6, 3.4, 2.12),
}


def decide(config: RunConfig, recipe: str, updates: Mapping[str, int]) -> tuple[bool, str]:
    """Whether ``auto`` compiles a run of so many updates of each kind, and why, in a line.

    It depends on the configuration and on whether ``composerl warmup`` was called for it, never
    on a clock or on what the cache holds: a run fills the cache too, and if that counted, the
    same command would compute eagerly at first and compiled, which rounds differently, when it is
    typed again. ``warmup`` is what a person does to a machine once, like an installation. The
    run's config.yaml has the decision, not ``auto``: a resume and ``--config`` of that file follow
    it, wherever they run.
    """
    updates = {kind: number for kind, number in updates.items() if number}
    unknown = [kind for kind in updates if kind not in COSTS]
    if unknown:
        return False, f"compile auto: off, as there are no figures for {', '.join(unknown)}"
    if config.device != "cpu":
        return False, f"compile auto: off, as its figures are of the CPU, not of {config.device}"
    warm = warm_marker(config, recipe).is_file()
    cost = sum(COSTS[kind].warm if warm else COSTS[kind].cold for kind in updates)
    gain = sum(COSTS[kind].gain * number / 1000 for kind, number in updates.items())
    verdict = "on" if gain > cost else "off"
    text = f"{sum(updates.values())} updates gain about {gain:.0f} s, compiling costs {cost:.0f} s"
    if not warm and gain > sum(COSTS[kind].warm for kind in updates):
        text += f" ({'less' if gain > cost else 'on'} after composerl warmup)"
    return gain > cost, f"compile auto: {verdict}, as {text}"


def warm_marker(config: RunConfig, recipe: str) -> Path:
    """The file that says that ``composerl warmup`` was called for this recipe and these settings.

    It lies in inductor's cache, to vanish with it, and is of one machine and one version. Settings
    that leave the compiled graph as it is (a seed, the length) do not count.
    """
    free = {*may_change(type(config)), "seed", "compile"}
    about = {
        "recipe": recipe,
        "composerl": __version__,
        "torch": version("torch"),
        "machine": [platform.node(), platform.machine()],
        "config": {k: v for k, v in config_to_dict(config).items() if k not in free},
    }
    name = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or cache_dir() / "inductor"
    return Path(cache) / f"composerl-warm-{name}.json"


def mark_warm(config: RunConfig, recipe: str) -> Path:
    """Write the marker of this recipe and these settings."""
    path = warm_marker(config, recipe)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"recipe": recipe})
    return path
