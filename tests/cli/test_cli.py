"""Every command does what it says, called as a person would."""

from __future__ import annotations

import errno
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageSequence

import composerl


def test_help_is_quick_and_needs_no_torch(tmp_path):
    code = (
        "import sys, time\n"
        "from composerl.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'wandb', 'gymnasium', 'matplotlib', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert time.process_time() < 1, time.process_time()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    for command in ("recipes", "run", "evaluate", "predict", "export", "plot", "report", "compare",
                    "sweep", "data", "warmup", "doctor"):  # fmt: skip
        assert f"\n  {command} " in done.stdout


@pytest.mark.parametrize("command", ["evaluate", "run", "sweep", "data make", "recipes"])
def test_every_command_explains_itself(cli, command):
    result = cli(*command.split(), "--help")
    assert result.code == 0
    assert f"usage: composerl {command}" in result.out


def test_a_full_disk_leaves_no_half_a_copy_and_tells_the_file(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def full(source, target):
        target.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("shutil.copyfile", full)
    told = cli("recipes", "copy", "iql_pendulum", "mine.py").err
    assert told.startswith("error: [Errno 28]")
    assert told.endswith("'mine.py'; free some space\n")  # there is nothing to resume
    assert not list(tmp_path.iterdir())


def test_recipes_are_listed_copied_and_explained(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = cli("recipes")
    named = [line for line in listed.out.splitlines() if not line.startswith(" ")]
    assert {line.split()[0] for line in named} == set(composerl.recipes())
    assert "implicit Q-learning" in listed.out
    assert cli("recipes", "copy", "iql_pendulum", "mine.py").code == 0
    again = cli("recipes", "copy", "iql_pendulum", "mine.py")
    assert (again.code, again.err) == (2, "error: mine.py exists already: choose another name\n")
    helped = cli("run", "mine.py", "--help")
    assert "composerl run mine.py" in helped.out
    assert "--expectile" in helped.out


def test_presets_and_sweeps_are_copied_with_a_recipe(cli, tmp_path, monkeypatch):
    """They work for the copy, and what was there already is left alone."""
    import yaml

    monkeypatch.chdir(tmp_path)
    told = cli("recipes", "copy", "iql_pendulum", "mine.py")
    assert told.out == "mine.py\n"
    assert "its presets and sweep are in presets/mine and sweeps/mine.yaml" in told.err
    helped = cli("run", "mine.py", "--config", "hopper", "--help")
    assert (helped.code, "Hopper" in helped.out) == (0, True)
    sweep = yaml.safe_load((tmp_path / "sweeps" / "mine.yaml").read_text())
    assert sweep["program"] == "mine.py"
    assert sweep["command"][1:4] == ["composerl", "run", "mine.py"]
    (tmp_path / "presets" / "mine" / "hopper.yaml").write_text("gamma: 0.5")
    (tmp_path / "mine.py").unlink()
    cli("recipes", "copy", "iql_pendulum", "mine.py")
    assert (tmp_path / "presets" / "mine" / "hopper.yaml").read_text() == "gamma: 0.5"


@pytest.mark.parametrize("name", sorted(composerl.recipes()))
def test_every_copy_stands_alone(cli, name, tmp_path):
    """Also where the other recipes are not beside it."""
    assert cli("recipes", "copy", name, tmp_path / "mine.py").code == 0
    helped = cli("run", tmp_path / "mine.py", "--help")
    assert (helped.code, "--eval-every" in helped.out) == (0, True)


def test_run_trains_a_copied_recipe(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cli("recipes", "copy", "iql_pendulum", "mine.py")
    flags = ["--steps", "20", "--hidden", "8", "--dataset-size", "500", "--eval-episodes", "1",
             "--wandb", "disabled", "--out", "out"]  # fmt: skip
    result = cli("run", "mine.py", *flags)
    assert result.code == 0, result.err
    assert "final return" in result.out
    assert json.loads((tmp_path / "out" / "metadata.json").read_text())["recipe"] == "mine"
    unknown = cli("run", "mine.py", "--expectil", "0.9")
    assert unknown.err.startswith("error: unknown flag --expectil: did you mean --expectile?")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["/venv/bin/composerl", "run", "iql_pendulum", "--lr", "1"], "composerl run iql_pendulum"),
        (["/site/composerl/__main__.py", "run", "a.py"], "composerl run a.py"),
        (["/home/me/composerl/train.py", "--lr", "1"], "python /home/me/composerl/train.py"),
    ],
)
def test_the_way_to_resume_is_the_way_it_was_started(monkeypatch, argv, expected):
    from composerl.bookkeeping.rundir import resume_command

    Config = type("Config", (), {"__module__": "__main__", "env": "CartPole-v1"})
    monkeypatch.setattr(sys, "argv", argv)
    # pytest's own worker processes have none
    monkeypatch.setattr(sys.modules["__main__"], "__file__", argv[0], raising=False)
    assert resume_command("runs/x", Config()) == f"{expected} --out runs/x --resume"
    monkeypatch.delattr(sys.modules["__main__"], "__file__")  # a notebook has none
    if expected.startswith("python"):
        assert resume_command("runs/x", Config()) == "Config(..., out='runs/x', resume=True)"


