"""Crafter (Hafner 2021, extra ``crafter``) for gymnasium, the same for the same seed."""

from typing import Any

import gymnasium as gym
import numpy as np

__all__ = ["Crafter"]


class Crafter(gym.Env):
    """An open world to survive in, with 22 achievements, of which each first one is worth 1.

    Observations are images (3, size, size). Dying ends an episode, ``limit`` steps cut it. The
    info of its last step has ``achievements``, how often each was reached.

    Args:
        reward: whether there is any.
        size: pixels a side.
        limit: steps after which an episode is cut.
        render_mode: ``rgb_array``, or None.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self,
        reward: bool = True,
        size: int = 64,
        limit: int = 10_000,
        render_mode: str | None = None,
    ) -> None:
        import crafter

        self._game = crafter.Env(size=(size, size), reward=reward, length=limit, seed=0)
        self._unordered, self._game._balance_chunk = self._game._balance_chunk, self._balance
        self.observation_space = gym.spaces.Box(0, 255, (3, size, size), np.uint8)
        self.action_space = gym.spaces.Discrete(len(self._game.action_names))
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode in a world that depends on the seed, or on those drawn before."""
        super().reset(seed=seed)
        self._game._seed, self._game._episode = int(self.np_random.integers(2**31 - 1)), 0
        return self._seen(self._game.reset()), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Act."""
        seen, reward, over, told = self._game.step(int(action))
        dead = told["discount"] == 0
        info = {"achievements": told["achievements"]} if over else {}
        return self._seen(seen), float(reward), dead, bool(over and not dead), info

    def render(self) -> np.ndarray:
        """The world as a picture of 512 x 512."""
        return self._game.render(np.array([512, 512]))

    @staticmethod
    def _seen(image: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(image.transpose(2, 0, 1))

    def _balance(self, chunk: Any, things: Any) -> None:
        """What the game does to the creatures of a region, in the order of their coming.

        It keeps them in sets, whose order differs from process to process, and draws by it which
        of them vanish.
        """
        order = {id(thing): number for number, thing in enumerate(self._game._world.objects)}
        self._unordered(chunk, sorted(things, key=lambda thing: order[id(thing)]))
