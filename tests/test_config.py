"""Configuration: flags, YAML, suggestions, one sentence per mistake."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import typing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
import yaml

from composerl.catalog import load_recipe, recipes, train
from composerl.config import (
    MAY_CHANGE,
    Count,
    DatasetConfig,
    Finite,
    LRSchedule,
    NonNegative,
    OfflineConfig,
    Positive,
    Rule,
    RunConfig,
    Section,
    Share,
    Whole,
    cli,
    config_from_yaml,
    config_to_dict,
    may_change,
    parse,
)
from composerl.config.fields import docs, sections
from composerl.optim import lr_schedule


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    env: str = "Pendulum-v1"
    steps: int = 100
    lr: float = 1e-3
    hidden: tuple[int, ...] = (64, 64)
    clip: float | None = None


Even = Annotated[int, Rule(lambda n: n % 2 == 0, "an even number")]


@dataclass(frozen=True, kw_only=True)
class Ruled(RunConfig):
    """One field for each way to write a rule."""

    env: str = "Pendulum-v1"
    steps: Count = 100
    count: Count = 1
    """How many."""
    whole: Whole = 0
    share: Share = 0.5
    positive: Positive = 1.0
    rate: NonNegative = 0.0
    finite: Finite = -1.0
    maybe: Count | None = None
    widths: tuple[Count, ...] = (1, 2)
    pair: tuple[Count, Share] = (3, 0.5)
    even: Even = 2
    note: Annotated[str, MAY_CHANGE] = ""


@dataclass(frozen=True, kw_only=True)
class Offline(OfflineConfig):
    env: str = "Pendulum-v1"
    steps: Count = 5000
    batch_size: Count = 64


def test_flags_override_file_overrides_default(tmp_path):
    (tmp_path / "c.yaml").write_text("lr: 1e-4\nsteps: 7\nhidden: [8, 9]\nclip: 2\ncompile: true\n")
    cfg = parse(Config, ["--config", str(tmp_path / "c.yaml"), "--steps", "5"])
    assert (cfg.lr, cfg.steps, cfg.hidden, cfg.clip, cfg.compile) == (1e-4, 5, (8, 9), 2.0, "on")
    assert parse(Config, []).lr == 1e-3
    assert parse(Config, [f"--config={tmp_path / 'c.yaml'}", "--no-compile"]).compile == "off"


def test_what_clones_a_dataset_is_not_asked_for_returns():
    cloning, learning = ({f.name for f in fields(kind)} for kind in (DatasetConfig, OfflineConfig))
    assert {"dataset", "epochs", "normalize", "hidden", "lr_schedule"} <= cloning < learning
    assert learning - cloning == {
        "gamma", "tau", "reward_scale", "reward_shift", "online_steps", "offline_fraction",
    }  # fmt: skip


def test_written_config_is_a_valid_config(tmp_path):
    cfg = Config(lr=3e-5, hidden=(1, 2, 3), out=Path("somewhere"), stop_at=-1.5, wandb="offline")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config_to_dict(cfg)))
    again = config_from_yaml(Config, tmp_path / "config.yaml")
    assert again == Config(lr=3e-5, hidden=(1, 2, 3), stop_at=-1.5, wandb="offline")


@pytest.mark.parametrize(
    ("flag", "suggestion"),
    [
        ("--lerning-rate", "did you mean --lr"),
        ("--learning-rate", "did you mean --lr"),
        ("--sed", "did you mean --seed"),
        ("--eval-evry", "did you mean --eval-every"),
        ("--total-timesteps", "did you mean --steps"),
        ("--xyzzy", "known are"),
    ],
)
def test_unknown_flag_suggests_the_nearest(flag, suggestion):
    with pytest.raises(ValueError, match=f"unknown flag {flag}: .*{suggestion}"):
        parse(Config, [flag, "3"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lerning_rate: 3", "unknown key 'lerning_rate': did you mean lr"),
        ("lr: fast", "lr must be a number, got 'fast'"),
        ("steps: 1.5", "steps must be of type int, got 1.5"),
        ("steps: true", "steps must be of type int, got True"),
        ("compile: 1", "compile must be one of auto, on, off, got 1"),
        ("tensorboard: 1", "tensorboard must be of type bool"),
        ("steps: -1", "steps must be at least 1"),
        ("hidden: 64", "hidden"),
        ("wandb: sometimes", "wandb must be one of auto, online, offline, disabled"),
        ("- a\n- b", "'key: value' lines"),
        ("a: [", "not valid YAML"),
        ("!!python/object/apply:os.mkdir [/tmp/composerl-yaml-executed]", "not valid YAML"),
        ("out: x", "unknown key 'out'"),
    ],
)
def test_bad_files_are_refused_with_the_key(tmp_path, text, message):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        parse(Config, ["--config", str(tmp_path / "c.yaml")])
    assert not Path("/tmp/composerl-yaml-executed").exists()


def test_missing_config_file():
    with pytest.raises(FileNotFoundError, match="no such file"):
        parse(Config, ["--config", "nowhere.yaml"])


def test_values_are_checked_at_construction():
    with pytest.raises(ValueError, match="lr must be a number, got 'x'"):
        Config(lr="x")
    with pytest.raises(ValueError, match=r"seed must be in \[0, 2\*\*32\)"):
        Config(seed=-1)
    with pytest.raises(ValueError, match="patience must be at least 1"):
        Config(patience=0)


@pytest.mark.parametrize(
    ("recipe", "name", "value", "words"),
    [
        ("iqn_cartpole", "num_envs", 0, "at least 1, got 0"),
        ("iqn_cartpole", "updates", -1, "at least 1, got -1"),
        ("iqn_cartpole", "epsilon_steps", 0, "at least 1"),
        ("iqn_cartpole", "epsilon", 1.5, r"in \[0, 1\], got 1.5"),
        ("iqn_cartpole", "epsilon", -0.5, r"in \[0, 1\], got -0.5"),
        ("iqn_cartpole", "average", math.nan, r"in \[0, 1\], got nan"),
        ("fqf_cartpole", "fraction_lr", -1.0, "at least 0"),
        ("fqf_cartpole", "lr", math.inf, "at least 0, got inf"),
        ("iqn_cartpole", "warmup", -1, "at least 0"),
        ("mbpo_pendulum", "fit_every", 0, "at least 1"),
        ("mbpo_pendulum", "rollouts", 0, "at least 1"),
        ("mbpo_pendulum", "rollout_length", [1, 1], r"4 numbers, got \[1, 1\]"),
        ("cql_pendulum", "online_steps", -5, "at least 0"),
        ("cql_pendulum", "bc_steps", -3, "at least 0"),
    ],
)
def test_recipes_refuse_values_before_anything_starts(recipe, name, value, words):
    with pytest.raises(ValueError, match=f"{name} must be {words}"):
        load_recipe(recipe).Config(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("count", 0, "count must be at least 1, got 0"),
        ("count", True, "count must be of type int, got True"),
        ("count", math.inf, "count must be of type int, got inf"),
        ("whole", -1, "whole must be at least 0, got -1"),
        ("share", 1.01, r"share must be in \[0, 1\], got 1.01"),
        ("share", math.nan, r"share must be in \[0, 1\], got nan"),
        ("positive", 0, "positive must be positive, got 0.0"),
        ("positive", math.inf, "positive must be positive, got inf"),
        ("rate", -1e-9, "rate must be at least 0, got -1e-09"),
        ("rate", math.nan, "rate must be at least 0, got nan"),
        ("rate", math.inf, "rate must be at least 0, got inf"),
        ("finite", -math.inf, "finite must be a finite number, got -inf"),
        ("maybe", 0, "maybe must be at least 1, got 0"),
        ("widths", [4, 0], "each of widths must be at least 1, got 0"),
        ("widths", [4, "x"], "each of widths must be of type int, got 'x'"),
        ("pair", [0, 0.5], "each of pair must be at least 1, got 0"),
        ("pair", [2, 2.0], r"each of pair must be in \[0, 1\], got 2.0"),
        ("pair", [2], r"pair must be 2 numbers, got \[2\]"),
        ("even", 3, "even must be an even number, got 3"),
        ("stop_at", math.nan, "stop_at must be a number, got nan"),
        ("seed", 2**32, r"seed must be in \[0, 2\*\*32\), got 4294967296"),
    ],
)
def test_rules_are_on_the_field(name, value, words):
    with pytest.raises(ValueError, match=words):
        Ruled(**{name: value})


def test_what_the_rules_allow():
    values = {"whole": 0, "share": 0.0, "maybe": None, "rate": 0, "pair": (1, 1), "even": -4}
    cfg = Ruled(**values, stop_at=math.inf)
    assert (cfg.whole, cfg.share, cfg.maybe, cfg.rate, cfg.even) == (0, 0.0, None, 0.0, -4)
    assert cfg.pair == (1, 1.0)
    assert isinstance(cfg.pair[1], float)
    assert Ruled(maybe=3, widths=(5,)).widths == (5,)


def test_rules_hold_on_the_command_line_and_in_files(tmp_path):
    with pytest.raises(ValueError, match="each of --widths must be at least 1, got 0"):
        parse(Ruled, ["--widths", "3", "0"])
    with pytest.raises(ValueError, match="maybe must be at least 1, got -2"):
        parse(Ruled, ["--maybe", "-2"])
    (tmp_path / "c.yaml").write_text("even: 7\n")
    with pytest.raises(ValueError, match=r"c.yaml: even must be an even number, got 7"):
        parse(Ruled, ["--config", str(tmp_path / "c.yaml")])
    assert parse(Ruled, ["--maybe", "2", "--widths", "3", "--pair", "2", "0.1"]).pair == (2, 0.1)


def test_a_field_that_is_declared_again_keeps_rules_and_marks():
    @dataclass(frozen=True, kw_only=True)
    class Again(Ruled):
        steps: int = 10
        even: int = 4
        patience: int = 3
        note: str = "other"
        share: Annotated[float, Rule(lambda x: x < 0.5, "less than half")] = 0.1

    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        Again(steps=0)
    with pytest.raises(ValueError, match="even must be an even number"):
        Again(even=1)
    with pytest.raises(ValueError, match=r"share must be less than half, got 0\.7"):
        Again(share=0.7)
    with pytest.raises(ValueError, match=r"share must be in \[0, 1\], got -1.0"):
        Again(share=-1)
    assert {"steps", "patience", "note"} <= may_change(Again)


def test_a_field_may_be_declared_again_as_another_type():
    @dataclass(frozen=True, kw_only=True)
    class Other(Ruled):
        share: Literal["all", "none"] = "all"

    assert Other().share == "all"


def test_what_may_change_on_resume():
    assert may_change(Ruled) == may_change(RunConfig) | {"note"}
    assert may_change(Offline) == may_change(RunConfig) | {"epochs", "online_steps"}
    assert may_change(RunConfig) == {
        "steps", "device", "threads", "log_every", "eval_every", "eval_episodes", "save_every",
        "keep_checkpoints", "stop_at", "patience", "wandb", "wandb_project", "wandb_artifacts",
        "wandb_entity", "wandb_group", "wandb_name", "wandb_system", "wandb_tags", "tensorboard",
        "video", "video_format",
    }  # fmt: skip


def test_several_threads_wait_without_spinning(monkeypatch):
    """Said before torch is imported; what the user has set stays."""
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    parse(Ruled, [])
    assert "OMP_WAIT_POLICY" not in os.environ
    parse(Ruled, ["--threads", "2"])
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    os.environ["OMP_WAIT_POLICY"] = "ACTIVE"
    parse(Ruled, ["--threads", "2"])
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


def test_marks_are_no_noise(capsys):
    for flags in (["--help"], ["--maybe", "x"], ["--count", "x"], ["--widths", "x"]):
        with pytest.raises((SystemExit, ValueError)) as stop:
            parse(Ruled, flags)
        shown = "".join(capsys.readouterr()) + str(stop.value)
        assert "Rule" not in shown
        assert "Annotated" not in shown
        assert MAY_CHANGE not in shown


@dataclass(frozen=True, kw_only=True)
class Parted(RunConfig):
    env: str = "Pendulum-v1"
    steps: Count = 5
    unsorted: int = 0

    other: ClassVar[Section]
    last: int = 0

    networks: ClassVar[Section]
    hidden: int = 3
    """Widths."""

    limit: ClassVar[int] = 4
    kept: int = 0


@dataclass(frozen=True, kw_only=True)
class Further(Parted):
    data: ClassVar[Section]
    rows: int = 9
    """Rows
    of it."""
    hidden: int = 4

    networks: ClassVar[Section]
    depth: int = 2


def test_sections():
    assert list(sections(Further)) == ["run", "data", "networks", "algorithm", "other"]
    assert sections(Further)["run"] == [f.name for f in fields(RunConfig)]
    assert sections(Further)["data"] == ["rows"]
    assert sections(Further)["networks"] == ["hidden", "kept", "depth"]
    assert sections(Further)["algorithm"] == ["unsorted"]
    assert sections(Further)["other"] == ["last"]


def test_sections_are_groups_in_help_and_flags_stay_flat(capsys, tmp_path):
    with pytest.raises(SystemExit):
        parse(Further, ["--help"])
    shown = capsys.readouterr().out
    titles = [f"{name} options" for name in ("run", "data", "networks", "algorithm", "other")]
    places = [shown.index(title) for title in titles]
    assert places == sorted(places)
    network = shown[places[2] : places[3]]
    assert "--hidden INT" in network
    assert "Widths. (default: 4)" in network
    assert "--depth INT" in network
    assert "--lr" not in network
    assert "Gymnasium id" in shown[places[0] : places[1]]

    cfg = parse(Further, ["--hidden", "7", "--depth=8", "--env", "X-v0"])
    assert (cfg.hidden, cfg.depth, cfg.env, cfg.rows) == (7, 8, "X-v0", 9)
    written = config_to_dict(cfg)
    assert set(written) == {f.name for f in fields(Further)} - {"out", "config", "resume"}
    assert written["hidden"] == 7


def test_help_is_the_string_under_the_field():
    found = docs(Further)
    assert found["rows"] == "Rows\nof it."
    assert found["hidden"] == "Widths."
    assert found["env"] == docs(RunConfig)["env"]
    assert "depth" not in found


def test_help_where_there_is_no_source(capsys):
    space: dict[str, Any] = {"__name__": __name__}
    exec(
        "from dataclasses import dataclass\n"
        "from composerl.config import RunConfig\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Typed(RunConfig):\n"
        "    env: str = 'A'\n"
        "    steps: int = 3\n",
        space,
    )
    with pytest.raises(SystemExit):
        parse(space["Typed"], ["--help"])
    helped = capsys.readouterr().out
    assert "Gymnasium id of the environment." in helped
    assert "(default: A)" in helped


@pytest.mark.parametrize("name", recipes())
def test_fields_of_recipes_are_described_and_in_known_sections(name):
    config_class = load_recipe(name).Config
    assert set(docs(config_class)) >= {f.name for f in fields(config_class)}
    assert set(sections(config_class)) <= {"run", "data", "networks", "algorithm", "online"}
    for number in ("lr", "batch_size", "hidden"):
        if number in config_class.__dataclass_fields__:
            value = (0,) if number == "hidden" else -1
            with pytest.raises(ValueError, match=f"{number} must be at least"):
                config_class(**{number: value})


def test_a_required_field_is_asked_for():
    with pytest.raises(ValueError, match="--env"):
        parse(RunConfig, ["--steps", "3"])
    assert parse(RunConfig, ["--steps", "3", "--env", "X-v0"]).env == "X-v0"


# ---- epochs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "epochs", "steps"),
    [(640, 1, 10), (641, 1, 11), (639, 2, 20), (1, 3, 3), (640, None, 5000)],
)
def test_an_epoch_is_a_pass_over_the_rows(rows, epochs, steps):
    assert Offline(epochs=epochs).gradient_steps(rows) == steps


def test_steps_or_epochs_not_both():
    for flags in (["--steps", "3", "--epochs", "2"], ["--epochs=2", "--steps=3"]):
        with pytest.raises(ValueError, match="--steps and --epochs cannot be given together"):
            parse(Offline, flags)
    with pytest.raises(ValueError, match="--steps and --epochs cannot be given together"):
        train("iql_pendulum", steps=3, epochs=2)
    with pytest.raises(ValueError, match="epochs must be at least 1, got 0"):
        parse(Offline, ["--epochs", "0"])

    # Of a recipe that is not offline, epochs are its own affair.
    @dataclass(frozen=True, kw_only=True)
    class Own(Config):
        epochs: Count = 4

    assert parse(Own, ["--steps", "3", "--epochs", "2"]).epochs == 2


def test_epochs_in_files(tmp_path):
    """A written file has both: the epochs count, until a flag says steps."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config_to_dict(Offline(epochs=3))))
    again = parse(Offline, ["--config", str(path)])
    assert (again.epochs, again.gradient_steps(640)) == (3, 30)
    assert parse(Offline, ["--out", str(tmp_path), "--resume", "--epochs", "4"]).epochs == 4
    resumed = parse(Offline, ["--out", str(tmp_path), "--resume", "--steps", "12"])
    assert (resumed.epochs, resumed.gradient_steps(640)) == (None, 12)


