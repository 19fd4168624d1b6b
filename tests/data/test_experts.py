"""Experts: behaviours, files and trained policies as demonstrations; subsampling."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchrl.data import TensorDictReplayBuffer

import composerl
from composerl.data import DatasetStorage, load_experts
from composerl.envs.spaces import Spaces
from composerl.modules import categorical_actor, gaussian_actor
from composerl.policy import Policy

CARTPOLE = Spaces.of("CartPole-v1")


def write_npz(path, lengths=(5, 8, 3), ends=(True, False, True)):
    """Episodes in which row i has observation (i, i, i, i), action i mod 2, reward 1."""
    size = sum(lengths)
    obs = np.repeat(np.arange(size, dtype=np.float32)[:, None], 4, axis=1)
    last = np.cumsum(lengths) - 1
    terminals, timeouts = np.zeros(size, bool), np.zeros(size, bool)
    terminals[last[np.array(ends)]] = True
    timeouts[last[~np.array(ends)]] = True
    np.savez(
        path, observations=obs, actions=np.arange(size) % 2, rewards=np.ones(size),
        next_observations=obs + 0.5, terminals=terminals, timeouts=timeouts,
    )  # fmt: skip
    return path


def content(experts):
    """What a buffer samples from."""
    return TensorDictReplayBuffer(storage=DatasetStorage(experts.dataset))[:]


def test_the_scripted_balancer_never_falls():
    experts = load_experts("scripted", "CartPole-v1", episodes=20)
    assert experts.lengths == (500,) * 20
    assert experts.mean_return == 500
    assert experts.terminated == 0.5 / 10_001
    assert content(experts)["action"].dtype == torch.long
    assert content(experts)["action"].shape == (10_000,)
    assert not content(experts)["next", "terminated"].any()


def test_the_pendulum_controller_is_good():
    experts = load_experts("scripted", "Pendulum-v1", episodes=20)
    assert experts.mean_return > -250
    actions = content(experts)["action"]
    assert actions.shape == (4000, 1)
    assert actions.abs().max() < 2  # where a tanh can reach, so that cloning has a likelihood
    assert actions.abs().max() == pytest.approx(1.998)
    assert content(experts)["observation"].shape == (4000, 3)


def test_random_experts_end_early():
    experts = load_experts("random", "CartPole-v1", episodes=30)
    assert 15 < experts.mean_return < 30
    assert experts.terminated == pytest.approx(30.5 / (sum(experts.lengths) + 1))


def test_same_arguments_same_bytes():
    made = [load_experts("random", "CartPole-v1", episodes=3, seed=s) for s in (0, 0, 1)]
    prints = [experts.dataset.fingerprint for experts in made]
    assert prints[0] == prints[1] != prints[2]
    few, many = (load_experts("scripted", "CartPole-v1", episodes=n) for n in (1, 9))
    assert torch.equal(content(few)["observation"], content(many)["observation"][:500])
    state = DatasetStorage(many.dataset).state_dict()
    DatasetStorage(many.dataset).load_state_dict(state)
    with pytest.raises(ValueError, match="not the one of the checkpoint"):
        DatasetStorage(few.dataset).load_state_dict(state)


def test_first_episodes_of_a_file(tmp_path):
    path = write_npz(tmp_path / "demo.npz")
    two = load_experts(path, "CartPole-v1", episodes=2)
    assert two.lengths == (5, 8)
    assert content(two)["observation"][:, 0].tolist() == list(range(13))
    assert content(two)["action"].tolist() == [i % 2 for i in range(13)]
    assert two.mean_return == 6.5
    assert two.terminated == pytest.approx(1.5 / 14)
    assert load_experts(path, "CartPole-v1", episodes=None).lengths == (5, 8, 3)
    with pytest.raises(ValueError, match="has 3 episodes, but 4 demonstrations are asked for"):
        load_experts(path, "CartPole-v1", episodes=4)


def test_minari_folder(tmp_path):
    h5py = pytest.importorskip("h5py")
    folder = tmp_path / "demo"
    (folder / "data").mkdir(parents=True)
    with h5py.File(folder / "data" / "main_data.hdf5", "w") as file:
        for k in range(3):
            group = file.create_group(f"episode_{k}")
            group["observations"] = np.full((6, 4), k, np.float32)
            group["actions"] = np.full(5, k % 2)
            group["rewards"] = np.ones(5)
            group["terminations"] = np.arange(5) == 4
            group["truncations"] = np.zeros(5, bool)
    experts = load_experts(folder, "CartPole-v1", episodes=2)
    assert experts.lengths == (5, 5)
    assert content(experts)["action"].tolist() == [0] * 5 + [1] * 5


def test_subsampling_keeps_every_kth_step_of_each_episode(tmp_path):
    """Of episodes of 40, 41 and 3 steps, every 10th: 4, 4 or 5 and 1 rows, from a random one on."""
    path = write_npz(tmp_path / "demo.npz", lengths=(40, 41, 3))
    starts = set()
    for seed in range(12):
        few = load_experts(path, "CartPole-v1", episodes=3, subsample=10, seed=seed)
        rows = content(few)["observation"][:, 0].long()
        by_episode = [rows[rows < 40], rows[(rows >= 40) & (rows < 81)], rows[rows >= 81]]
        assert [len(part) in sizes for part, sizes in
                zip(by_episode, ((4,), (4, 5), (1,)), strict=True)] == [True] * 3  # fmt: skip
        assert all((part.diff() == 10).all() for part in by_episode)
        starts.add(int(rows[0]))
        # whole episodes still count for what is said of them
        assert few.lengths == (40, 41, 3)
        assert few.mean_return == 28
        assert few.terminated == pytest.approx(2.5 / 85)
    assert len(starts) > 3


def balancer():
    """A policy network that does what the scripted balancer does."""
    actor = categorical_actor(CARTPOLE, ())
    with torch.no_grad():
        layer = actor.module[0].module.trunk[0]
        layer.weight.zero_()
        layer.weight[1] = torch.tensor([0.03, 0.07, 1.0, 0.35])
        layer.bias.zero_()
    return actor


def test_a_trained_policy_plays(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    Policy(balancer(), "CartPole-v1").save(run / "policy.safetensors")
    for source in (run, run / "policy.safetensors"):
        experts = load_experts(composerl.load(source), "CartPole-v1", episodes=3)
        assert experts.lengths == (500, 500, 500)
    scripted = load_experts("scripted", "CartPole-v1", episodes=3)
    assert torch.equal(content(experts)["observation"], content(scripted)["observation"])
    with pytest.raises(ValueError, match=r"Policy\(.* is for .* but the environment has"):
        load_experts(composerl.load(run), "Acrobot-v1")


def test_a_poisoned_policy_runs_nothing(tmp_path):
    """The description names a network of the closed list, or nothing is built."""
    actor = gaussian_actor(Spaces.of("Pendulum-v1"))
    actor.description = actor.description | {"factory": "os.system"}
    path = Policy(actor, "Pendulum-v1").save(tmp_path / "policy.safetensors")
    with pytest.raises(ValueError, match=r"unknown network 'os\.system'"):
        load_experts(composerl.load(path), "Pendulum-v1")


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("scripted", {"episodes": 0}, "episodes of the experts must be"),
        ("scripted", {"subsample": 0}, "subsample of the experts must be"),
        ("scripted", {"episodes": None}, "say how many episodes"),
        ("mixed", {}, "experts cannot be 'mixed'"),
        ("noisy", {}, "experts cannot be 'noisy'"),
        ("scipted", {}, "unknown dataset 'scipted'"),
    ],
)
def test_bad_arguments(source, options, message):
    with pytest.raises(ValueError, match=message):
        load_experts(source, "CartPole-v1", **options)


def test_missing_file_and_missing_controller(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere.npz does not exist"):
        load_experts(tmp_path / "nowhere.npz", "CartPole-v1")
    with pytest.raises(ValueError, match="needs a scripted controller"):
        load_experts("scripted", "Acrobot-v1")
