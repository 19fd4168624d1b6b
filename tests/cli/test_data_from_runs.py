"""Datasets from runs and of datasets, by command; and values of policies by a dataset alone."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import composerl
from composerl.bookkeeping.checkpoint import checkpoints
from composerl.bookkeeping.trees import load_tree, save_tree
from composerl.data import generate, read_dataset, write_dataset

TINY = {
    "steps": 300, "log_every": 300, "eval_every": 300, "eval_episodes": 1, "save_every": 300,
    "hidden": (16, 16), "batch_size": 32, "wandb": "disabled",
}  # fmt: skip


@pytest.fixture(scope="module")
def sac(tmp_path_factory):
    """An online run of two environments: 300 steps, the first 250 at random."""
    out = tmp_path_factory.mktemp("data") / "sac"
    composerl.train("sac_pendulum", out=out, num_envs=2, warmup=250, updates=1, **TINY)
    return out


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "mixed.npz"
    return write_dataset(generate("Pendulum-v1", "mixed", 1400, 0, cache=False), file)


def collect(cli, run, out, *flags):
    done = cli("data", "collect", run, "-o", out, *flags)
    assert done.code == 0, done.err
    return read_dataset(out)


def test_looking_at_a_run_changes_nothing_in_it(cli, sac, tmp_path):
    """Only who goes on with it sets a damaged checkpoint aside."""
    shutil.copytree(sac, tmp_path / "run")
    newest = checkpoints(tmp_path / "run")[0]
    newest.with_name("step-000000000301.safetensors").write_bytes(b"x")

    def held():
        return {p: p.is_file() and p.read_bytes() for p in (tmp_path / "run").rglob("*")}

    before = held()
    collect(cli, tmp_path / "run", "replay.npz", "--replay")
    assert held() == before


@pytest.mark.parametrize("key", ["config", "tracked"])
def test_a_checkpoint_that_lacks_something_is_refused(cli, sac, tmp_path, key):
    path = tmp_path / "a.safetensors"
    save_tree(path, "checkpoint", load_tree(checkpoints(sac)[0], "checkpoint") | {key: None})
    assert f"has no {key}" in cli("data", "collect", path, "-o", "x.npz", "--replay").err


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"reward_scale": "x"}, "reward_scale must be a number but 0, got 'x'"),
        ({"reward_scale": 0}, "reward_scale must be a number but 0, got 0"),
        ({"reward_shift": [1]}, "reward_shift must be a number, got [1]"),
        ({"reward_scale": "returns", "env_kwargs": 5}, "env_kwargs must be a mapping, got 5"),
        ({"reward_scale": "returns"}, "have no dataset"),
    ],
)
def test_settings_in_a_checkpoint_that_are_none(cli, sac, tmp_path, settings, told):
    path, tree = tmp_path / "a.safetensors", load_tree(checkpoints(sac)[0], "checkpoint")
    save_tree(path, "checkpoint", tree | {"config": tree["config"] | settings})
    result = cli("data", "collect", path, "-o", "x.npz", "--replay")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert told in result.err


def test_online_run_to_dataset_to_offline_run_and_online_again(cli, sac, tmp_path):
    """No download: SAC's own steps and episodes of its policy train IQL, which goes on online."""
    played = collect(cli, sac, tmp_path / "played.npz", "--episodes", 2)
    assert (len(played), played.timeouts.sum(), played.terminals.sum()) == (400, 2, 0)
    seen = collect(cli, sac, tmp_path / "seen.npz", "--replay")
    assert len(seen) == 300
    assert seen.episodes().tolist() == [[0, 150], [150, 300]]
    both = cli("data", "mix", tmp_path / "played.npz", tmp_path / "seen.npz", "-o", "both.npz")
    assert both.code == 0
    assert "700 transitions, 4 episodes" in both.out
    again = composerl.train(
        "iql_pendulum", out=tmp_path / "iql", dataset="both.npz", online_steps=220,
        reward_scale="returns",
        **TINY | {"steps": 20, "save_every": 240, "log_every": 240},
    )  # fmt: skip
    assert np.isfinite(again.evaluate(1).mean)
    online = collect(cli, tmp_path / "iql", tmp_path / "online.npz", "--replay")
    assert len(online) == 200  # whole episodes
    # Rewards as the environment gives them, not as IQL scales them.
    assert -16.3 < online.rewards.min() < online.rewards.mean() < -1.6


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_what_is_collected_is_what_the_policy_does(cli, sac):
    data = collect(cli, sac, "a.npz", "--episodes", 2)
    expected = composerl.load(sac).predict(data.observations)
    np.testing.assert_allclose(data.actions, expected, atol=1e-6)
    same = collect(cli, sac, "b.npz", "--episodes", 2)
    assert same.fingerprint == data.fingerprint
    other = collect(cli, sac, "c.npz", "--episodes", 2, "--seed", 1)
    assert other.fingerprint != data.fingerprint
    beginning = collect(cli, sac, "d.npz", "--episodes", 1)
    np.testing.assert_allclose(beginning.rewards, data.rewards[:200], rtol=1e-3)