# ---- keyword arguments of the environment ------------------------------------------------------


def test_env_kwargs_from_everywhere(tmp_path):
    assert Config().env_kwargs == {}
    assert Config(env_kwargs={"size": (3, 4)}).env_kwargs == {"size": [3, 4]}
    flags = ["--env-kwargs", '{"size": 64, "colour": true, "name": "a b"}']
    cfg = parse(Config, flags)
    assert cfg.env_kwargs == {"size": 64, "colour": True, "name": "a b"}
    assert parse(Config, [f"--env-kwargs={flags[1]}"]) == cfg
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config_to_dict(cfg)))
    file = ["--config", str(tmp_path / "config.yaml")]
    assert parse(Config, file).env_kwargs == cfg.env_kwargs
    assert parse(Config, [*file, "--env-kwargs", "{}"]).env_kwargs == {}
    assert Config().env_kwargs is not Config().env_kwargs


@pytest.mark.parametrize("value", ['{"size": 6', "[1]", "3", "", {"f": print}, {"x": math.nan}, 5])
def test_env_kwargs_that_are_no_json_object(value):
    with pytest.raises(ValueError, match="env_kwargs must be a JSON object such as"):
        Config(env_kwargs=value)


def test_a_recipe_s_own_env_kwargs(capsys):
    @dataclass(frozen=True, kw_only=True)
    class Own(Config):
        env_kwargs: dict[str, Any] = field(default_factory=lambda: {"size": 64})

    assert parse(Own, []).env_kwargs == {"size": 64}
    with pytest.raises(SystemExit):
        parse(Own, ["--help"])
    assert "--env-kwargs JSON" in capsys.readouterr().out


