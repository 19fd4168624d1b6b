"""Policy: from its file alone, strict about its input, deterministic."""

from __future__ import annotations

import os
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

import composerl
from composerl.envs.spaces import Spaces
from composerl.modules import gaussian_actor, tanh_gaussian_actor
from composerl.policy import Policy

PENDULUM = Spaces.of("Pendulum-v1")
OBS = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)


@pytest.fixture(params=[gaussian_actor, tanh_gaussian_actor])
def policy(request):
    torch.manual_seed(0)
    stats = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1.0, 2.0, 3.0])
    return Policy(request.param(PENDULUM, (16,), normalize=stats), "Pendulum-v1")


def test_round_trip(policy, tmp_path):
    path = policy.save(tmp_path / "policy.safetensors")
    again = composerl.load(path)
    assert again.spaces == policy.spaces
    assert again.env == "Pendulum-v1"
    np.testing.assert_array_equal(again.predict(OBS), policy.predict(OBS))
    # the normalisation travelled along
    assert any(name.endswith("normalize.mean") for name in again.actor.state_dict())
    # a run directory holds it under this name
    np.testing.assert_array_equal(composerl.load(tmp_path).predict(OBS), policy.predict(OBS))


def test_loading_imports_no_training_code(policy, tmp_path):
    policy.save(tmp_path / "policy.safetensors")
    code = (
        f"import composerl, sys; p = composerl.load({str(tmp_path)!r})\n"
        "print(p.predict([[0.1, 0.2, 0.3]]))\n"
        "used = [m for m in sys.modules if m.startswith(('composerl', 'wandb', 'recipes'))]\n"
        "bad = ('composerl.losses', 'composerl.run', 'composerl.update', 'composerl.data')\n"
        "assert not any(m.startswith((*bad, 'wandb', 'recipes')) for m in used), used\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


def test_predict_shapes_and_kinds(policy):
    batch = policy.predict(OBS)
    assert batch.shape == (6, 1)
    assert batch.dtype == np.float32
    one = policy.predict(OBS[0])
    assert one.shape == (1,)
    np.testing.assert_allclose(one, batch[0], rtol=1e-5)
    for same in (torch.from_numpy(OBS), OBS.astype(np.float64), OBS.tolist()):
        np.testing.assert_array_equal(policy.predict(same), batch)
    assert policy.predict(OBS[:0]).shape == (0, 1)
    assert np.abs(batch).max() <= 2


def test_predict_is_the_distribution_s_mode(policy):
    """What evaluation uses is what TorchRL calls the deterministic sample."""
    from tensordict import TensorDict

    data = TensorDict({"observation": torch.from_numpy(OBS)}, [6])
    expected = policy.actor.get_dist(data).deterministic_sample
    np.testing.assert_allclose(policy.predict(OBS), expected.detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    ("observation", "error", "message"),
    [
        (np.zeros(4), ValueError, r"shape \(4,\), expected \(3,\) or \(batch, 3\)"),
        (np.zeros((2, 4)), ValueError, r"shape \(2, 4\)"),
        (np.zeros((2, 2, 3)), ValueError, r"shape \(2, 2, 3\)"),
        (3.0, ValueError, r"shape \(\)"),
        (["a", "b", "c"], TypeError, "dtype"),
        (np.array([True, False, True]), TypeError, "dtype"),
        (np.array([None, 1, 2]), TypeError, "dtype object"),
        (torch.zeros(3, dtype=torch.complex64), TypeError, "complex"),
    ],
)
def test_wrong_observations_are_refused_by_name(policy, observation, error, message):
    with pytest.raises(error, match=f"observation.*{message}|{message}"):
        policy.predict(observation)


def test_evaluate_is_deterministic_and_right(policy):
    result = policy.evaluate(episodes=3, seed=7)
    assert result == policy.evaluate(episodes=3, seed=7)
    assert result != policy.evaluate(episodes=3, seed=8)
    assert result.returns[:2] == pytest.approx(
        policy.evaluate(episodes=2, seed=7).returns, rel=1e-4
    )
    # a plain gymnasium loop gives the same return
    env = gym.make("Pendulum-v1")
    state = np.random.SeedSequence([7, 0]).generate_state(1)
    obs, _ = env.reset(seed=int(state[0]))
    total, done = 0.0, False
    while not done:
        obs, reward, terminated, truncated, _ = env.step(policy.predict(obs))
        total += reward
        done = terminated or truncated
    assert result.returns[0] == pytest.approx(total, rel=1e-3)
    assert result.lengths == (200, 200, 200)
    assert result.mean == pytest.approx(np.mean(result.returns))
    assert result.std == pytest.approx(np.std(result.returns))


def test_evaluation_leaves_random_numbers_and_mode_alone(policy):
    policy.actor.train()
    torch.manual_seed(0)
    np.random.seed(0)
    expected = torch.rand(1), np.random.rand()
    torch.manual_seed(0)
    np.random.seed(0)
    policy.evaluate(episodes=2)
    assert (torch.rand(1), np.random.rand()) == expected
    assert policy.actor.training


def test_own_module_is_saved_and_asked_for(tmp_path):
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(3, 1)

        def forward(self, observation):
            return self.net(observation).tanh()

    def actor():
        return TensorDictModule(Mine(), in_keys=["observation"], out_keys=["action"])

    policy = Policy(actor(), "Pendulum-v1")
    policy.save(tmp_path / "policy.safetensors")
    with pytest.raises(ValueError, match=r"your own class TensorDictModule.*actor=my_module"):
        composerl.load(tmp_path)
    again = composerl.load(tmp_path, actor=actor())
    np.testing.assert_array_equal(again.predict(OBS), policy.predict(OBS))
    with pytest.raises(ValueError, match="does not fit the network"):
        composerl.load(tmp_path, actor=nn.Linear(2, 2))


def test_missing_and_foreign_paths(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no run"):
        composerl.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such run"):
        composerl.load(tmp_path / "nothing")
    (tmp_path / "config.yaml").touch()
    with pytest.raises(FileNotFoundError, match=r"best\.safetensors"):
        composerl.load(tmp_path, which="best")
    with pytest.raises(ValueError, match="'final' or 'best'"):
        composerl.load(tmp_path, which="worst")


def test_a_policy_file_cannot_name_code(policy, tmp_path):
    """The description picks from a closed list of networks; anything else is refused."""
    from composerl.bookkeeping.trees import save_tree

    for factory in ("os.system", "build", "__import__", None, ["gaussian_actor"]):
        tree = policy.to_tree()
        tree["description"] = {**tree["description"], "factory": factory}
        save_tree(tmp_path / "policy.safetensors", "policy", tree)
        with pytest.raises(ValueError, match="unknown network"):
            composerl.load(tmp_path)


def test_unfinished_run_gives_the_newest_checkpoint_s_policy(policy, tmp_path):
    from composerl.bookkeeping.trees import save_tree

    os.makedirs(tmp_path / "checkpoints")
    for step in (10, 2):
        tree = {"policy": None if step == 2 else policy.to_tree()}
        save_tree(tmp_path / "checkpoints" / f"step-{step:012d}.safetensors", "checkpoint", tree)
    np.testing.assert_array_equal(composerl.load(tmp_path).predict(OBS), policy.predict(OBS))
    with pytest.raises(ValueError, match="holds no policy"):
        composerl.load(tmp_path / "checkpoints" / f"step-{2:012d}.safetensors")


def test_ordinary_arrays_of_any_layout(policy):
    expected = policy.predict(OBS[::-1].copy())
    np.testing.assert_array_equal(policy.predict(OBS[::-1]), expected)
    np.testing.assert_array_equal(policy.predict(OBS[::-1].astype(">f4")), expected)
    frozen = OBS[::-1].copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(policy.predict(frozen), expected)
    with pytest.raises(ValueError, match="no rectangular array"):
        policy.predict([[1.0, 2.0, 3.0], [1.0]])


def test_a_policy_file_cannot_cause_an_import(policy, tmp_path, monkeypatch):
    from composerl.bookkeeping.trees import save_tree

    (tmp_path / "evil_mod.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for named in ({"env": "evil_mod:Pendulum-v1"}, {"env_kwargs": {"env_id": "evil_mod:Any-v1"}}):
        save_tree(tmp_path / "policy.safetensors", "policy", policy.to_tree() | named)
        loaded = composerl.load(tmp_path)
        with pytest.raises(ValueError, match="that is named is not imported unasked"):
            loaded.evaluate(1)
    assert composerl.load(tmp_path, env="Pendulum-v1").evaluate(1).lengths == (200,)


def test_a_policy_of_a_factory_asks_for_it(policy, tmp_path):
    made = Policy(policy.actor, lambda: gym.make("Pendulum-v1"))
    made.save(tmp_path / "policy.safetensors")
    with pytest.raises(ValueError, match="does not know its environment"):
        composerl.load(tmp_path).evaluate(1)


def test_a_checkpoint_is_known_by_its_content(policy, tmp_path):
    from composerl.bookkeeping.trees import save_tree

    save_tree(tmp_path / "copy", "checkpoint", {"policy": policy.to_tree()})
    np.testing.assert_array_equal(
        composerl.load(tmp_path / "copy").predict(OBS), policy.predict(OBS)
    )
