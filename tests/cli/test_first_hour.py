"""What made a new user stumble in the first hour, each as it is now."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import gymnasium as gym
import pytest
import torch
from torchrl.envs import GymEnv

import composerl
from composerl.cli import starting
from composerl.data import read_dataset
from composerl.envs import Spaces, make_env
from composerl.errors import guard
from composerl.modules import gaussian_actor


@pytest.mark.parametrize(
    ("words", "needs"),
    [
        (["run"], "composerl run needs NAME (a packaged recipe (see composerl recipes) or the "
                  "path of a recipe file)"),
        (["export"], "composerl export needs RUN (run directory, or a policy or checkpoint file in "
                     "it), --out (file to write)"),
        (["compare", "x"], "composerl compare needs B (the same)"),
    ],
)  # fmt: skip
def test_words_that_are_missing_are_named(cli, words, needs):
    result = cli(*words)
    assert (result.code, result.err) == (2, f"error: {needs}\n")


def test_help_calls_words_by_their_names(cli):
    assert "usage: composerl run [-h] [OPTIONS] NAME\n" in cli("run", "--help").out
    assert "usage: composerl data info [-h] FILE [--env" in cli("data", "info", "--help").out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["run", "iql_pendulum"], "name of one of the recipe's presets"),
        (["sweep"], "those below the median of the others at the same step"),
        (["predict"], "one line each. To a policy with a memory they are"),
    ],
)
def test_help_breaks_lines_where_the_terminal_does_alone(cli, monkeypatch, words, line):
    """Not where the source did, too; predict and export say what they need an environment for."""
    monkeypatch.setenv("COLUMNS", "400")
    assert line in cli(*words, "--help").out
    assert "To play in another" not in cli("predict", "--help").out


def test_what_is_written_is_named_alike_by_all_data_commands(cli):
    for name in ("make", "collect", "mix", "filter", "convert"):
        assert "-o PATH, --out PATH" in cli("data", name, "--help").out, name
    told = cli("data", "convert", "a.npz").err
    assert "data convert needs --out (npz, hdf5, or a name without ending" in told


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--lr=-1"], "--lr must be at least 0, got -1.0"),
        (["--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["--hidden", "8", "0"], "each of --hidden must be at least 1, got 0"),
        (["--seed"], "--seed needs a value"),
        (["--compile", "maybe"], "--compile must be one of 'auto', 'on', 'off', got 'maybe'"),
        (["5"], "nothing takes the words 5"),
        (["--hidden"], "--hidden needs one value or more, separated by spaces"),
        (["--hidden", "--seed", "1"], "--hidden needs one value or more, separated by spaces"),
    ],
)
def test_values_are_refused_by_their_flag(cli, flags, told):
    result = cli("run", "iql_pendulum", *flags)
    assert (result.code, result.err) == (2, f"error: {told}\n")


def test_an_unknown_flag_of_a_command_is_told_with_what_is_near(cli):
    told = "unknown flag --epsodes: did you mean --episodes? (--help lists all)"
    assert cli("evaluate", "--epsodes", "3", "x").err == f"error: {told}\n"
    assert "unknown flag --fast: known are --" in cli("compare", "a", "b", "--fast").err
    assert "--seeds: cannot be 'a'" in cli("run", "ppo_cartpole", "--seeds", "a").err


def test_from_python_by_their_field():
    with pytest.raises(ValueError, match=r"^batch_size must be at least 1, got 0$"):
        composerl.train("iql_pendulum", batch_size=0)


def test_another_recipe_is_named_when_a_run_is_resumed(cli, run):
    result = cli("run", "gail_cartpole", "--out", run, "--resume")
    told = f"--resume: {run} holds a run of iql_pendulum, which gail_cartpole cannot go on with"
    assert (result.code, result.err) == (2, f"error: {told}\n")


def test_seeds_do_not_go_into_a_run(cli, run):
    result = cli("run", "gail_cartpole", "--out", run, "--resume", "--seeds", "0", "1")
    told = f"--out {run} is a run itself: choose another directory for --seeds"
    assert (result.code, result.err) == (2, f"error: {told}\n")


def test_a_behaviour_is_no_file(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = cli("data", "info", "mixed").err
    assert "composerl data make ENV --behaviour mixed -o mixed.npz writes a file" in told
    assert cli("data", "info", "x.npz").err == "error: dataset x.npz does not exist\n"


def test_a_module_that_is_not_there_is_told_once(cli):
    told = cli("run", "ppo_cartpole", "--env", "nomod:X-v0").err
    assert told.count("nomod") == 2  # the id, and the module
    assert "which is neither installed nor in this directory" in told


def test_a_module_that_lacks_another_names_that_one(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lacking_env.py").write_text("import not_there_at_all\n")
    told = cli("run", "ppo_cartpole", "--env", "lacking_env:X-v0").err
    assert "needs a package that is not installed: No module named 'not_there_at_all'\n" in told


def test_missing_mujoco_names_the_extra(monkeypatch):
    def make(*_, **__):
        raise gym.error.DependencyNotInstalled("MuJoCo is not installed")

    monkeypatch.setattr(gym, "make", make)
    with pytest.raises(ValueError, match=re.escape("pip install 'composerl[mujoco]'")):
        make_env("Hopper-v5")


def test_new_says_how_to_get_pytest(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(starting, "find_spec", lambda name: None)
    told = cli("new", "mine", "--out", tmp_path).out
    assert f"and pip install pytest, then pytest {tmp_path / 'test_mine.py'}\n" in told


def test_a_loaded_policy_knows_its_directory(run):
    assert composerl.load(run).directory == run
    assert composerl.load(run / "policy.safetensors").directory == run
    assert composerl.load(run / "checkpoints" / "best.safetensors").directory == run


def test_a_file_alone_has_no_directory(run, tmp_path):
    copy = composerl.load(run).save(tmp_path / "alone.safetensors")
    assert composerl.load(copy).directory is None


def test_load_of_a_group_names_its_runs(runs):
    told = f"holds 2 runs, name one of them: {runs / 'iql_pendulum' / 'seed0'}, "
    with pytest.raises(ValueError, match=re.escape(told)):
        composerl.load(runs)


def test_a_directory_with_one_run_stands_for_it(cli, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = Path("runs")
    shutil.copytree(run, only := place / "iql_pendulum" / "only")
    (only / "wandb" / "files").mkdir(parents=True)
    (only / "wandb" / "files" / "config.yaml").touch()
    policy = composerl.load(place)
    assert policy.directory is not None
    assert policy.directory.samefile(only)
    told = cli("predict", place, "--obs", "[1, 0, 0]").json
    assert told == {"action": policy.predict([1, 0, 0]).tolist()}
    assert str(only) in cli("evaluate", place, "--episodes", 1).out
    assert cli("bisect", place, run).code == 0
    assert cli("data", "collect", place, "--episodes", 1, "-o", "x.npz").code == 0
    assert str(only) in cli("verify", place).out
    assert str(only) in cli("data", "collect", place, "--replay", "-o", "y.npz").err


def test_a_run_that_never_updated_says_so(cli, tmp_path):
    """It was shorter than what is played before learning starts, and its table looks like any."""
    flags = ("--eval-episodes", 1, "--wandb", "disabled")
    result = cli("run", "sac_pendulum", "--steps", 10, *flags, "--out", tmp_path / "run")
    assert result.code == 0, result.err
    assert "note: nothing was learned: no update in 10 environment steps" in result.err


def test_all_runs_of_a_directory_are_verified(cli, runs):
    result = cli("verify", runs, "--json")
    assert result.code == 0, result.err
    told = [json.loads(line)["run"] for line in result.out.splitlines()]
    assert told == [str(runs / "iql_pendulum" / seed) for seed in ("seed0", "seed1")]


def test_one_run_is_not_called_better(cli, run, runs):
    words = cli("compare", run, runs / "iql_pendulum" / "seed1").out
    assert f"an episode of {run} does better than one of " in words
    words = cli("compare", run, runs / "iql_pendulum").out
    assert f"a run of {run} does better than one of " in words
    assert "(no interval)" in words


def test_what_takes_long_is_told_where_nobody_watches(cli, run):
    told = cli("evaluate", run, "--dataset", "random", "--steps", "20").err
    assert f"{run}: learning its value by 20 updates ..." in told
    assert "generating" in told


def test_an_own_environment_is_told_as_a_flag(cli, tmp_path, monkeypatch):
    """Not imported because a directory says so: but what to add is said."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first_hour_env.py").write_text(
        "import gymnasium as gym\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        'gym.register("Own-v0", entry_point=CartPoleEnv, max_episode_steps=20)\n'
    )
    small = ["--steps", "64", "--rollout", "32", "--eval-episodes", "1", "--wandb", "disabled"]
    flag = ["--env", "first_hour_env:Own-v0"]
    assert cli("run", "ppo_cartpole", *flag, *small, "--out", "own").code == 0
    del sys.modules["first_hour_env"]
    for more in ([], ["--video", "own.gif"]):
        told = cli("evaluate", "own", *more).err
        assert told.endswith("or add --env first_hour_env:Own-v0\n")
    assert "first_hour_env" not in sys.modules
    assert cli("evaluate", "own", *flag, "--episodes", "1").code == 0


