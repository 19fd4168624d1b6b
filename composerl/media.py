"""Pictures of what a policy does: an episode as frames, frames as a GIF, an array as a PNG."""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from composerl.policy import Policy

__all__ = ["check_gif", "image_of", "record_episode", "save_picture", "write_gif",
           "write_png"]  # fmt: skip

MAX_FRAMES = 500
MAX_SIDE = 320


def check_gif(path: Path) -> None:
    """Say early, before a policy plays, that a GIF cannot be written."""
    if find_spec("PIL") is None:
        raise ValueError("a video needs Pillow, not installed: pip install 'composerl[video]'")
    if path.suffix.lower() != ".gif":
        raise ValueError(f"a video is an animated GIF, expected a name that ends in .gif: {path}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent}: there is no such directory")


def record_episode(policy: Policy, seed: int = 0) -> tuple[list[np.ndarray], float]:
    """The frames, uint8 ``(height, width, 3)``, of an evaluation's first episode, and their rate.

    An environment that cannot draw itself but has images as observations shows these.
    """
    if policy.env is None:
        raise ValueError("the policy does not know its environment, so no episode can be shown")
    with _no_screen():
        env, draws = _open(policy)
        try:
            return _play(policy, env, draws, seed), float(env.metadata.get("render_fps") or 30)
        finally:
            env.close()


@contextmanager
def _no_screen() -> Iterator[None]:
    """SDL, which many environments draw with, would look for a screen and complain."""
    kept = os.environ.get("SDL_VIDEODRIVER")
    os.environ["SDL_VIDEODRIVER"] = kept or "dummy"
    try:
        yield
    finally:
        if kept is None:
            del os.environ["SDL_VIDEODRIVER"]


def _open(policy: Policy) -> tuple[Any, bool]:
    """The environment, and whether it draws itself."""
    from composerl.spaces import open_gym

    try:
        env = open_gym(policy.env, render_mode="rgb_array")
    except (TypeError, ValueError) as error:
        if len(policy.spaces.obs_shape) != 3:
            raise ValueError(f"{policy.env} cannot be drawn: {error}") from error
        return open_gym(policy.env), False
    return env, env.render_mode == "rgb_array"


def _play(policy: Policy, env: Any, draws: bool, seed: int) -> list[np.ndarray]:
    if hasattr(policy, "reset"):
        policy.reset()
    state = np.random.SeedSequence([seed, 0]).generate_state(1)
    obs, _ = env.reset(seed=int(state[0]))
    frames, done = [_frame(env, obs, draws)], False
    while not done and len(frames) < MAX_FRAMES:
        action = policy.predict(np.asarray(obs))
        obs, _, terminated, truncated, _ = env.step(
            int(action) if policy.spaces.discrete else action
        )
        frames.append(_frame(env, obs, draws))
        done = terminated or truncated
    return frames


def _frame(env: Any, obs: Any, draws: bool) -> np.ndarray:
    from gymnasium.error import DependencyNotInstalled

    if not draws:
        return image_of(np.asarray(obs))
    try:
        return np.asarray(env.render(), np.uint8)
    except DependencyNotInstalled as error:
        raise ValueError(f"drawing needs a package: {error}") from error


def image_of(obs: np.ndarray) -> np.ndarray:
    """An image observation ``(channels, height, width)`` as ``(height, width, 3)``.

    Three channels are colours; of any other number, the brightest counts.
    """
    planes = np.moveaxis(obs, 0, -1)
    if planes.shape[-1] != 3:
        planes = planes.max(-1, keepdims=True)
    planes = np.broadcast_to(planes, (*planes.shape[:2], 3)).astype(np.uint8)
    scale = max(1, 160 // max(planes.shape[:2]))
    return planes.repeat(scale, 0).repeat(scale, 1)


def write_gif(path: Path, frames: Sequence[np.ndarray], fps: float = 30) -> Path:
    """Write frames as an animated GIF of at most 320 pixels a side."""
    check_gif(path)
    from PIL import Image

    # Browsers slow down what is faster than 50 frames a second.
    skip = max(1, round(fps / 25))
    images = [Image.fromarray(frame) for frame in frames[::skip]]
    for image in images:
        image.thumbnail((MAX_SIDE, MAX_SIDE))
    first, *rest = images
    first.save(path, save_all=True, append_images=rest, duration=round(1000 * skip / fps), loop=0)
    return path


def save_picture(
    folder: Path, name: str, step: int, image: np.ndarray | Sequence[np.ndarray], fps: float
) -> Path:
    """Write one array as ``<name>-<step>.png``, a list of them as ``<name>-<step>.gif``."""
    if not re.fullmatch(r"\w[\w-]*", name):
        raise ValueError(f"the name of a picture is letters, digits, '-', got {name!r}")
    folder.mkdir(exist_ok=True)
    stem = f"{name}-{step:09d}"
    if isinstance(image, np.ndarray):
        return write_png(folder / f"{stem}.png", image)
    return write_gif(folder / f"{stem}.gif", image, fps)


def write_png(path: Path, image: np.ndarray) -> Path:
    """Write uint8 ``(height, width)`` or ``(height, width, 3)`` as a PNG; needs nothing."""
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or image.shape[2:] not in ((), (3,)):
        raise ValueError(
            f"a PNG needs uint8 (height, width) or (height, width, 3), got {image.dtype} "
            f"{image.shape}"
        )
    height, width = image.shape[:2]
    colour = 2 if image.ndim == 3 else 0
    rows = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(image))

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
    return path
