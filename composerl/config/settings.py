"""The settings of every run, as an object and as text: config.yaml."""

import inspect
import math
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from composerl._files import read_yaml
from composerl.config.fields import MAY_CHANGE, Section, declarations, suggest
from composerl.config.rules import Count, Rule, coerce

__all__ = ["LRSchedule", "RunConfig", "config_from_yaml", "config_to_dict", "is_preset",
           "preset_files"]  # fmt: skip

#: The names that :func:`composerl.optim.lr_schedule` knows.
LRSchedule = Literal["constant", "linear", "cosine", "step"]

_Seed = Annotated[int, Rule(lambda n: 0 <= n < 2**32, "in [0, 2**32)")]
_Threads = Annotated[int, Rule(lambda n: 1 <= n <= 1024, "from 1 to 1024")]
_Project = Annotated[
    str,
    Rule(
        re.compile(r"[^/\\#?%:\x00-\x1f]{1,128}").fullmatch,
        "1 to 128 characters without / \\ # ? % :",
    ),
]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What every recipe can be told; a recipe's own ``Config`` adds its hyperparameters."""

    step_unit: ClassVar[str] = "steps"
    """What ``steps`` counts, in words: for axes and tables."""

    run: ClassVar[Section]
    env: str
    """Gymnasium id of the environment. With module:Id the module that registers it is imported."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment, a JSON object: '{"g": 5}'."""
    seed: _Seed = 0
    """Seed of everything random: weights, batches, environments."""
    steps: Annotated[Count, MAY_CHANGE]
    """Length of the run: updates (gradient steps) offline, environment steps online."""
    out: Path | None = None
    """Run directory. Default: runs/<recipe>/<time>-seed<seed>."""
    resume: bool = False
    """Go on with the run in --out, with the configuration found there."""
    config: Path | None = None
    """YAML file with values for these flags (a run's config.yaml is one), or the name of one of the
    recipe's presets (composerl recipes lists them); flags override it."""
    device: Annotated[str, MAY_CHANGE] = "cpu"
    """Torch device to train on; auto is cuda where there is one, else cpu."""
    threads: Annotated[_Threads, MAY_CHANGE] = 1
    """Torch threads; small networks are fastest with one (composerl doctor tells from where on)."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the updates: faster after half a minute. Auto: if the run is long enough to gain."""
    log_every: Annotated[Count, MAY_CHANGE] = 100
    """Steps between rows of training metrics."""
    eval_every: Annotated[Count, MAY_CHANGE] = 1000
    """Steps between evaluations."""
    eval_episodes: Annotated[Count, MAY_CHANGE] = 20
    """Episodes of an evaluation."""
    save_every: Annotated[Count, MAY_CHANGE] = 1000
    """Steps between checkpoints."""
    keep_checkpoints: Annotated[Count, MAY_CHANGE] = 2
    """How many of them stay, the newest; composerl evaluate ranks the policies in them."""
    stop_at: Annotated[float | None, MAY_CHANGE] = None
    """Stop early when an evaluation's mean return reaches this."""
    patience: Annotated[Count | None, MAY_CHANGE] = None
    """Stop early after so many evaluations without a new best."""
    wandb: Annotated[Literal["auto", "online", "offline", "disabled"], MAY_CHANGE] = "auto"
    """Weights & Biases; auto is online when a key is configured, offline otherwise."""
    wandb_project: Annotated[_Project, MAY_CHANGE] = "composerl"
    """Project in Weights & Biases."""
    wandb_entity: Annotated[str | None, MAY_CHANGE] = None
    """User or team there; by default the key's own."""
    wandb_group: Annotated[str | None, MAY_CHANGE] = None
    """Group there; by default that of --seeds, a sweep or a league, else the recipe."""
    wandb_name: Annotated[str | None, MAY_CHANGE] = None
    """Name of the run there; by default recipe and seed."""
    wandb_tags: Annotated[tuple[str, ...], MAY_CHANGE] = ()
    """Tags there, besides recipe and environment."""
    wandb_system: Annotated[bool, MAY_CHANGE] = True
    """Send system metrics (CPU, memory, GPU), versions and the git commit, too."""
    wandb_artifacts: Annotated[bool, MAY_CHANGE] = False
    """Also store checkpoints and the final policy as artifacts in Weights & Biases."""
    tensorboard: Annotated[bool, MAY_CHANGE] = False
    """Also write TensorBoard files into the run directory."""
    video: Annotated[Literal["off", "on", "every"], MAY_CHANGE] = "off"
    """Draw an episode of the final policy, or at every evaluation, as images/episode-* and in
    Weights & Biases."""
    video_format: Annotated[Literal["gif", "mp4"], MAY_CHANGE] = "gif"
    """What these are written as; mp4 has all frames, and needs the extra video."""

    def __post_init__(self) -> None:
        declared = declarations(type(self))
        for f in fields(self):
            (kind, plain), *bases = declared[f.name]
            value = coerce(f.name, getattr(self, f.name), kind)
            for base, bare in bases:  # declared again as the same type, a field keeps their rules
                if bare == plain:
                    coerce(f.name, value, base)
            if isinstance(value, float) and math.isnan(value):  # no flag means it
                raise ValueError(f"{f.name} must be a number, got nan")
            object.__setattr__(self, f.name, value)
        if self.device == "auto":  # here, as recipes and config.yaml are to have the real one
            import torch

            object.__setattr__(self, "device", "cuda" if torch.cuda.is_available() else "cpu")

    @classmethod
    def implied(cls, given: set[str]) -> dict[str, Any]:
        """Values that follow from which fields are given, on the command line or to ``train``.

        A recipe with fields that exclude each other raises a ValueError here.
        """
        return {}


