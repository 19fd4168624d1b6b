"""``composerl data``: look at datasets, make them, convert, mix and filter them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from composerl.cli.loading import Env, Recipe, Which, load_policy, print_json

if TYPE_CHECKING:
    from composerl.data import Dataset

__all__ = ["collect", "convert", "filter_", "info", "make", "mix"]

Out = Annotated[Path, arg(aliases=["-o"])]

_BAR = 32


def info(file: Positional[Path], *, env: str | None = None, json: bool = False) -> None:
    """What is in a dataset: episodes, returns, rewards, actions, and what may mislead in it.

    Args:
        file: npz, D4RL-style HDF5, or a Minari directory.
        env: Also check it against this environment, and take the bounds of actions from there.
        json: Print JSON instead of tables.
    """
    import numpy as np

    from composerl.bookkeeping.console import print_table
    from composerl.data import read_dataset, summarize, validate
    from composerl.envs.spaces import Spaces

    dataset, bounds = read_dataset(file), None
    if env is not None:
        spaces = Spaces.of(env)
        dataset = validate(dataset, spaces)
        if not spaces.discrete:
            bounds = np.asarray(spaces.low, np.float32), np.asarray(spaces.high, np.float32)
    summary = summarize(dataset, bounds)
    if json:
        print_json(summary)
        return
    by_return, warnings = summary.pop("episodes_by_return"), summary.pop("warnings")
    rows = []
    for key, value in summary.items():
        parts = value if isinstance(value, list) and key == "action" else [value]
        for number, part in enumerate(parts):
            name = f"action {number}" if key == "action" else key.replace("_", " ")
            rows.append((name, _told(key, part)))
    print_table(str(file), ("", "value"), rows, align="left")
    title = "episodes by their return"
    print_table(title, ("return", "episodes", "rows", ""), _plot(by_return), align="left")
    for sentence in warnings:
        print(f"warning: {sentence}")


def make(
    env: Positional[str],
    *,
    out: Out,
    behaviour: Literal["random", "scripted", "noisy", "mixed"] = "mixed",
    size: int = 40_000,
    seed: int = 0,
    env_kwargs: Annotated[str, arg(metavar="JSON")] = "{}",
) -> None:
    """Let a behaviour act in an environment and write what happened.

    Args:
        env: Gymnasium id.
        out: npz, hdf5, or a name without ending for a Minari directory.
        behaviour: Who acts; all but random need a controller, which Pendulum and CartPole have.
        size: Transitions.
        seed: Same arguments, same bytes.
        env_kwargs: Keyword arguments of the environment, a JSON object.
    """
    from composerl.config.rules import json_object
    from composerl.data import generate
    from composerl.data.offline.writers import check_target

    kwargs = json_object("--env-kwargs", env_kwargs)
    check_target(out)
    _write(generate(env, behaviour, size, seed, env_kwargs=kwargs), out)


def collect(
    run: Positional[Path],
    *,
    out: Out,
    episodes: int = 50,
    noise: float = 0.0,
    epsilon: float = 0.0,
    seed: int = 0,
    which: Which = "final",
    replay: bool = False,
    env: Env = None,
    recipe: Recipe = None,
) -> None:
    """Let a run's policy act and write what happened; or write what the run itself has seen.

    The policy acts deterministically but for --noise and --epsilon. With --replay nothing is
    played: the replay buffer in the newest checkpoint of an online run becomes the dataset.

    Args:
        run: Run directory, or a policy or checkpoint file in it.
        out: npz, hdf5, or a name without ending for a Minari directory.
        episodes: How many to play.
        noise: Deviation of Gaussian noise on continuous actions, in half ranges of the action.
        epsilon: Share of uniformly random actions.
        seed: Same arguments, same bytes.
        which: The final policy, or the best evaluated one.
        replay: Write the replay buffer of an online run instead, from its newest checkpoint.
    """
    from composerl.cli.collecting import played, replayed
    from composerl.data.offline.writers import check_target

    check_target(out)
    if replay:
        _write(replayed(run), out)
    else:
        policy = load_policy(run, which, env, recipe)
        _write(played(policy, str(run), episodes, noise, epsilon, seed), out)


def mix(
    a: Positional[Path],
    b: Positional[Path],
    *,
    out: Out,
    share: float | None = None,
    seed: int = 0,
) -> None:
    """Write the episodes of two datasets as one.

    Args:
        a: npz, D4RL-style HDF5, or a Minari directory.
        b: The same, of the same environment.
        out: npz, hdf5, or a name without ending for a Minari directory.
        share: Of A's rows in the result: of A or of B only random episodes are taken. Default: all.
        seed: Of the choice of episodes.
    """
    from composerl.data import mix, read_dataset

    _write(mix(read_dataset(a), read_dataset(b), share, seed=seed), out)


def filter_(
    file: Positional[Path],
    *,
    out: Out,
    min_return: float | None = None,
    max_return: float | None = None,
    top: float | None = None,
) -> None:
    """Write only those episodes of a dataset that have a certain return.

    Args:
        file: npz, D4RL-style HDF5, or a Minari directory.
        out: npz, hdf5, or a name without ending for a Minari directory.
        min_return: The least return that is kept.
        max_return: The largest return that is kept.
        top: Share of the episodes that is kept, the best of those.
    """
    from composerl.data import filter_episodes, read_dataset

    _write(filter_episodes(read_dataset(file), min_return, max_return, top), out)


def convert(file: Positional[Path], *, out: Out) -> None:
    """Convert between npz, HDF5 and Minari; the content is checked on the way.

    Args:
        file: npz, D4RL-style HDF5, or a Minari directory.
        out: npz, hdf5, or a name without ending for a Minari directory.
    """
    from composerl.data import read_dataset

    _write(read_dataset(file), out)


def _write(dataset: Dataset, out: Path) -> None:
    from composerl.data import write_dataset

    returns, dropped = dataset.returns(), ""
    if dataset.dropped:
        dropped = f", {dataset.dropped} rows without a successor left out"
    words = f"{len(dataset)} transitions, {len(returns)} episodes, mean return {returns.mean():.1f}"
    print(f"{write_dataset(dataset, out)}: {words}{dropped}")


def _told(key: str, value: Any) -> Any:
    if isinstance(value, dict):
        told = {name: _number(number) for name, number in value.items()}
        spread = f"{told['min']} to {told['max']}, median {told['median']}"
        return f"{told['mean']} ± {told['std']} ({spread})"
    return f"{value:.1%}" if key == "rows_with_action_at_bound" else value


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _plot(bins: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    """A line for each range of returns: episodes, share of the rows, and a bar for the episodes."""
    most, rows = max(part["episodes"] for part in bins), sum(part["rows"] for part in bins)
    return [
        (
            f"{_number(part['from'])} to {_number(part['to'])}",
            str(part["episodes"]),
            f"{part['rows'] / rows:.1%}",
            "█" * -(-_BAR * part["episodes"] // most),
        )
        for part in bins
    ]
