"""Configuration: flags, YAML, suggestions, one sentence per mistake."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from composerl import config
from composerl.catalog import load_recipe, recipes
from composerl.config import RunConfig, cli, config_from_yaml, config_to_dict, parse


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    env: str = "Pendulum-v1"
    steps: int = 100
    lr: float = 1e-3
    hidden: tuple[int, ...] = (64, 64)
    clip: float | None = None


def test_flags_override_file_overrides_default(tmp_path):
    (tmp_path / "c.yaml").write_text("lr: 1e-4\nsteps: 7\nhidden: [8, 9]\nclip: 2\ncompile: true\n")
    cfg = parse(Config, ["--config", str(tmp_path / "c.yaml"), "--steps", "5"])
    assert (cfg.lr, cfg.steps, cfg.hidden, cfg.clip, cfg.compile) == (1e-4, 5, (8, 9), 2.0, True)
    assert parse(Config, []).lr == 1e-3
    assert parse(Config, [f"--config={tmp_path / 'c.yaml'}", "--no-compile"]).compile is False


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
        ("compile: 1", "compile must be of type bool"),
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


def test_names_with_limits_are_fields_of_some_recipe():
    fields = {
        name for recipe in recipes() for name in load_recipe(recipe).Config.__dataclass_fields__
    }
    for names in (config.AT_LEAST_ONE, config.AT_LEAST_ZERO, config.SHARES):
        assert set(names) <= fields


def test_sweep_style_booleans():
    assert parse(Config, ["--compile=True"]).compile is True
    assert parse(Config, ["--compile=false"]).compile is False
    assert parse(Config, ["--lr=0.5"]).lr == 0.5


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