C = TypeVar("C", bound=RunConfig)

#: What says where and how to run, and is not part of the written config.
PLACE = ("config", "out", "resume")


def config_to_dict(config: RunConfig) -> dict[str, Any]:
    """Plain values, without those that only say where to run; what config.yaml holds."""
    values = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in PLACE}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def config_from_yaml(config_class: type[C], path: str | Path) -> C:
    """A configuration from a YAML file; unknown keys and values of a wrong kind are refused.

    A bare name, ``halfcheetah``, is that of a preset of the recipe, see :func:`preset_files`.
    """
    path = _find(config_class, Path(path))
    values = read_yaml(path, links=True)
    known = {f.name for f in fields(config_class)} - set(PLACE)
    for key in values:
        if key not in known:
            raise ValueError(f"{path}: unknown key {key!r}: {suggest(str(key), known)}")
    try:
        return config_class(**values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def preset_files(recipe: Path) -> dict[str, Path]:
    """The presets of a recipe's file by name: ``presets/<recipe>/<name>.yaml`` beside it."""
    found = (recipe.parent / "presets" / recipe.stem).glob("*.yaml")
    return {path.stem: path for path in sorted(found)}


def is_preset(config_class: type[RunConfig], path: str | Path) -> bool:
    """Whether ``--config`` means a preset, which lies beside the recipe and is as good as it."""
    presets = preset_files(Path(inspect.getfile(config_class))).values()
    return _find(config_class, Path(path)).resolve() in [preset.resolve() for preset in presets]


def _find(config_class: type[RunConfig], path: Path) -> Path:
    """The file that ``--config`` means: itself, or the preset of that name."""
    if path.is_file():
        return path
    what = "there is no such file"
    if path.exists():
        what = "it is a directory" if path.is_dir() else "it is no plain file"
    if path.suffix or path.parent != Path():
        raise FileNotFoundError(f"--config {path}: {what}")
    recipe = Path(inspect.getfile(config_class))
    presets = preset_files(recipe)
    if path.name in presets:
        return presets[path.name]
    known = f"it has {', '.join(presets)}" if presets else "it has none"
    raise FileNotFoundError(f"--config {path}: {what}, and no preset of {recipe.stem}; {known}")
