"""Known rules of when an episode is over, for rollouts in a learned model.

Each takes (observation, action, next observation), all ``(rows, ...)``, and says for each row
whether the episode ends there. They are those of gymnasium's MuJoCo tasks; NaN ends an episode.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["ENDINGS", "ant_falls", "hopper_falls", "pole_falls", "walker_falls"]


def pole_falls(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:
    """InvertedPendulum: the pole leans by more than 0.2."""
    return ~(following[:, 1].abs() <= 0.2)


def hopper_falls(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:
    """Hopper: too low, too far tilted, or a number out of range."""
    low, tilt = following[:, 0], following[:, 1].abs()
    return ~((low > 0.7) & (tilt < 0.2) & (following[:, 1:].abs() < 100).all(1))


def walker_falls(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:
    """Walker2d: too low or too high, or too far tilted."""
    height = following[:, 0]
    return ~((height > 0.8) & (height < 2) & (following[:, 1].abs() < 1))


def ant_falls(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:
    """Ant: too low or too high."""
    return ~((following[:, 0] >= 0.2) & (following[:, 0] <= 1))


ENDINGS = {
    "inverted_pendulum": pole_falls,
    "hopper": hopper_falls,
    "walker": walker_falls,
    "ant": ant_falls,
}
