"""How large the networks of a world model are: by name, or number by number."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

__all__ = ["SIZES", "WorldSize", "world_size"]


@dataclass(frozen=True, kw_only=True)
class WorldSize:
    """The widths of all networks that Dreamer has.

    Attributes:
        deter: width of the recurrent state.
        hidden: of the layers in front of it, and of those of posterior and prior.
        latents: categorical variables of a state.
        classes: values that each of them has.
        units: width of the layers of all heads, of actor and critic, and of those for vectors.
        layers: how many actor, critic and the networks for vectors have; the heads of reward and
            continue have one.
        depth: channels of the convolutions, of which each stage has a multiple.
        blocks: parts of the recurrent state that are not connected but by the layers in front.
        pooled: images are halved by pooling after convolutions of 5 x 5, as published; or else by
            strides of convolutions of 4 x 4, in about a third of the time.
    """

    deter: int
    hidden: int
    latents: int
    classes: int
    units: int
    layers: int
    depth: int
    blocks: int
    pooled: bool

    def __post_init__(self) -> None:
        for name, value in self.to_json().items():
            if name == "pooled":
                wrong = not isinstance(value, bool)
            else:
                wrong = not isinstance(value, int) or isinstance(value, bool) or value < 1
            if wrong:
                expected = "true or false" if name == "pooled" else "a positive integer"
                raise ValueError(f"size: {name} must be {expected}, got {value!r}")
        if self.deter % self.blocks:
            raise ValueError(
                f"size: deter={self.deter} cannot be divided into blocks={self.blocks}"
            )

    @property
    def stoch(self) -> int:
        """Length of all latents together, one-hot."""
        return self.latents * self.classes

    @property
    def features(self) -> int:
        """Length of a state, which every head reads."""
        return self.deter + self.stoch

    def to_json(self) -> dict[str, Any]:
        """A dictionary from which ``WorldSize(**d)`` makes an equal object."""
        return asdict(self)


def _published(factor: int) -> WorldSize:
    """The authors' sizes are one, times a factor."""
    return WorldSize(
        deter=128 * factor, hidden=16 * factor, latents=32, classes=factor, units=16 * factor,
        layers=3, depth=factor, blocks=8, pooled=True,
    )  # fmt: skip


#: Ours for a laptop, then the authors', by their millions of parameters on 64 x 64 pixels.
SIZES: dict[str, WorldSize] = {
    "debug": WorldSize(
        deter=64, hidden=64, latents=8, classes=8, units=64, layers=1, depth=4, blocks=1,
        pooled=False,
    ),
    "small": WorldSize(
        deter=256, hidden=128, latents=16, classes=16, units=128, layers=2, depth=8, blocks=8,
        pooled=False,
    ),
    "medium": WorldSize(
        deter=512, hidden=192, latents=24, classes=16, units=192, layers=2, depth=8, blocks=8,
        pooled=False,
    ),
    "1m": _published(4),
    "12m": _published(16),
    "25m": _published(24),
    "50m": _published(32),
    "100m": _published(48),
    "200m": _published(64),
}  # fmt: skip


def world_size(size: str | Mapping[str, Any] | WorldSize) -> WorldSize:
    """What a name of :data:`SIZES` stands for, or the given numbers, checked."""
    if isinstance(size, WorldSize):
        return size
    if isinstance(size, str):
        if size not in SIZES:
            raise ValueError(f"size must be one of {', '.join(SIZES)}, got {size!r}")
        return SIZES[size]
    names = {f.name for f in fields(WorldSize)}
    if set(size) != names:
        raise ValueError(
            f"size must be a name or numbers for {', '.join(sorted(names))}, got {dict(size)}"
        )
    return WorldSize(**size)