def test_train_takes_a_name_and_flags(run):
    policy = composerl.load(run)
    assert policy.predict([1.0, 0.0, 0.0]).shape == (1,)
    with pytest.raises(ValueError, match="did you mean expectile"):
        composerl.train("iql_pendulum", expectil=0.9)
    with pytest.raises(ValueError, match="did you mean iql_pendulum"):
        composerl.train("iql_pendulums")


def test_help_groups_commands_by_purpose(cli):
    from composerl.cli import COMMANDS

    text = cli("--help").out
    assert [line for line in text.splitlines() if line.endswith(":")] == [
        "train:", "look:", "use:", "data:", "check:",
    ]  # fmt: skip
    for command in COMMANDS:
        assert text.count(f"\n  {command} ") == 1
    assert max(map(len, text.splitlines())) <= 80
    assert "\n  make " in cli("data").out
    helped = " ".join(cli("run", "iql_pendulum", "--help").out.split())
    assert "--seeds 0 1 2" in helped
    assert "--jobs N" in helped


# --- evaluate, predict -------------------------------------------------------------------------


def test_evaluate_agrees_with_the_policy(cli, run):
    result = cli("evaluate", run, "--episodes", 5, "--seed", 3, "--json").json
    expected = composerl.load(run).evaluate(5, 3)
    assert result["returns"] == list(expected.returns)
    assert result["mean"] == expected.mean
    assert result["std"] == expected.std
    middle = sorted(expected.returns)[1:4]
    assert result["iqm"] == pytest.approx(sum(middle) / 3)
    assert result["mean_interval"][0] <= result["mean"] <= result["mean_interval"][1]
    table = cli("evaluate", run, "--episodes", 5, "--seed", 3)
    assert f"{expected.mean:.2f}" in table.out
    assert "interquartile mean" in table.out


