"""Pictures as PNG files, and films of a policy: one evaluated episode as GIF or MP4."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.error import DependencyNotInstalled
from PIL import Image
from torch import Tensor

from composerl._files import replace_file
from composerl.bookkeeping.evaluation import Evaluation, Evaluator, Player, State
from composerl.bookkeeping.stages import picture

__all__ = ["film_episode", "film_frames", "require_mp4", "write_gif", "write_mp4", "write_png"]

MAX_FRAMES = 500
SIDES = (160, 320)  # pixels: smaller frames are enlarged, larger ones reduced
LOOKS = 16  # frames from one look of a model that imagines to the next


def film_episode(policy: Player, path: Path, seed: int = 0) -> Path:
    """Play the first episode of ``policy.evaluate(seed=seed)``, write it as a GIF or as MP4."""
    if path.suffix.lower() not in (".gif", ".mp4"):
        raise ValueError(f"a video is a GIF or MP4, expected a name that ends so, got {path}")
    mp4 = path.suffix.lower() == ".mp4"
    if mp4:
        require_mp4()
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent}: there is no such directory")
    with _no_screen():
        try:
            frames, fps = film_frames(policy, seed)
        except DependencyNotInstalled as error:
            raise ValueError(
                f"{policy.env} cannot be drawn: {error}; pip install 'composerl[video]'"
            ) from error
    return write_mp4(path, frames, fps) if mp4 else write_gif(path, frames[:MAX_FRAMES], fps)


def require_mp4() -> None:
    """Say early that what writes MP4 is missing."""
    if find_spec("imageio_ffmpeg") is None:
        raise ValueError("MP4 needs imageio-ffmpeg, not installed: pip install 'composerl[video]'")


def film_frames(policy: Player, seed: int = 0) -> tuple[np.ndarray, float]:
    """Frames of one greedy episode, ``(time, height, width, 3)``, uint8; and how many a second.

    It is the first episode of ``policy.evaluate(seed=seed)``, its last frame included. The
    environment renders where it can (a gymnasium id that knows ``rgb_array``, or a factory that
    asks for it; a TorchRL environment that shows ``pixels``); otherwise observations that are
    images are taken: grey or colours as they are, of other channels (planes, stacked frames) the
    brightest.

    A policy that imagines what it will see (a world model's, of images) has that on the right: it
    looks at each 16th frame, where the line between is white, and foresees the next ones.
    """
    film: list[np.ndarray] = []
    evaluator = Evaluator(policy.env, policy.env_kwargs, film=film)
    states: list[State] = []

    def noting(act: Callable[..., Any], *args: Any, recurrent: bool, **options: Any) -> Evaluation:
        def note(*seen: Any) -> tuple[Any, State]:
            answer, state = act(*seen)
            states.append(state)
            return answer, state

        return evaluator(note if recurrent else act, *args, recurrent=recurrent, **options)

    try:
        policy.evaluate(1, seed, evaluator=noting)
        frames = np.stack(film)
        imagine = getattr(policy.actor, "imagined", None)
        imagined = imagine(states, LOOKS) if imagine and states else None
        return frames if imagined is None else _beside(frames, imagined), evaluator.fps
    finally:
        evaluator.close()


def _beside(frames: np.ndarray, imagined: Tensor) -> np.ndarray:
    """Frames with what was imagined of them on the right, in their size."""
    _, height, width, _ = frames.shape
    line = np.full((len(frames), height, max(2, width // 32), 3), 64, np.uint8)
    line[:-1:LOOKS] = 255  # the last was not shown
    right = [
        np.asarray(Image.fromarray(picture(x)).resize((width, height), Image.Resampling.NEAREST))
        for x in imagined.cpu().numpy()
    ]
    return np.concatenate([frames, line, np.stack(right)], 2)


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


def write_png(path: Path, image: np.ndarray) -> Path:
    """Write an image, uint8 ``(height, width, 3)`` or grey ``(height, width)``, as PNG."""
    if image.dtype != np.uint8 or image.shape[2:] not in ((), (3,)) or image.ndim < 2:
        raise ValueError(
            "a PNG needs uint8 of shape (height, width) or (height, width, 3), "
            f"got {image.dtype} of shape {image.shape}"
        )
    replace_file(path, Image.fromarray(image).save)
    return path


def write_gif(path: Path, frames: np.ndarray | Sequence[np.ndarray], fps: float = 30) -> Path:
    """Write frames, uint8 ``(height, width, 3)``, as an animated GIF of 160 to 320 pixels."""
    skip = max(1, round(fps / 25))  # browsers slow down what is faster than 50 frames a second
    images = []
    for frame in frames[::skip]:
        image = Image.fromarray(_large_enough(frame))
        image.thumbnail((SIDES[1], SIDES[1]))
        images.append(image)
    first, *rest = images
    film: dict[str, Any] = {"save_all": True, "append_images": rest, "loop": 0}
    replace_file(path, lambda file: first.save(file, duration=round(1000 * skip / fps), **film))
    return path


def write_mp4(path: Path, frames: np.ndarray, fps: float = 30) -> Path:
    """Write frames, uint8 ``(time, height, width, 3)``, as MP4; small ones are enlarged."""
    from imageio_ffmpeg import write_frames

    height, width = _large_enough(frames[0]).shape[:2]

    def write(file: Path) -> None:
        # The usual codec wants even sides; 1: we see to that ourselves.
        film = write_frames(
            str(file), (width + width % 2, height + height % 2), fps=fps, macro_block_size=1
        )
        film.send(None)
        for frame in frames:
            even = ((0, height % 2), (0, width % 2), (0, 0))
            film.send(np.ascontiguousarray(np.pad(_large_enough(frame), even, "edge")))
        film.close()

    replace_file(path, write)
    return path


def _large_enough(frame: np.ndarray) -> np.ndarray:
    larger = max(1, SIDES[0] // max(frame.shape[:2]))
    return frame.repeat(larger, 0).repeat(larger, 1)