def test_noise_and_random_actions(cli, sac):
    """A deviation of 0.1 half ranges of 2; half of the actions are other ones."""
    policy = composerl.load(sac)
    noisy = collect(cli, sac, "a.npz", "--episodes", 2, "--noise", 0.1)
    off = noisy.actions - policy.predict(noisy.observations)
    assert np.std(off) == pytest.approx(0.2, rel=0.1)
    random = collect(cli, sac, "b.npz", "--episodes", 2, "--epsilon", 0.5)
    off = np.abs(random.actions - policy.predict(random.observations))
    assert (off > 1e-5).mean() == pytest.approx(0.5, abs=0.08)
    best = collect(cli, sac, "c.npz", "--episodes", 1, "--which", "best")
    assert len(best) == 200


def test_discrete_actions_of_a_value_based_run(cli, cartpole):
    data = collect(cli, cartpole, "a.npz", "--episodes", 3, "--epsilon", 0.2)
    assert data.actions.dtype == np.int64
    assert len(data.returns()) == 3
    seen = collect(cli, cartpole, "b.npz", "--replay")
    assert len(seen) == 60
    assert set(seen.actions.tolist()) <= {0, 1}
    assert seen.returns().sum() == 60
    shown = cli("data", "filter", "a.npz", "--top", 0.3, "-o", "best.npz")
    assert shown.code == 0
    assert "1 episodes" in shown.out
    cloned = composerl.train("bc_pendulum", env="CartPole-v1", out="bc", dataset="best.npz", **TINY)
    assert cloned.spaces.num_actions == 2


def test_info_shows_the_returns_and_warns(cli, mixed):
    shown = cli("data", "info", mixed, "--env", "Pendulum-v1")
    assert shown.code == 0
    assert "episodes by their return" in shown.out
    assert "█" in shown.out
    told = cli("data", "info", mixed, "--json").json
    assert sum(part["episodes"] for part in told["episodes_by_return"]) == told["episodes"] == 7
    assert told["warnings"] == []
    data = read_dataset(mixed)
    data.terminals[:], data.timeouts[:] = data.terminals | data.timeouts, False
    write_dataset(data, "ends.npz")
    assert "warning: 7 episodes have a terminal after" in cli("data", "info", "ends.npz").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["collect", "SAC", "-o", "a.npz", "--episodes", "0"], "--episodes must be at least 1"),
        (["collect", "SAC", "-o", "a.npz", "--epsilon", "2"], "--epsilon is a share"),
        (["collect", "SAC", "-o", "a.npz", "--noise", "-1"], "--noise is a deviation"),
        (["collect", "SAC", "-o", "a.npz", "--seed", "-1"], "--seed must be at least 0"),
        (["collect", "SAC", "-o", "a.csv"], "'.csv'"),
        (["collect", "CARTPOLE", "-o", "a.npz", "--noise", "1"], "use --epsilon for discrete"),
        (["collect", "IQL", "-o", "a.npz", "--replay"], "holds no replay buffer: its"),
        (["collect", ".", "-o", "a.npz", "--replay"], "holds no run"),
        (["mix", "MIXED", "no.npz", "-o", "a.npz"], "no.npz does not exist"),
        (["mix", "MIXED", "MIXED", "-o", "a.npz", "--share", "1"], "between 0 and 1"),
        (["mix", "MIXED", "MIXED", "-o", "a.npz", "--share", "0.5", "--seed", "-1"], "at least 0"),
        (["filter", "MIXED", "-o", "a.npz"], "say what to keep"),
        (["filter", "MIXED", "-o", "a.npz", "--min-return", "0"], "none of 7 episodes"),
        (["filter", "MIXED", "-o", "MIXED", "--top", "0.5"], "exists already"),
    ],
)
def test_refusals(cli, words, message, sac, cartpole, run, mixed):
    named = {"SAC": sac, "CARTPOLE": cartpole, "IQL": run, "MIXED": mixed}
    done = cli("data", *(named.get(word, word) for word in words))
    assert message in done.err
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1


