"""``composerl data``: look at datasets, make them, convert them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from composerl.cli.policies import print_json

if TYPE_CHECKING:
    from composerl.data import Dataset

__all__ = ["convert", "info", "make"]


def info(file: Positional[Path], *, env: str | None = None, json: bool = False) -> None:
    """What is in a dataset: episodes, returns, lengths, rewards, actions.

    Args:
        file: npz, D4RL-style HDF5, or a Minari directory.
        env: Also check it against this environment.
        json: Print JSON instead of a table.
    """
    from composerl.bookkeeping.console import print_table
    from composerl.data import read_dataset, summarize, validate
    from composerl.envs.spaces import Spaces

    dataset = read_dataset(file)
    if env is not None:
        dataset = validate(dataset, Spaces.of(env))
    summary = summarize(dataset)
    if json:
        print_json(summary)
        return
    rows = []
    for key, value in summary.items():
        parts = value if isinstance(value, list) and key == "action" else [value]
        for number, part in enumerate(parts):
            name = f"action {number}" if key == "action" else key.replace("_", " ")
            rows.append((name, _spread(part) if isinstance(part, dict) else part))
    print_table(str(file), ("", "value"), rows, align="left")


def make(
    env: Positional[str],
    *,
    out: Annotated[Path, arg(aliases=["-o"])],
    behaviour: Literal["random", "scripted", "noisy", "mixed"] = "mixed",
    size: int = 40_000,
    seed: int = 0,
) -> None:
    """Let a behaviour act in an environment and write what happened.

    Args:
        env: Gymnasium id.
        out: npz, hdf5, or a name without ending for a Minari directory.
        behaviour: Who acts; all but random need a controller, which Pendulum and CartPole have.
        size: Transitions.
        seed: Same arguments, same bytes.
    """
    from composerl.data import generate, write_dataset

    dataset = generate(env, behaviour, size, seed)
    print(f"{write_dataset(dataset, out)}: {_words(dataset)}")


def convert(file: Positional[Path], out: Positional[Path]) -> None:
    """Convert between npz, HDF5 and Minari; the content is checked on the way.

    Args:
        file: npz, D4RL-style HDF5, or a Minari directory.
        out: npz, hdf5, or a name without ending for a Minari directory.
    """
    from composerl.data import read_dataset, write_dataset

    dataset = read_dataset(file)
    dropped = f", {dataset.dropped} rows without a successor left out" if dataset.dropped else ""
    print(f"{write_dataset(dataset, out)}: {_words(dataset)}{dropped}")


def _words(dataset: Dataset) -> str:
    returns = dataset.returns()
    return f"{len(dataset)} transitions, {len(returns)} episodes, mean return {returns.mean():.1f}"


def _spread(values: dict[str, float]) -> str:
    spread = f"{values['min']:.4g} to {values['max']:.4g}, median {values['median']:.4g}"
    return f"{values['mean']:.4g} ± {values['std']:.4g} ({spread})"
