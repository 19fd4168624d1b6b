"""Behaviours that fill a dataset: random, scripted by a controller, or between the two."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from composerl.envs.arguments import Env, env_name
from composerl.envs.opening import open_gym
from composerl.envs.spaces import Spaces

__all__ = ["BEHAVIOURS", "Noise", "act", "cartpole", "controller_for", "noise", "noise_of",
           "pendulum", "random_share"]  # fmt: skip

Controller = Callable[[np.ndarray], np.ndarray]
"""Maps (n, *obs) observations to n actions: (n, A) floats in the env's bounds, or (n,) ints."""

BEHAVIOURS = ("random", "scripted", "noisy", "mixed")

# Shares of random actions in a mixture. On Pendulum a third of noise hardly harms the controller
# and a half does: the spread gives few good episodes, many bad ones, and all between.
LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0, 1.0)
# Noise on a controller's own actions: a deviation in half ranges for floats, a share of random ones
# for integers. Without any, the data's actions have no density, and CQL's penalty has no bound.
_JITTER, _SLIPS = 0.15, 0.05
_BLOCK = 64


def pendulum(observation: np.ndarray) -> np.ndarray:
    """Swing up by pumping energy to that of the upright rest, then hold by a PD law.

    Per unit of inertia, Pendulum-v1 is ``acceleration = 15 sin(angle) + 3 torque``, so that
    ``energy = speed² / 2 + 15 (cos(angle) - 1)`` is 0 upright at rest and changes by
    ``3 torque speed``. Torque along the speed adds energy, against it removes some.
    """
    cos, sin, speed = observation.astype(np.float64).T
    energy = 0.5 * speed**2 + 15.0 * (cos - 1.0)
    # At rest the sign must not be 0, or a hanging pendulum would never start.
    swing = -energy * np.where(speed >= 0.0, 1.0, -1.0)
    angle = np.arctan2(sin, cos)
    hold = -(12.0 * angle + 3.0 * speed)
    torque = np.where(np.abs(angle) < 0.5, hold, swing)
    return np.clip(torque, -2.0, 2.0)[:, None].astype(np.float32)


def cartpole(observation: np.ndarray) -> np.ndarray:
    """Push to the side to which the pole leans and falls, with a slow pull to the middle."""
    position, velocity, angle, spin = observation.astype(np.float64).T
    lean = angle + 0.35 * spin + 0.03 * position + 0.07 * velocity
    return (lean > 0.0).astype(np.int64)


CONTROLLERS: dict[str, Controller] = {"CartPole-v1": cartpole, "Pendulum-v1": pendulum}


def controller_for(env: Env, behaviour: str) -> Controller | None:
    """The controller that a behaviour needs in an environment: none if all is random."""
    if behaviour not in BEHAVIOURS:
        raise ValueError(
            f"unknown dataset {behaviour!r}: expected a behaviour ({', '.join(BEHAVIOURS)}) or the "
            "path of a dataset file"
        )
    if behaviour == "random":
        return None
    name = env_name(env)
    if name not in CONTROLLERS:
        open_gym(env).close()  # an id that nobody knows is the first thing to tell
        raise ValueError(
            f"behaviour {behaviour!r} needs a scripted controller, which {name} does not have; "
            f"{' and '.join(sorted(CONTROLLERS))} do, 'random' works everywhere"
        )
    return CONTROLLERS[name]


def random_share(behaviour: str, seed: int, episode: int) -> float:
    """How many of an episode's actions are random ones, from 0 to 1.

    In a mixture, each run of ``len(LEVELS)`` episodes has every level once, in an order of its
    own, so that even a small dataset has the whole spread.
    """
    if behaviour != "mixed":
        return float(behaviour == "random")
    turn, place = divmod(episode, len(LEVELS))
    order = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(turn, 1)))
    return LEVELS[order.permutation(len(LEVELS))[place]]


class Noise(NamedTuple):
    """How far actions are not those of a controller."""

    share: float = 0.0
    """Of actions that are random ones, uniformly."""
    deviation: float = 0.0
    """Of Gaussian noise on the others, in half ranges of the action; none on discrete ones."""


def noise_of(behaviour: str, spaces: Spaces, seed: int, episode: int) -> Noise:
    """The noise of a behaviour in an episode."""
    share = random_share(behaviour, seed, episode)
    if behaviour not in ("noisy", "mixed"):
        return Noise(share)
    return Noise(max(share, _SLIPS)) if spaces.discrete else Noise(share, _JITTER)


def noise(
    spaces: Spaces, level: Noise, rng: np.random.Generator
) -> Iterator[tuple[bool, np.ndarray, np.ndarray]]:
    """The random part of an episode's actions, step by step, a function of its own generator only.

    Yields whether to act at random, the random action, and the noise on a deliberate one. They are
    drawn in blocks: three calls to numpy for each step would cost more than the step.
    """
    while True:
        replace = rng.random(_BLOCK) < level.share
        if spaces.discrete:
            uniform = rng.integers(spaces.action_dim, size=_BLOCK)
            shift = np.zeros(_BLOCK, dtype=np.int64)
        else:
            low, high = np.asarray(spaces.low), np.asarray(spaces.high)
            shape = (_BLOCK, len(low))
            uniform = low + (high - low) * rng.random(shape)
            deviation = level.deviation * 0.5 * (high - low)
            shift = deviation * rng.standard_normal(shape)
        yield from zip(replace, uniform, shift, strict=True)


def act(
    controller: Controller | None,
    spaces: Spaces,
    observations: Sequence[np.ndarray],
    noises: Sequence[Iterator[tuple[bool, np.ndarray, np.ndarray]]],
) -> np.ndarray:
    """One action for each of several episodes: (n, A) float32 within bounds, or (n,) int64."""
    replace, uniform, shift = (np.stack(part) for part in zip(*map(next, noises), strict=True))
    if controller is not None:
        wanted = controller(np.stack(observations)) + shift
        uniform = np.where(replace if spaces.discrete else replace[:, None], uniform, wanted)
    if spaces.discrete:
        return uniform
    low, high = np.asarray(spaces.low, np.float32), np.asarray(spaces.high, np.float32)
    return np.clip(uniform.astype(np.float32), low, high)