# ---- values by a dataset alone -------------------------------------------------------------

QUICK = ("--steps", 30, "--batch-size", 32, "--hidden", 16)


def test_policies_are_ranked_by_a_dataset_without_an_environment(cli, runs, mixed, monkeypatch):
    monkeypatch.setattr("gymnasium.make", None)  # nothing is opened
    read: list[str] = []
    load = composerl.data.load_dataset
    monkeypatch.setattr(
        "composerl.data.load_dataset", lambda *a, **k: (read.append(a[0]), load(*a, **k))[1]
    )
    words = ("evaluate", runs, "--dataset", mixed, *QUICK)
    told = cli(*words, "--json").json
    assert [one["value"] for one in told] == sorted((one["value"] for one in told), reverse=True)
    assert {one["run"] for one in told} == {
        str(runs / "iql_pendulum" / name) for name in ("seed0", "seed1")
    }
    assert all(one["apart"] > 0 and one["error"] > 0 for one in told)
    assert read == [str(mixed)]  # once for both
    assert cli(*words, "--json").json == told
    assert cli(*words, "--seed", 1, "--json").json != told
    table = cli(*words).out
    assert table.index(told[0]["run"]) < table.index(told[1]["run"])


def test_checkpoints_are_ranked_too_and_one_is_no_list(cli, run, mixed):
    files = checkpoints(run)
    told = cli("evaluate", *files, "--dataset", mixed, *QUICK, "--json").json
    assert {one["run"] for one in told} == {str(file) for file in files}
    one = cli("evaluate", run, "--dataset", mixed, *QUICK, "--json").json
    assert one["gamma"] == 0.99
    assert one["dataset"] == str(mixed)


def test_discrete_policies(cli, cartpole):
    write_dataset(generate("CartPole-v1", "mixed", 500, 0, cache=False), "cartpole.npz")
    told = cli("evaluate", cartpole, "--dataset", "cartpole.npz", *QUICK, "--json")
    assert told.code == 0
    assert 0 < told.json["value"] < 100


def test_several_runs_are_ranked_by_their_episodes(cli, runs):
    told = cli("evaluate", runs, "--episodes", 2, "--json").json
    assert told[0]["mean"] >= told[1]["mean"]
    shown = cli("evaluate", *(one["run"] for one in told), "--episodes", 2)
    assert shown.out.index(told[0]["run"]) < shown.out.index(told[1]["run"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RUN", "--dataset", "no.npz"], "does not exist"),
        (["RUN", "--dataset", "CARTPOLE.npz"], "observations has rows of shape (4,)"),
        (["RUN", "--dataset", "MIXED", "--video", "a.gif"], "--video shows"),
        (["RUN", "RUN", "--video", "a.gif"], "--video shows"),
        (["RUN", "--dataset", "MIXED", "--gamma", "2"], "gamma must be in [0, 1]"),
        (["RUN", "--dataset", "MIXED", "--steps", "0"], "steps must be at least 1"),
        (["RUN", "--dataset", "MIXED", "--critics", "0"], "at least 1"),
        (["RUN", "--dataset", "MIXED", "--critics", "99999999"], "at most 1000"),
        ([], "give one run directory or more"),
    ],
)
def test_refused_evaluations(cli, words, message, run, mixed):
    write_dataset(generate("CartPole-v1", "random", 50, 0, cache=False), "CARTPOLE.npz")
    named = {"RUN": run, "MIXED": mixed}
    done = cli("evaluate", *(named.get(word, word) for word in words))
    assert message in done.err
    assert done.code == 2
