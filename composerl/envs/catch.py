"""``composerl/Catch-v0``: a small task from pixels that one frame does not tell enough about."""

from typing import Any

import gymnasium as gym
import numpy as np

__all__ = ["CATCH", "Catch"]

#: Its gymnasium id, known once this file is imported (as :mod:`composerl.envs.spaces` does).
CATCH = "composerl/Catch-v0"

SIDE = 32
BALL = 4
PADDLE = 6
THICK = 2
FALL = 2
STRIDE = 2
SPEEDS = (-5, -3, 3, 5)
STEPS = (SIDE - THICK - BALL) // FALL
ZOOM = 8


class Catch(gym.Env[np.ndarray, np.int64]):
    """Move a paddle to where a bouncing ball comes down.

    Observation ``(1, 32, 32)``, uint8: a ball of 4 x 4 pixels (255) over a paddle of 6 x 2 (160)
    that starts in the middle of the bottom. The ball starts in any column, falls 2 pixels a step
    and goes 3 or 5 to the left or right, bouncing off the walls. Actions: 0 moves the paddle 2
    pixels to the left, 1 leaves it, 2 moves it to the right. After 13 steps the ball is down: the
    reward is 1 if it touches the paddle, else 0; it is 0 at all other steps.

    The ball is faster than the paddle, so that following it does not pay: one must know its
    direction and speed, which takes two frames, and where it will bounce. Mean return: 1 at best,
    0.32 of random play, 0.33 of a paddle that follows the ball, and 0.75 of the best table of
    actions for single frames that we found (116 starts, each one counted once).

    Args:
        render_mode: ``rgb_array`` for :meth:`render`, or None.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode must be None or 'rgb_array', got {render_mode!r}")
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0, 255, (1, SIDE, SIDE), np.uint8)
        self.action_space = gym.spaces.Discrete(3)
        self._t = STEPS

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """A new ball; the paddle back in the middle."""
        super().reset(seed=seed)
        self._t = 0
        self._x = int(self.np_random.integers(SIDE - BALL + 1))
        self._speed = SPEEDS[self.np_random.integers(len(SPEEDS))]
        self._paddle = (SIDE - PADDLE) // 2
        return self._image(), {}

    def step(self, action: int | np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move paddle and ball; ends when the ball is down."""
        if self._t >= STEPS:
            raise RuntimeError("the episode is over: reset the environment before its next step")
        if action not in (0, 1, 2):
            raise ValueError(f"action must be 0 (left), 1 (stay) or 2 (right), got {action!r}")
        self._t += 1
        self._paddle = min(max(self._paddle + STRIDE * (int(action) - 1), 0), SIDE - PADDLE)
        self._x += self._speed
        wall = SIDE - BALL
        if not 0 <= self._x <= wall:
            self._x = (0 if self._x < 0 else 2 * wall) - self._x
            self._speed = -self._speed
        down = self._t == STEPS
        caught = down and -BALL < self._x - self._paddle < PADDLE
        return self._image(), float(caught), down, False, {}

    def render(self) -> np.ndarray | None:
        """The present frame, eight times as large, in three equal colours."""
        if self.render_mode is None:
            return None
        return self._image()[0].repeat(ZOOM, 0).repeat(ZOOM, 1)[..., None].repeat(3, -1)

    def _image(self) -> np.ndarray:
        image = np.zeros((1, SIDE, SIDE), np.uint8)
        top = FALL * self._t
        image[0, top : top + BALL, self._x : self._x + BALL] = 255
        image[0, -THICK:, self._paddle : self._paddle + PADDLE] = 160
        return image


if CATCH not in gym.registry:
    gym.register(CATCH, entry_point="composerl.envs.catch:Catch")