def test_schedules_have_the_names_that_optim_knows():
    for name in typing.get_args(LRSchedule):
        assert lr_schedule(name, 10)(0) == 1
    with pytest.raises(ValueError, match=", ".join(typing.get_args(LRSchedule))):
        lr_schedule("sudden", 10)


def test_sweep_style_booleans():
    assert parse(Config, ["--tensorboard=True"]).tensorboard is True
    assert parse(Config, ["--tensorboard=false"]).tensorboard is False
    assert parse(Config, ["--lr=0.5"]).lr == 0.5


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        ([], "auto"), (["--compile"], "on"), (["--no-compile"], "off"), (["--compile", "on"], "on"),
        (["--compile=off"], "off"), (["--compile=True"], "on"), (["--compile=0"], "off"),
        (["--compile", "--steps", "3"], "on"), (["--compile", "auto"], "auto"),
    ],
)  # fmt: skip
def test_compile_is_a_switch_and_a_choice(flags, value):
    """With and without a value, as a sweep agent writes it, and as YAML reads on and off."""
    assert parse(Config, flags).compile == value
    assert Config(compile=True).compile == "on"
    assert Config(compile=False).compile == "off"
    with pytest.raises(ValueError, match="--compile must be one of 'auto', 'on', 'off'"):
        parse(Config, ["--compile", "sometimes"])


