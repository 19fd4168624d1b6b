"""What ``composerl data collect`` does: play with a policy, or read what a run has seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from composerl._schema import Kinds, imported, number, short, typed
from composerl.bookkeeping.checkpoint import load_checkpoint, load_newest
from composerl.bookkeeping.console import say
from composerl.config import check_run
from composerl.data import Dataset, load_dataset, replay_dataset
from composerl.data.offline.behaviours import Noise
from composerl.data.offline.generation import play_episodes
from composerl.envs.spaces import Spaces
from composerl.policy import Policy

__all__ = ["played", "replayed"]

#: Settings of a run by which the rewards in its replay buffer are turned back.
_SETTINGS: Kinds = {"env": str, "env_kwargs": dict, "dataset": str, "dataset_size": int,
                    "dataset_seed": int, "reward_shift": float}  # fmt: skip


def played(
    policy: Policy, source: str, episodes: int, noise: float, epsilon: float, seed: int
) -> Dataset:
    """Episodes of a policy in its environment."""
    if episodes < 1:
        raise ValueError(f"--episodes must be at least 1, got {episodes}")
    if seed < 0:
        raise ValueError(f"--seed must be at least 0, got {seed}")
    if not 0 <= epsilon <= 1:
        raise ValueError(f"--epsilon is a share, from 0 to 1, got {epsilon}")
    if not 0 <= noise < float("inf"):
        raise ValueError(f"--noise is a deviation of at least 0, got {noise}")
    if noise and policy.spaces.discrete:
        raise ValueError("--noise is for continuous actions: use --epsilon for discrete ones")
    if policy.recurrent:
        raise ValueError(f"{source} has a policy with memory, which cannot be collected from yet")
    policy.require_env()
    if policy.env is None:
        raise ValueError(f"{source} is of an environment of its own: give it by --env module:Id")
    policy.spaces.require_shapes_of(Spaces.of(policy.env, **policy.env_kwargs), policy.env)
    return play_episodes(
        policy.env,
        policy.predict,
        episodes,
        seed,
        source,
        level=Noise(epsilon, noise),
        env_kwargs=policy.env_kwargs,
    )


def replayed(run: Path) -> Dataset:
    """The replay buffer in a checkpoint file, or in the newest of a run directory."""
    run = check_run(run)
    state = load_newest(run) if run.is_dir() else load_checkpoint(run)
    if state is None:
        raise FileNotFoundError(f"{run} has no checkpoint, which would hold its replay buffer")
    if missing := [key for key in ("config", "tracked") if state.get(key) is None]:
        raise ValueError(f"{run}: its checkpoint has no {missing[0]}")
    config = typed(state["config"], _SETTINGS, f"{run}: the settings in its checkpoint")
    if config.get("clip_rewards"):
        say(f"{run}: the run clipped its rewards, so that the dataset has clipped ones too")
    return replay_dataset(
        state["tracked"],
        str(run),
        reward_scale=_reward_scale(config, run),
        reward_shift=config.get("reward_shift") or 0.0,
    )


def _reward_scale(config: dict[str, Any], run: Path) -> float:
    """What an offline recipe multiplies the rewards of its online steps by; others do not."""
    given = config.get("reward_scale", 1.0)
    if given != "returns":
        if not number(given) or not given:
            raise ValueError(f"{run}: reward_scale must be a number but 0, got {short(given)}")
        return given
    if missing := [key for key in _SETTINGS if config.get(key) is None]:
        raise ValueError(f"{run}: the settings in its checkpoint have no {missing[0]}")
    env, kwargs = config["env"], config["env_kwargs"]
    if not imported(env, *kwargs.values()):
        raise ValueError(f"{run}: {env} is not imported, and rewards are scaled by its dataset")
    size, seed = config["dataset_size"], config["dataset_seed"]
    dataset = load_dataset(
        config["dataset"], env, size=size, seed=seed, reward_scale=given, env_kwargs=kwargs
    )
    return dataset.reward_scale