def test_evaluate_draws_the_first_episode(cli, cartpole, tmp_path):
    result = cli("evaluate", cartpole, "--episodes", 2, "--video", tmp_path / "a.gif", "--json")
    with Image.open(tmp_path / "a.gif") as gif:
        # 50 frames a second in CartPole: every second one is kept; equal neighbours become one.
        shown = sum(frame.info["duration"] for frame in ImageSequence.Iterator(gif))
        assert shown == 40 * -(-(result.json["lengths"][0] + 1) // 2)
        assert max(gif.size) <= 320
        assert len(gif.convert("RGB").getcolors(10**6)) > 2
    assert "SDL_VIDEODRIVER" not in os.environ


def test_predict_one_batch_file_and_lines(cli, run, tmp_path):
    policy = composerl.load(run)
    observations = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    expected = policy.predict(observations).tolist()
    text = json.dumps(observations[0].tolist())
    assert cli("predict", run, "--obs", text).json == {"action": _close(expected[0])}
    batch = json.dumps(observations.tolist())
    assert cli("predict", run, "--obs", batch).json["action"] == [_close(row) for row in expected]
    np.savez(tmp_path / "a.npz", observations=observations, other=np.zeros(2))
    np.savez(tmp_path / "b.npz", whatever=observations)
    for name in ("a.npz", "b.npz"):
        lines = cli("predict", run, "--npz", tmp_path / name).out.splitlines()
        assert [json.loads(line)["action"] for line in lines] == expected
    lines = [text, json.dumps({"observation": observations[1].tolist()}), "", '{"reset": true}']
    out = cli("predict", run, stdin="\n".join(lines)).out.splitlines()
    assert [json.loads(line) for line in out] == [
        {"action": _close(expected[0])},
        {"action": _close(expected[1])},
        {"reset": True},
    ]


def test_lines_to_a_policy_with_memory_and_pixels(cli, monkeypatch, tmp_path):
    """The same frame again and again: what is answered depends on what was shown, until a reset."""
    import torch
    from recurrent_toy import Diary, Toy

    file = tmp_path / "policy.safetensors"  # what it holds is made here
    file.touch()
    torch.manual_seed(0)
    policy = composerl.Policy(Toy(), Diary)
    monkeypatch.setattr("composerl.policy.load", lambda *_, **__: policy)
    frames = [[[[t, 7, 200, 255]] * 4] for t in (1, 2, 3)]
    expected = []
    for frame in frames:
        expected.append(int(policy.predict(np.array(frame, np.uint8))))
    policy.reset()
    lines = [json.dumps(frame) for frame in frames]
    out = cli("predict", file, stdin="\n".join([*lines, '{"reset": true}', *lines])).out
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer.get("action") for answer in answers] == [*expected, None, *expected]
    assert int(policy.state["steps"]) == 3
    refused = cli("predict", file, "--obs", json.dumps([[[[256, 0, 0, 0]] * 4]]))
    assert refused.code == 2
    assert "must be uint8 pixels" in refused.err
    export = cli("export", file, "-o", "policy.onnx")
    assert export.code == 2  # those that torch can trace are exported, see test_export.py
    assert "torch cannot export this policy as a graph" in export.err


def _close(action):
    return pytest.approx(action, abs=1e-6)  # a batch of one may round otherwise


def test_predict_answers_a_thousand_lines_a_second(cli, tmp_path):
    """A network as GAIL's; CPU time, loading included, since the machine may be busy."""
    from composerl import Policy
    from composerl.envs.spaces import Spaces
    from composerl.modules import categorical_actor

    policy = Policy(categorical_actor(Spaces.of("CartPole-v1"), (64, 64)), "CartPole-v1")
    file = policy.save(tmp_path / "policy.safetensors")
    observations = np.random.default_rng(0).normal(size=(2000, 4)).round(3)
    start = time.process_time()
    out = cli("predict", file, stdin="\n".join(map(json.dumps, observations.tolist()))).out
    seconds = time.process_time() - start
    actions = [json.loads(line)["action"] for line in out.splitlines()]
    assert actions == policy.predict(observations).tolist()
    assert seconds < 2.0


def test_predict_costs_at_most_three_network_calls(run, cartpole):
    import torch

    for directory in (run, cartpole):
        policy = composerl.load(directory)
        observation = np.zeros(policy.spaces.obs_shape, np.float32)
        batch = torch.from_numpy(observation)[None]

        def bare(policy=policy, batch=batch):
            with torch.no_grad():
                policy.actor.greedy(batch)

        def predict(policy=policy, observation=observation):
            policy.predict(observation)

        assert _fastest(predict) < 3 * _fastest(bare)


def _fastest(call, repeats=20, calls=50):
    def once():
        start = time.process_time()
        for _ in range(calls):
            call()
        return time.process_time() - start

    once()
    return min(once() for _ in range(repeats))


# --- compare, doctor ---------------------------------------------------------------------------