def test_resume_takes_the_run_s_own_config(tmp_path):
    cfg = Config(lr=0.25, steps=9)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config_to_dict(cfg)))
    resumed = parse(Config, ["--out", str(tmp_path), "--resume", "--steps", "12"])
    assert (resumed.lr, resumed.steps, resumed.resume) == (0.25, 12, True)
    assert parse(Config, ["--out", str(tmp_path)]).lr == 1e-3


def test_cli_prints_one_sentence_and_hides_no_bug(capsys, monkeypatch):
    with pytest.raises(SystemExit) as stop:
        cli(Config, lambda cfg: None, ["--sed", "1"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("error: unknown flag --sed: did you mean --seed?")

    def full_disk(cfg):
        raise OSError(28, "No space left on device", "runs/x")

    with pytest.raises(SystemExit):
        cli(Config, full_disk, [])
    assert "No space left on device" in capsys.readouterr().err

    def bug(cfg):
        raise ValueError("a bug of the recipe's author")

    with pytest.raises(ValueError, match="a bug"):
        cli(Config, bug, [])

    def stop_it(cfg):
        raise KeyboardInterrupt("stopped at step 3; go on with: ...")

    with pytest.raises(SystemExit) as stop:
        cli(Config, stop_it, [])
    assert stop.value.code == 130
    assert "stopped at step 3" in capsys.readouterr().err

    monkeypatch.setenv("COMPOSERL_TRACEBACK", "1")
    with pytest.raises(ValueError, match="unknown flag"):
        cli(Config, bug, ["--sed", "1"])


def test_import_is_instant():
    code = (
        "import sys, composerl, composerl.config\n"
        "heavy = {'torch', 'wandb', 'numpy', 'tyro', 'gymnasium'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert {'Run', 'load'} <= set(dir(composerl))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("words", [["--steps", "1e3"], ["--steps=1e3"], ["--steps", "1_000"]])
def test_whole_numbers_as_people_write_them(words, tmp_path):
    config = load_recipe("iql_pendulum").Config
    made = parse(config, [*words, "--hidden", "1e1", "32", "--patience", "1e0"])
    assert (made.steps, made.hidden, made.patience) == (1000, (10, 32), 1)
    (tmp_path / "a.yaml").write_text("steps: 1e3\nhidden: [1.0e+1, 32]\n")
    assert parse(config, ["--config", str(tmp_path / "a.yaml")]).hidden == (10, 32)
    with pytest.raises(ValueError, match="whole number"):
        parse(config, ["--steps", "1.5"])


def test_auto_is_a_device():
    import torch

    config = load_recipe("iql_pendulum").Config
    assert config(device="auto").device == ("cuda" if torch.cuda.is_available() else "cpu")


def test_help_says_what_steps_are(capsys):
    for name, unit in (("iql_pendulum", "updates"), ("ppo_cartpole", "environment steps")):
        config = load_recipe(name).Config
        assert config.step_unit == unit
        with pytest.raises(SystemExit):
            parse(config, ["--help"])
        assert f"Length of the run, in {unit}" in " ".join(capsys.readouterr().out.split())
