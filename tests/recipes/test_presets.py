"""Presets: each is valid for its recipe, found by its name, and listed."""

from __future__ import annotations

import subprocess
import sys

import gymnasium as gym
import pytest
import yaml
from recipes.harness import RECIPES, load_recipe

import composerl
from composerl.cli import recipes as command
from composerl.config import parse, preset_files

ROOT = RECIPES[0].parent
PRESETS = [(recipe, file) for recipe in RECIPES for file in preset_files(recipe).values()]

#: What there must be at least.
BODIES = {"halfcheetah", "hopper"}
GAMES = {f"minatar_{game}" for game in ("asterix", "breakout", "freeway", "seaquest")}
GAMES |= {"minatar_space_invaders", "atari_breakout"}
NEEDED = {
    **{f"{name}_pendulum": BODIES | {"walker2d"} for name in ("iql", "xql", "cql", "td3bc")},
    **{f"{name}_pendulum": BODIES for name in ("mbpo", "sac")},
    **{f"{name}_cartpole": GAMES for name in ("iqn", "fqf")},
    "gail_cartpole": {"pendulum"},
}


def test_none_is_missing_and_none_lies_where_no_recipe_finds_it():
    for recipe, names in NEEDED.items():
        assert names <= set(preset_files(ROOT / f"{recipe}.py"))
    assert {file for _, file in PRESETS} == set(ROOT.glob("presets/**/*.yaml"))


@pytest.mark.parametrize(("recipe", "file"), PRESETS, ids=lambda path: path.stem)
def test_every_preset_fits_its_recipe(recipe, file):
    """By name, and flags override it; what it says is what the run does."""
    config = parse(load_recipe(recipe).Config, ["--config", file.stem, "--steps", "7"])
    values = yaml.safe_load(file.read_text())
    assert config.steps == 7
    default = load_recipe(recipe).Config()
    for name in values.keys() - {"steps"}:
        value = getattr(config, name)
        text = values[name]
        expected = tuple(text) if isinstance(text, list) else type(value)(text)
        assert value == expected, name
    assert config.env != default.env


def test_an_unknown_name_says_what_there_is():
    config = load_recipe(ROOT / "gail_cartpole.py").Config
    with pytest.raises(FileNotFoundError, match="no preset of gail_cartpole; it has pendulum"):
        parse(config, ["--config", "humanoid"])
    with pytest.raises(FileNotFoundError, match=r"--config humanoid.yaml: there is no such file$"):
        parse(config, ["--config", "humanoid.yaml"])
    with pytest.raises(FileNotFoundError, match="it has none"):
        parse(load_recipe(ROOT / "bc_pendulum.py").Config, ["--config", "hopper"])


def test_a_file_of_that_name_comes_first(tmp_path, monkeypatch):
    (tmp_path / "pendulum").write_text("steps: 11\n")
    monkeypatch.chdir(tmp_path)
    assert (
        parse(load_recipe(ROOT / "gail_cartpole.py").Config, ["--config", "pendulum"]).steps == 11
    )


def test_they_are_listed(capsys):
    command.recipes()
    lines = capsys.readouterr().out.splitlines()
    (place,) = (n for n, line in enumerate(lines) if line.startswith("mbpo_pendulum"))
    assert lines[place + 1].strip() == "--config halfcheetah | hopper (extra mujoco)"


def test_a_narrow_terminal_breaks_no_word(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    command.recipes()
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 60
    assert {"minatar_space_invaders", "halfcheetah"} <= {*out.split()}


@pytest.mark.parametrize(("recipe", "file"), PRESETS, ids=lambda path: path.stem)
def test_what_a_preset_needs_it_says_first(recipe, file):
    """By the id: what `composerl recipes` tells must not need the packages themselves."""
    env = yaml.safe_load(file.read_text())["env"]
    spec = gym.registry.get(env)
    needs = {"ALE": "atari", "MinAtar": "minatar"}.get(env.split("/")[0])
    if str(spec and spec.entry_point).startswith("gymnasium.envs.mujoco"):
        needs = "mujoco"
    first = file.read_text().splitlines()[0]
    assert first.startswith(f"# Needs the extra {needs}" if needs else "#")
    assert needs or "extra" not in first


def test_from_the_command_line_and_from_python(tmp_path):
    script = [sys.executable, str(ROOT / "gail_cartpole.py"), "--config", "pendulum"]
    small = {"steps": 64, "rollout": 32, "demonstrations": 2, "eval_episodes": 1}
    flags = [w for k, v in small.items() for w in (f"--{k.replace('_', '-')}", str(v))]
    place = ["--out", str(tmp_path / "a"), "--wandb", "disabled"]
    subprocess.run([*script, *flags, *place], check=True, capture_output=True)
    composerl.train(
        "gail_cartpole", config="pendulum", out=tmp_path / "b", wandb="disabled", **small
    )
    a, b = (yaml.safe_load((tmp_path / d / "config.yaml").read_text()) for d in "ab")
    assert a == b
    assert a["env"] == "Pendulum-v1"