def test_modules_here_are_found_by_a_recipe_run_as_a_script(tmp_path):
    """Python puts the script's directory on its path, not this one."""
    (tmp_path / "here_env.py").write_text("raise SystemExit('found')\n")
    script = composerl.catalog.recipes_directory() / "ppo_cartpole.py"
    done = subprocess.run(
        [sys.executable, script, "--env", "here_env:X-v0"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr.endswith("found\n")


def test_a_traceback_begins_with_the_recipe(tmp_path):
    recipe = tmp_path / "mine.py"
    recipe.write_text(
        textwrap.dedent(
            """\
            from dataclasses import dataclass
            from composerl.config import RunConfig, cli

            @dataclass(frozen=True, kw_only=True)
            class Config(RunConfig):
                env: str = "CartPole-v1"
                steps: int = 1

            def main(cfg):
                return 1 / 0

            if __name__ == "__main__":
                cli(Config, main)
            """
        )
    )
    for command in (["-m", "composerl", "run", "mine.py"], ["mine.py"]):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        first, place, line, *_, last = done.stderr.splitlines()
        assert first == "Traceback (most recent call last):"
        assert place == f'  File "{recipe}", line 10, in main'
        assert line.strip() == "return 1 / 0"
        assert last == "ZeroDivisionError: division by zero"
        assert done.returncode == 1


def test_a_recipe_that_python_does_not_understand_is_all_that_is_shown(tmp_path):
    (tmp_path / "mine.py").write_text("def main(:\n")
    words = [sys.executable, "-m", "composerl", "run", "mine.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    place, line, _, last = done.stderr.splitlines()
    assert place == f'  File "{tmp_path / "mine.py"}", line 1'
    assert line.strip() == "def main(:"
    assert last.startswith("SyntaxError: ")


def test_ctrl_c_before_the_first_step_says_how_to_go_on(cli, tmp_path, monkeypatch):
    """While it is evaluated for the first time, or W&B starts: the directory is a run already."""

    def interrupted(*_):
        raise KeyboardInterrupt

    flags = ["--dataset-size", "200", "--steps", "2", "--wandb", "disabled"]
    with monkeypatch.context() as patch:
        patch.setattr(composerl.Run, "_evaluate", interrupted)
        stopped = cli("run", "cql_pendulum", "--out", tmp_path / "run", *flags)
    assert stopped.code == 130
    assert "stopped before the first step; go on with: " in stopped.err
    assert "resume" in stopped.err.splitlines()[-1]
    again = ["--out", tmp_path / "run", "--resume", "--eval-episodes", "1"]
    assert cli("run", "cql_pendulum", *again).code == 0


def test_ctrl_c_while_it_loads_is_answered(cli, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("composerl.cli.recipes.load_recipe", interrupted)
    stopped = cli("run", "cql_pendulum")
    assert (stopped.code, stopped.err) == (130, "stopped\n")


def test_nothing_that_is_copied_breaks_in_a_narrow_terminal(cli, run, runs, monkeypatch):
    """Paths of the table of compare, and the head of verify, at 80 columns."""
    monkeypatch.chdir(runs.parent)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    shown = re.sub(r"\x1b\[[0-9;]*m", "", cli("compare", "runs/iql_pendulum/seed0", "runs").out)
    assert "│ runs/iql_pendulum/seed0 │" in shown
    assert max(len(line) for line in shown.splitlines() if "│" in line) <= 80
    head = json.loads((run / "manifest.json").read_text())["head"]
    assert f"\nhead {head}\n" in cli("verify", "runs/iql_pendulum/seed0").out


def test_a_replay_tells_nothing_of_the_directory_that_it_removes(cli, run):
    told = cli("verify", run, "--replay")
    assert "trained again: policy" in told.out
    assert "composerl.load" not in told.out + told.err


def test_an_environment_of_other_shapes_is_refused_with_both(cli, run, tmp_path):
    mine = "the policy is for observations (3,) of float32 and continuous actions (1,), but "
    told = f"error: {mine}environment 'CartPole-v1' has observations (4,) of float32 and 2 discrete"
    flags = ["--env", "CartPole-v1"]
    for words in (["evaluate", run], ["evaluate", run, "--video", tmp_path / "x.gif"],
                  ["data", "collect", run, "-o", tmp_path / "x.npz"]):  # fmt: skip
        result = cli(*words, *flags)
        assert (result.code, result.err) == (2, f"{told} actions\n")


def test_a_loaded_actor_acts_in_a_stock_environment(cartpole):
    """Which must take integers: GymEnv's own default takes any of them for action 0."""
    policy = composerl.load(cartpole)
    env = GymEnv("CartPole-v1", categorical_action_encoding=True)
    env.set_seed(0)
    with torch.no_grad():
        played = env.rollout(50, policy.actor)
    assert played["action"].tolist() == policy.predict(played["observation"]).tolist()
    pushed = played["next", "observation"][:, 1] > played["observation"][:, 1]
    assert pushed.tolist() == played["action"].bool().tolist()


def test_policies_are_ranked_among_those_of_their_environment(cli, runs, cartpole):
    """A return of CartPole is not better than one of Pendulum."""
    shown = cli("evaluate", runs, cartpole, "--episodes", 2)
    pendulum, pole = shown.out.split("CartPole-v1, 2 episodes, seed 0")
    assert "Pendulum-v1, 2 episodes, seed 0" in pendulum
    assert "seed0" in pendulum
    assert "seed1" in pendulum
    assert str(cartpole) in pole
    assert "seed1" not in pole
    told = cli("evaluate", cartpole, runs, "--episodes", 2, "--json").json
    assert [one["env"] for one in told] == ["CartPole-v1", "Pendulum-v1", "Pendulum-v1"]
    assert told[1]["mean"] >= told[2]["mean"]
    flags = ["--dataset", "random", "--steps", "5", "--hidden", "8"]
    guessed = cli("evaluate", cartpole, runs, *flags).out
    assert "CartPole-v1: estimated return by random" in guessed
    assert "Pendulum-v1: estimated return by random" in guessed


def test_keyword_arguments_of_an_own_environment_are_named(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kwargs_env.py").write_text(
        "import gymnasium as gym\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "def make(gravity=9.8, render_mode=None):\n"
        "    return CartPoleEnv(render_mode=render_mode)\n"
        'gym.register("Kwargs-v0", entry_point=make, max_episode_steps=20)\n'
    )
    for env in ("kwargs_env:Kwargs-v0", "kwargs_env:Kwargs"):
        result = cli("run", "ppo_cartpole", "--env", env, "--env-kwargs", '{"gravty": 3}')
        told = f"environment '{env}' does not take gravty; it takes gravity, render_mode"
        assert (result.code, result.err.splitlines()[-1]) == (2, f"error: {told}")


def test_an_observation_of_parts_is_predicted_from(cli, tmp_path):
    """As an object of its parts, of which one may be called observation."""

    class Goal(gym.Env):
        observation_space = gym.spaces.Dict(
            {"observation": gym.spaces.Box(-1, 1, (2,)), "goal": gym.spaces.Box(-1, 1, (1,))}
        )
        action_space = gym.spaces.Box(-1, 1, (1,))

    policy = composerl.Policy(gaussian_actor(Spaces.of(Goal), (8,)), Goal)
    file = policy.save(tmp_path / "goal.safetensors")
    flat = [0.5, 0.1, 0.2]
    expected = {"action": policy.predict(flat).tolist()}
    parts = {"observation": [0.1, 0.2], "goal": [0.5]}
    lines = (flat, {"observation": flat}, parts, {"observation": parts})
    answers = cli("predict", file, stdin="\n".join(map(json.dumps, lines))).out.splitlines()
    assert [json.loads(answer) for answer in answers] == [expected] * 4
    assert cli("predict", file, "--obs", json.dumps(parts)).json == expected
    told = cli("predict", file, "--obs", '{"goal": [1]}').err
    assert (
        told == 'error: --obs has neither "observation" nor all of goal, observation, it has goal\n'
    )


def test_a_dataset_is_made_in_an_environment_with_arguments(cli, tmp_path):
    """As ``run --env-kwargs`` generates it."""
    words = ["data", "make", "Pendulum-v1", "--behaviour", "random", "--size", 200, "-o"]
    assert cli(*words, tmp_path / "plain.npz").code == 0
    assert cli(*words, tmp_path / "light.npz", "--env-kwargs", '{"g": 1}').code == 0
    plain, light = (read_dataset(tmp_path / f"{name}.npz") for name in ("plain", "light"))
    assert (plain.actions == light.actions).all()
    assert (plain.observations[1:] != light.observations[1:]).any()


def test_warnings_of_ours_are_sentences():
    """Not a line of our source with its number; other people's stay as they are."""
    told = []

    def action():
        for file in (composerl.__file__, "theirs.py"):
            told.append(warnings.formatwarning(UserWarning("a\nb"), UserWarning, file, 3, "x"))

    before = warnings.formatwarning
    guard(action)
    assert told == ["warning: a b\n", "theirs.py:3: UserWarning: a\nb\n  x\n"]
    assert warnings.formatwarning is before
