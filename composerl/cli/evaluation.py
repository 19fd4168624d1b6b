"""``composerl evaluate``: what policies reach, by episodes, or by a dataset alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import Positional

from composerl import analysis
from composerl._files import below
from composerl.cli.loading import (
    Env,
    Recipe,
    Which,
    interval,
    load_policy,
    print_json,
)
from composerl.config import check_run

if TYPE_CHECKING:
    from composerl.policy import Policy

__all__ = ["evaluate"]

MOST = 10_000_000  # episodes, of which one has to remember the returns


def evaluate(
    runs: Positional[tuple[Path, ...]],
    *,
    episodes: int = 20,
    seed: int = 0,
    which: Which = "final",
    env: Env = None,
    recipe: Recipe = None,
    video: Path | None = None,
    json: bool = False,
    dataset: str | None = None,
    steps: int = 5000,
    batch_size: int = 256,
    lr: float = 1e-3,
    hidden: tuple[int, ...] = (128, 128),
    gamma: float = 0.99,
    tau: float = 0.1,
    critics: int = 2,
) -> None:
    """Play seeded episodes with policies and show what they reach; rank those of an environment.

    With --dataset nothing is played and no environment is needed: by fitted Q evaluation a value
    is learned for each policy, on the dataset, and that of its episodes' first states is shown. It
    is made for ranking: the discounted return of episodes without a time limit, and a guess where
    a policy does what the data do not show.

    Args:
        runs: Run directories, policy or checkpoint files in them, or directories with runs in them.
        episodes: How many episodes to play.
        seed: Of the episodes, or of the learned values: the same seed, the same numbers.
        which: The final policy, or the best evaluated one.
        video: Also write the first episode, as .gif or .mp4; on the right what a world model, if
            the policy has one of images, imagines of it.
        json: Print JSON instead of a table; a list if there are several.
        dataset: Evaluate by this dataset instead: a file, or a behaviour to generate.
        steps: With --dataset: updates of the value.
        batch_size: With --dataset: transitions in each.
        lr: With --dataset: learning rate, which falls to 0.
        hidden: With --dataset: widths of the hidden layers.
        gamma: With --dataset: discount.
        tau: With --dataset: share of a critic that enters its target at each update.
        critics: With --dataset: how many are learned; how far they are apart is shown.
    """
    if not 0 <= seed < 1 << 32:
        raise ValueError(f"--seed must be in [0, 2**32), got {seed}")
    if not 1 <= episodes <= MOST:
        raise ValueError(f"--episodes must be at least 1 and at most {MOST}, got {episodes}")
    places = _places(runs)
    if video is not None and (len(places) > 1 or dataset is not None):
        raise ValueError("--video shows an episode of one policy that is played")
    policies = ((path, load_policy(path, which, env, recipe)) for path in places)
    if dataset is None:
        _by_episodes(policies, episodes, seed, video, json)
        return
    settings = {"steps": steps, "batch_size": batch_size, "lr": lr, "hidden": hidden,
                "gamma": gamma, "tau": tau, "critics": critics, "seed": seed}  # fmt: skip
    _by_dataset(policies, dataset, settings, json)


def _places(paths: tuple[Path, ...]) -> list[Path]:
    """The runs and files; of a directory with runs in it, all of them."""
    if not paths:
        raise ValueError("give one run directory or more")
    found: list[Path] = []
    for path in paths:
        inside = path.is_dir() and not (path / "config.yaml").is_file()
        if inside and any(file.name == "config.yaml" for file in below(path)):
            found += [run.directory for run in analysis.find_runs([path])]
        else:
            found.append(check_run(path))
    return found


def _by_episodes(
    policies: Iterator[tuple[Path, Policy]],
    episodes: int,
    seed: int,
    video: Path | None,
    json: bool,
) -> None:
    from composerl.bookkeeping.console import print_table
    from composerl.bookkeeping.images import film_episode

    told: list[dict[str, Any]] = []
    for run, policy in policies:
        policy.require_env()
        if video is not None:  # first: what cannot be drawn is told before all is played
            film_episode(policy, video, seed)
        told.append(_played(run, policy, episodes, seed))
    groups = _ranked(told, "mean")
    if json:
        _print_all(groups)
        return
    for env, group in groups.items():
        what = f"{env}, {episodes} episodes, seed {seed}"
        if len(told) == 1:
            _show_one(told[0], what)
            continue
        rows = [
            (one["run"], f"{one['mean']:.2f}", interval(one["mean_interval"]), f"{one['iqm']:.2f}")
            for one in group
        ]
        print_table(what, ("policy", "mean", "95 % interval", "interquartile mean"), rows)
    if video is not None:
        print(f"video: {video}")


def _ranked(told: list[dict[str, Any]], by: str) -> dict[str, list[dict[str, Any]]]:
    """What was found, the best first, for each environment: returns of two are not comparable."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for one in told:
        kwargs = f" {one['env_kwargs']}" if one["env_kwargs"] else ""
        groups.setdefault(f"{one['env']}{kwargs}", []).append(one)
    return {env: sorted(group, key=lambda one: -one[by]) for env, group in groups.items()}


