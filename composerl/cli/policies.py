"""``composerl evaluate``, ``predict`` and ``export``: what a trained policy is for."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from composerl.catalog import load_recipe
from composerl.config import config_from_yaml

if TYPE_CHECKING:
    from composerl.policy import Policy

__all__ = ["evaluate", "export", "interval", "predict", "print_json"]

SHOWN = 8
Which = Literal["final", "best"]
Env = Annotated[str | None, arg(help="To play in another environment, or one of yours: module:Id.")]
Recipe = Annotated[Path | None, arg(help="Its actor(cfg) makes a policy of modules of your own.")]


def evaluate(
    run: Positional[Path],
    *,
    episodes: int = 20,
    seed: int = 0,
    which: Which = "final",
    env: Env = None,
    recipe: Recipe = None,
    video: Path | None = None,
    json: bool = False,
) -> None:
    """Play seeded episodes with a run's policy and show what it reaches.

    Args:
        run: Run directory, or a policy or checkpoint file in it.
        episodes: How many episodes to play.
        seed: Of the episodes: the same seed, the same episodes.
        which: The final policy, or the best evaluated one.
        video: Also write the first episode as an animated GIF.
        json: Print JSON instead of a table.
    """
    _check(run)
    import numpy as np

    from composerl.analysis.stats import bootstrap_interval, iqm
    from composerl.bookkeeping.console import print_table
    from composerl.bookkeeping.images import film_episode

    policy = _load(run, which, env, recipe)
    if video is not None:  # first: what cannot be drawn is told before all is played
        film_episode(policy, video, seed)
    result = policy.evaluate(episodes, seed)
    told: dict[str, Any] = {
        "run": str(run),
        "env": policy.env,
        "episodes": episodes,
        "seed": seed,
        "mean": result.mean,
        "std": result.std,
        "iqm": float(iqm(result.returns)),
        "mean_interval": [float(end) for end in bootstrap_interval(result.returns, np.mean)],
        "iqm_interval": [float(end) for end in bootstrap_interval(result.returns, iqm)],
        "returns": list(result.returns),
        "lengths": list(result.lengths),
    }
    if json:
        print_json(told)
        return
    rows = [
        ("mean", f"{result.mean:.2f}", interval(told["mean_interval"])),
        ("interquartile mean", f"{told['iqm']:.2f}", interval(told["iqm_interval"])),
        ("standard deviation", f"{result.std:.2f}", ""),
        ("worst, best", f"{min(result.returns):.2f}, {max(result.returns):.2f}", ""),
        ("mean length", f"{np.mean(result.lengths):.1f}", ""),
    ]
    title = f"{run}: {policy.env}, {episodes} episodes, seed {seed}"
    print_table(title, ("return", "", "95 % interval"), rows)
    if video is not None:
        print(f"video: {video}")


def predict(
    run: Positional[Path],
    *,
    obs: str | None = None,
    npz: Path | None = None,
    which: Which = "final",
    env: Env = None,
    recipe: Recipe = None,
) -> None:
    """The policy's deterministic actions, as JSON lines.

    Without --obs or --npz, reads JSON lines from stdin and answers each with one line: an array
    (one observation, or a batch of them) or {"observation": array} with {"action": ...}, and
    {"reset": true} (a new episode, for policies with a memory) with itself. A policy of masked
    actions needs {"observation": array, "action_mask": array}.

    Args:
        run: Run directory, or a policy or checkpoint file in it.
        obs: An observation, or a batch, as JSON.
        npz: A file with observations (its key observations, or the only array); one line each.
        which: The final policy, or the best evaluated one.
    """
    if obs is not None and npz is not None:
        raise ValueError("--obs and --npz cannot be given together")
    if obs is not None:
        given = _parse_json(obs, "--obs")
        print_json({"action": _act(_load(run, which, env, recipe), given, "--obs")})
    elif npz is not None:
        rows = _read_observations(npz)
        for action in _act(_load(run, which, env, recipe), rows, str(npz)):
            print_json({"action": action})
    else:
        _serve(_load(run, which, env, recipe))


def export(
    run: Positional[Path],
    *,
    out: Annotated[Path, arg(aliases=["-o"])],
    format: Literal["onnx", "pt2"] | None = None,
    which: Which = "final",
    env: Env = None,
    recipe: Recipe = None,
) -> None:
    """Write a policy as one self-contained file, normalisation included.

    Its input is observation (batch, ...), its output action. It is compared with predict before
    it is written.

    Args:
        run: Run directory, or a policy or checkpoint file in it.
        out: File to write.
        format: onnx (for onnxruntime) or pt2 (for torch.export.load). Default: as the file ends.
        which: The final policy, or the best evaluated one.
    """
    kind = format or out.suffix.removeprefix(".")
    if kind not in ("onnx", "pt2"):
        raise ValueError(f"--out {out} ends in neither .onnx nor .pt2: say which by --format")
    print(_load(run, which, env, recipe).export(out, kind))


def _load(run: Path, which: str, env: str | None, recipe: Path | None) -> Policy:
    _check(run)
    import torch

    from composerl.policy import imported, load

    actor = None
    if recipe is not None:
        module = load_recipe(recipe)
        if not hasattr(module, "actor"):
            raise ValueError(f"--recipe {recipe} has no function actor(cfg) that makes the module")
        places = [place / "config.yaml" for place in (run, *run.absolute().parents[:2])]
        config = config_from_yaml(module.Config, next(filter(Path.is_file, places), places[0]))
        if not imported(config.env if env is None else "", *config.env_kwargs.values()):
            raise ValueError(f"{run} names a module to import for its environment: say it by --env")
        actor = module.actor(config if env is None else replace(config, env=env))
    policy = load(run, which=which, actor=actor, env=env)
    torch.set_num_threads(1)  # as in training: small networks are fastest so
    return policy


def _check(run: Path) -> None:
    """Refuse what is no run; of a directory of runs, say which there are. Needs no torch."""
    if not run.exists():
        raise FileNotFoundError(f"{run}: there is no such run")
    if not run.is_dir() or (run / "config.yaml").is_file() or any(run.glob("*.safetensors")):
        return
    if not any(run.iterdir()):
        raise FileNotFoundError(f"{run} holds no run: the directory is empty")
    if places := sorted(str(file.parent) for file in run.glob("**/config.yaml")):
        places = [place for place in places if "wandb" not in Path(place).parts]
        some = ", ".join(places[:SHOWN]) + (", ..." if len(places) > SHOWN else "")
        raise ValueError(f"{run} holds {len(places)} runs, name one of them: {some}")


def _serve(policy: Policy) -> None:
    """Answer JSON lines until stdin ends; each answer leaves at once, somebody may wait for it."""
    if sys.stdin.isatty():
        sys.stderr.write("one observation a line, as JSON; Ctrl-D ends\n")
    for number, line in enumerate(sys.stdin, start=1):
        if not line.strip():
            continue
        where = f"line {number}"
        request = _parse_json(line, where)
        if isinstance(request, dict) and request.get("reset") is True:
            policy.reset()
            print_json({"reset": True})
            continue
        print_json({"action": _act(policy, request, where)})


def _act(policy: Policy, given: Any, where: str) -> Any:
    import numpy as np

    observation, mask = given, None
    if isinstance(given, dict):
        if "observation" not in given:
            raise ValueError(f'{where} has no "observation", it has {", ".join(given)}')
        observation, mask = given["observation"], given.get("action_mask")
    try:
        if policy.spaces.obs_dtype == "uint8":
            # JSON has no uint8: whole numbers from 0 to 255 are pixels; the rest predict refuses.
            observation = np.asarray(observation)
            if observation.dtype.kind in "iu" and np.isin(observation, np.arange(256)).all():
                observation = observation.astype(np.uint8)
        return policy.predict(observation, mask=mask).tolist()
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from error


def _read_observations(path: Path) -> Any:
    from composerl.data.offline.formats import read_npz

    if not path.is_file():
        raise FileNotFoundError(f"--npz {path}: there is no such file")
    names = list(read_npz(path, ()))
    key = names[0] if len(names) == 1 else "observations"
    if key not in names:
        there = ", ".join(sorted(names)) or "nothing"
        raise ValueError(f"--npz {path} has no key observations; it has {there}")
    return read_npz(path, (key,))[key]


def _parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where} is not valid JSON: {error}") from error


def print_json(values: Any) -> None:
    """One line of JSON on stdout, at once."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def interval(ends: Sequence[float] | None) -> str:
    """An interval in words."""
    return f"{ends[0]:.2f} to {ends[1]:.2f}" if ends else "none"