def test_compare_runs_and_groups(cli, runs, tmp_path):
    first, second = runs / "iql_pendulum" / "seed0", runs / "iql_pendulum" / "seed1"
    returns = [json.loads((r / "summary.json").read_text())["final"] for r in (first, second)]
    single = cli("compare", first, second, "--json").json
    assert single["unit"] == "episodes"
    a, b = (np.array(final["returns"]) for final in returns)
    assert len(a) == 3
    assert single["probability"] == pytest.approx((a[:, None] > b).mean())
    group = cli("compare", runs, first, "--json").json
    assert group["unit"] == "runs"
    assert group["sides"][0]["scores"] == [final["return"] for final in returns]
    # One of two beats the first, or none; the first ties with itself.
    assert group["probability"] == (0.5 + (returns[1]["return"] > returns[0]["return"])) / 2
    assert group["interval"] is None
    assert group["sides"][1]["interval"] is None
    assert f"no interval, as {first} has a single run" in group["notes"]
    told = " ".join(cli("compare", first, second).out.split())
    assert f"an episode of {first} does better than one of {second} with probability" in told
    assert "says nothing about other seeds" in told


def test_doctor_tells_versions_and_warns(cli):
    from composerl.cli.doctor import EXTRAS, warnings_for

    about = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    section = about.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = {line.partition(" =")[0] for line in section.splitlines() if " = [" in line}
    assert cli("doctor", "--x").err == "error: unknown flag --x: it has none\n"
    result = cli("doctor")
    assert result.code == 0
    assert composerl.__version__ in result.out
    assert {*EXTRAS, "test"} == extras
    assert "of one thread's time for a layer of 64 units" in " ".join(result.out.split())
    good = {"torch": "2.13.0+cpu", "torchrl": "0.14.1", "tensordict": "0.14.3", "gymnasium": "1.4"}
    assert warnings_for(good, extension=True, python=(3, 12), environ={}) == []
    told = warnings_for(
        good | {"torch": "2.9.1", "torchrl": "0.15.0"},
        extension=False,
        python=(3, 9),
        environ={"OMP_NUM_THREADS": "many"},
    )
    for word in ("torch 2.9.1", "torchrl 0.15.0", "extension", "Python 3.9", "OMP_NUM_THREADS"):
        assert any(word in sentence for sentence in told), word


# --- data --------------------------------------------------------------------------------------


def test_data_is_made_told_and_converted(cli, tmp_path):
    from composerl.data import generate, read_dataset

    made = cli("data", "make", "CartPole-v1", "--behaviour", "random", "--size", 300,
               "-o", tmp_path / "a.npz")  # fmt: skip
    assert made.code == 0, made.err
    original = generate("CartPole-v1", "random", 300, 0)
    assert read_dataset(tmp_path / "a.npz").fingerprint == original.fingerprint
    told = cli("data", "info", tmp_path / "a.npz", "--env", "CartPole-v1", "--json").json
    assert told["transitions"] == 300
    assert told["episodes"] == len(original.returns())
    assert "action shares" in cli("data", "info", tmp_path / "a.npz").out
    chain = [tmp_path / name for name in ("a.npz", "b.hdf5", "c", "d.npz")]
    for source, target in itertools.pairwise(chain):
        assert cli("data", "convert", source, "-o", target).code == 0
        assert read_dataset(target).fingerprint == original.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "b.hdf5", "c", "d.npz"]


def test_minari_reads_what_we_write(cli, tmp_path):
    minari = pytest.importorskip("minari")
    cli("data", "make", "Pendulum-v1", "--size", 500, "-o", tmp_path / "pendulum")
    dataset = minari.MinariDataset(tmp_path / "pendulum" / "data")
    episodes = list(dataset.iterate_episodes())
    assert dataset.total_steps == sum(len(episode.rewards) for episode in episodes) == 500
    assert episodes[0].observations.shape == (201, 3)
    assert episodes[0].truncations[-1]


def test_rows_that_are_no_episodes_cannot_be_minari(cli, tmp_path):
    arrays = {"observations": np.eye(3), "actions": np.zeros((3, 1)), "rewards": np.zeros(3),
              "next_observations": np.eye(3) * 2, "terminals": np.zeros(3, bool),
              "timeouts": np.zeros(3, bool)}  # fmt: skip
    np.savez(tmp_path / "a.npz", **arrays)
    result = cli("data", "convert", tmp_path / "a.npz", "-o", tmp_path / "b")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "not whole episodes" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
