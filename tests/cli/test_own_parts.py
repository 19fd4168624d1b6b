"""A user's own loss, environment and network, beside a recipe outside of the package."""

from __future__ import annotations

import json
import os
import shlex
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import yaml

import composerl

LOSS = """
import torch
from tensordict.nn import TensorDictModule


class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.Linear(width, 1))

    def forward(self, observation):
        return 2 * self.layers(observation).tanh()


def policy(width):
    return TensorDictModule(Net(width), in_keys=["observation"], out_keys=["action"])
"""

ENV = """
import gymnasium

gymnasium.register("OwnPendulum-v0", "gymnasium.envs.classic_control:PendulumEnv",
                   max_episode_steps=7)
"""

RECIPE = '''
"""Clones zero."""
from dataclasses import dataclass
from composerl.config import RunConfig, cli

@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    env: str = "own_env:OwnPendulum-v0"
    steps: int = 4
    save_every: int = 2
    eval_episodes: int = 1
    log_every: int = 1
    wandb: str = "disabled"
    width: int = 5
    stop_at_step: int = 0

def actor(cfg):
    from own_loss import policy

    return policy(cfg.width)

def main(cfg):
    import os
    import signal

    import torch

    from composerl import Run

    run = Run(cfg)
    net = actor(cfg)
    adam = torch.optim.Adam(net.parameters())
    run.track(net=net, adam=adam)
    for step in run.steps(cfg.steps):
        loss = net(torch.rand(4, 3)).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        run.log({"loss_zero": loss.detach()})
        run.evaluate(net)
        if step == cfg.stop_at_step:
            os.kill(os.getpid(), signal.SIGINT)
    return run.finish(net)

if __name__ == "__main__":
    cli(Config, main)
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A directory that is not the current one; what it brings into the process leaves again."""
    place = tmp_path / "own"
    place.mkdir()
    for name, text in (("own_loss", LOSS), ("own_env", ENV), ("own_recipe", RECIPE)):
        (place / f"{name}.py").write_text(text)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield place
    forget()


def forget():
    """As in a new process, where nothing of the user's has been imported."""
    for name in ("own_loss", "own_env", "_recipe_own_recipe"):
        sys.modules.pop(name, None)
    sys.path[:] = [place for place in sys.path if not place.endswith("/own")]


def test_files_beside_a_recipe_are_found_by_every_process(tmp_path, cli, monkeypatch):
    """A recipe without torch: run, a group of seeds and a sweep, from another directory."""
    place = tmp_path / "own"
    place.mkdir()
    (place / "beside_it.py").write_text("def score(lr): return -abs(lr - 0.3)\n")
    (place / "toy_recipe.py").write_text(
        textwrap.dedent('''
        """Toy."""
        import json
        from dataclasses import dataclass
        from beside_it import score
        from composerl.config import RunConfig

        @dataclass(frozen=True, kw_only=True)
        class Config(RunConfig):
            env: str = "Toy-v0"
            steps: int = 1
            lr: float = 0.1

        def main(cfg):
            cfg.out.mkdir(parents=True, exist_ok=True)
            (cfg.out / "config.yaml").write_text("env: Toy-v0")
            final = {"return": score(cfg.lr)}
            (cfg.out / "summary.json").write_text(json.dumps({"final": final}))
        ''')
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(sys, "path", list(sys.path))
    recipe = "../own/toy_recipe.py"
    commands = {
        "one": ["run", recipe, "--out", "one"],
        "two/seed1": ["run", recipe, "--seeds", "0", "1", "--jobs", "2", "--out", "two"],
        "three/trial000": ["sweep", recipe, "--lr", "0.2", "0.3", "--trials", "1",
                           "--out", "three"],
    }  # fmt: skip
    for out, words in commands.items():
        result = cli(*words)
        assert result.code == 0, result.err
        summary = json.loads((tmp_path / "elsewhere" / out / "summary.json").read_text())
        assert summary["final"]["return"] <= 0
    assert sys.path[0] == str(place)
    sys.modules.pop("beside_it")


def test_a_packaged_recipe_changes_no_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = list(sys.path)
    with pytest.raises(ValueError, match="has no 'nothing'"):
        composerl.train("iql_pendulum", nothing=1)
    assert sys.path == before


def test_a_policy_of_own_modules_is_rebuilt_by_its_recipe(own, cli):
    recipe = own / "own_recipe.py"
    ran = cli("run", recipe, "--out", "out", "--width", 6)
    assert ran.code == 0, ran.err
    (line,) = [line for line in ran.out.splitlines() if line.startswith("use it:")]
    told = line.removeprefix("use it:")
    flags = ["--env", "own_env:OwnPendulum-v0", "--recipe", str(recipe)]
    assert shlex.split(told) == ["composerl", "evaluate", "out", *flags]

    forget()
    alone = cli("evaluate", "out")
    assert alone.code == 2
    assert "actor(cfg)" in alone.err
    assert not {"own_loss", "own_env"} & sys.modules.keys()

    forget()
    unnamed = cli("evaluate", "out", "--recipe", recipe)
    assert unnamed.code == 2
    assert "say it by --env" in unnamed.err
    assert "own_env" not in sys.modules

    forget()
    result = cli(*shlex.split(told)[1:], "--episodes", 2, "--json")
    assert result.code == 0, result.err
    assert result.json["lengths"] == [7, 7]
    asked = cli("predict", "out", "--obs", "[1, 0, 0]", "--recipe", recipe)
    assert asked.code == 0, asked.err  # the module of the environment is imported by now
    newest = "out/checkpoints/step-000000000004.safetensors"
    again = cli("predict", newest, "--obs", "[1, 0, 0]", *flags)
    assert (again.code, again.json) == (0, asked.json)
    assert cli("export", "out", "-o", "policy.pt2", *flags).code == 0

    from own_loss import policy

    loaded = composerl.load("out", actor=policy(6))
    assert loaded.predict([1.0, 0.0, 0.0]).tolist() == asked.json["action"]


def test_recipes_that_cannot_rebuild_say_so(own, cli):
    recipe = own / "own_recipe.py"
    recipe.write_text(RECIPE.replace("actor(cfg)", "network(cfg)"))
    ran = cli("run", recipe, "--out", "out")
    assert 'composerl.load("out", actor=my_module).predict(observation)' in ran.out
    refused = cli("evaluate", "out", "--recipe", recipe)
    assert refused.code == 2
    assert "has no function actor(cfg)" in refused.err
    (own / "own_recipe.py").write_text(RECIPE)
    (own / "policy.safetensors").write_bytes(Path("out/policy.safetensors").read_bytes())
    refused = cli("evaluate", own / "policy.safetensors", "--recipe", recipe)
    assert "config.yaml: there is no such file" in refused.err


def test_a_config_cannot_cause_an_import(own, cli):
    """Nor in an argument, with a recipe: only what the person names is imported."""
    recipe = own / "own_recipe.py"
    assert cli("run", recipe, "--out", "out").code == 0
    (own / "evil_mod.py").write_text("raise SystemExit('imported')")
    config = yaml.safe_load(Path("out/config.yaml").read_text())
    for change in ({"env": "evil_mod:X-v0"}, {"env_kwargs": {"env_id": "evil_mod:X-v0"}}):
        forget()
        Path("out/config.yaml").write_text(yaml.safe_dump(config | change))
        refused = cli("evaluate", "out", "--recipe", recipe)
        assert refused.code == 2
        assert "names a module to import" in refused.err


def test_an_own_environment_in_the_current_directory(own, cli, monkeypatch, run):
    """The console script finds it as `python -m composerl` does."""
    monkeypatch.chdir(own)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    played = cli("evaluate", run, "--env", "own_env:OwnPendulum-v0", "--json")
    assert played.json["lengths"] == [7] * 20, played.err
    missing = cli("evaluate", run, "--env", "no_such_module:X-v0")
    assert "no_such_module" in missing.err
    assert "pip install" not in missing.err


def test_the_same_environment_keeps_its_arguments(tmp_path):
    from composerl import Policy
    from composerl.modules import gaussian_actor

    policy = Policy(gaussian_actor("Pendulum-v1", (4,)), "Pendulum-v1", env_kwargs={"g": 3.0})
    policy.save(tmp_path / "policy.safetensors")
    assert composerl.load(tmp_path, env="Pendulum-v1").env_kwargs == {"g": 3.0}
    assert composerl.load(tmp_path, env="Pendulum-v1", env_kwargs={}).env_kwargs == {}
    assert composerl.load(tmp_path, env="CartPole-v1").env_kwargs == {}


# --- from Python -------------------------------------------------------------------------------


def test_train_knows_its_run(own):
    policy = composerl.train(own / "own_recipe.py", out="out")
    assert isinstance(policy, composerl.Policy)
    assert policy.predict([1.0, 0.0, 0.0]).shape == (1,)
    assert policy.evaluate(2).lengths == (7, 7)
    assert str(policy.directory) == "out"
    table = policy.metrics
    assert table["step"].tolist() == [1, 2, 3, 4]
    assert table["step"].dtype.kind == "i"
    assert np.isfinite(table["train/loss_zero"]).all()
    assert np.isnan(table["eval/return"]).tolist() == [True, True, True, False]
    pandas = pytest.importorskip("pandas")
    assert list(pandas.DataFrame(table).columns) == list(table)


def test_train_plots(own):
    pytest.importorskip("matplotlib")
    policy = composerl.train(own / "own_recipe.py", out="out")
    (axes,) = policy.plot("curve.png", key="train/loss_zero").axes
    assert axes.lines[0].get_ydata().tolist() == policy.metrics["train/loss_zero"].tolist()
    assert os.path.getsize("curve.png") > 1000
    assert policy.plot().axes[0].get_ylabel() == "return of evaluation"


def test_train_returns_what_a_main_of_its_own_does(own):
    text = RECIPE.replace("return run.finish(net)", "run.finish(net)")
    (own / "own_recipe.py").write_text(text)
    assert composerl.train(own / "own_recipe.py", out="out") is None


def test_train_goes_on_where_an_interrupt_stopped_it(own):
    """By the line that the interrupt shows, which needs none of the flags of the start."""
    recipe = str(own / "own_recipe.py")
    whole = composerl.train(recipe, out="whole", width=6, steps=6)
    with pytest.raises(KeyboardInterrupt) as stop:
        composerl.train(recipe, out="out", width=6, steps=6, stop_at_step=3)
    hint = str(stop.value).partition("go on with: ")[2]
    env = "env='own_env:OwnPendulum-v0'"  # a module to import is not taken from the directory
    assert hint == f"composerl.train({recipe!r}, {env}, out='out', resume=True)"
    policy = eval(hint, {"composerl": composerl})
    assert policy.metrics["step"].tolist() == [1, 2, 3, 4, 5, 6]
    np.testing.assert_array_equal(policy.predict(np.eye(3)), whole.predict(np.eye(3)))
    with pytest.raises(ValueError, match="width was 6"):
        composerl.train(recipe, out="out", width=7, resume=True)
    copy = composerl.train(recipe, out="copy", config="out/config.yaml", stop_at_step=0, steps=2)
    assert copy.actor.module.layers[0].out_features == 6


def test_a_packaged_recipe_is_gone_on_with_by_its_name(monkeypatch):
    from composerl.bookkeeping.rundir import resume_command
    from composerl.catalog import load_recipe

    monkeypatch.setattr(sys, "argv", ["/lib/ipykernel_launcher.py", "-f", "kernel.json"])
    config = load_recipe("iql_pendulum").Config()
    way = "composerl.train('iql_pendulum', out='runs/x', resume=True)"
    assert resume_command("runs/x", config) == way