def _print_all(groups: dict[str, list[dict[str, Any]]]) -> None:
    told = [one for group in groups.values() for one in group]
    print_json(told if len(told) > 1 else told[0])


def _played(run: Path, policy: Policy, episodes: int, seed: int) -> dict[str, Any]:
    import numpy as np

    from composerl.analysis.stats import bootstrap_interval, iqm

    result = policy.evaluate(episodes, seed)
    return {
        "run": str(run),
        "env": policy.env,
        "env_kwargs": policy.env_kwargs,
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


def _show_one(told: dict[str, Any], what: str) -> None:
    from composerl.bookkeeping.console import print_table

    returns, lengths = told["returns"], told["lengths"]
    rows = [
        ("mean", f"{told['mean']:.2f}", interval(told["mean_interval"])),
        ("interquartile mean", f"{told['iqm']:.2f}", interval(told["iqm_interval"])),
        ("standard deviation", f"{told['std']:.2f}", ""),
        ("worst, best", f"{min(returns):.2f}, {max(returns):.2f}", ""),
        ("mean length", f"{sum(lengths) / len(lengths):.1f}", ""),
    ]
    print_table(f"{told['run']}: {what}", ("return", "", "95 % interval"), rows)


def _by_dataset(
    policies: Iterator[tuple[Path, Policy]], dataset: str, settings: dict[str, Any], json: bool
) -> None:
    from composerl.analysis.fqe import fitted_q
    from composerl.bookkeeping.console import print_table, progress_bar, say, show_log, watched
    from composerl.data import load_dataset

    show_log()
    told: list[dict[str, Any]] = []
    fits: Any = None
    for run, policy in policies:
        env, kwargs, spaces = policy.env, policy.env_kwargs, policy.spaces
        if fits != (env, kwargs, spaces):  # once, if all are of one environment
            data = load_dataset(dataset, env, spaces=spaces, env_kwargs=kwargs)
            fits = env, kwargs, spaces
        if not watched():  # what nobody sees as a bar
            say(f"{run}: learning its value by {settings['steps']:,} updates ...")
        with progress_bar(str(run), settings["steps"], 0) as show:
            estimate = fitted_q(policy, data, show=show, **settings)
        env = env or policy.trained_in  # whose module was not imported for this
        place = {"run": str(run), "env": env, "env_kwargs": kwargs, "dataset": dataset}
        told.append({**place, **vars(estimate), **settings})
    groups = _ranked(told, "value")
    if json:
        _print_all(groups)
        return
    for env, group in groups.items():
        rows = [
            (one["run"], f"{one['value']:.2f}", f"{one['error']:.2f}", f"{one['apart']:.2f}")
            for one in group
        ]
        title = f"{env}: estimated return by {dataset}, discounted by {settings['gamma']:g}"
        print_table(title, ("policy", "return", "standard error", "critics apart"), rows)
    say("a guess, most of all where policies leave the data; the errors are of the first states")
