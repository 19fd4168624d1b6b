"""Datasets as replay buffers."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torchrl.data import SamplerWithoutReplacement, TensorDictReplayBuffer
from torchrl.envs.transforms import RewardScaling

import composerl.data
from composerl.data import Dataset, OfflineBuffer, load_dataset

KEYS = {"observation", "action", "next", "index"}


@pytest.fixture
def data(raw):
    return Dataset.from_arrays(raw, "file")


@pytest.fixture
def file(raw, tmp_path):
    np.savez(tmp_path / "data.npz", **raw)
    return str(tmp_path / "data.npz")


def test_every_row_is_held_in_torchrl_layout(data, raw):
    content = OfflineBuffer(data, batch_size=2)[:]
    following = content["next"]
    assert content.batch_size == (5,)
    assert torch.equal(content["observation"], torch.tensor(raw["observations"]))
    assert torch.equal(content["action"], torch.tensor(raw["actions"]))
    assert torch.equal(following["observation"], torch.tensor(raw["next_observations"]))
    assert following["reward"].tolist() == [[1], [2], [3], [4], [5]]
    assert following["terminated"].tolist() == [[False]] * 4 + [[True]]
    assert following["truncated"].tolist() == [[i == 2] for i in range(5)]
    assert following["done"].tolist() == [[i in (2, 4)] for i in range(5)]
    assert following["reward"].dtype == torch.float32


def test_a_sample_is_rows_of_the_dataset(data):
    """Every key of a sampled row comes from one row: observation, action and reward agree."""
    buffer = OfflineBuffer(data, batch_size=64)
    batch = buffer.sample()
    assert batch.batch_size == (64,)
    assert set(batch["index"].tolist()) == {0, 1, 2, 3, 4}
    for key in ("observation", "action", ("next", "reward"), ("next", "done")):
        assert torch.equal(batch[key], buffer[:][key][batch["index"]])
    assert torch.equal(batch["next", "observation"], batch["observation"] + 1)


@pytest.mark.parametrize("kind", ["floats", "discrete", "images"])
def test_the_lean_path_draws_what_torchrl_would(raw, kind):
    if kind != "floats":
        raw["actions"] = np.array([0, 1, 2, 3, 4])
    if kind == "images":
        for key in ("observations", "next_observations"):
            raw[key] = np.tile(raw[key].astype(np.uint8)[:, :, None, None], (1, 1, 2, 2))
    buffer = OfflineBuffer(Dataset.from_arrays(raw, "file"), batch_size=16)
    torch.manual_seed(3)
    lean = [buffer.sample(), buffer.sample(7)]
    torch.manual_seed(3)
    with pytest.warns(UserWarning, match="conflicting batch_sizes"):
        usual = [TensorDictReplayBuffer.sample(buffer), TensorDictReplayBuffer.sample(buffer, 7)]
    for left, right in zip(lean, usual, strict=True):
        assert left.batch_size == right.batch_size
        assert set(left.keys(True, True)) == set(right.keys(True, True))
        assert set(left.keys()) == KEYS
        assert (left == right).all()
        assert torch.equal(left["observation"], torch.tensor(raw["observations"])[left["index"]])
        assert torch.equal(left["action"], torch.tensor(raw["actions"])[left["index"]])


def test_a_batch_is_free_to_write_to(data):
    buffer = OfflineBuffer(data, batch_size=4)
    before = buffer[:].clone()
    first = buffer.sample()
    kept = first.clone()
    first["priority"] = torch.ones(4)
    buffer.sample()["next", "reward"].fill_(99)
    assert (first.exclude("priority") == kept).all()
    assert (buffer[:] == before).all()


def test_transforms_and_samplers_take_torchrls_way(data):
    buffer = OfflineBuffer(data, batch_size=5, sampler=SamplerWithoutReplacement())
    for _ in range(3):
        assert sorted(buffer.sample()["index"].tolist()) == [0, 1, 2, 3, 4]
    buffer = OfflineBuffer(data, batch_size=8)
    buffer.append_transform(RewardScaling(loc=0.0, scale=10.0, in_keys=[("next", "reward")]))
    batch = buffer.sample()
    assert torch.equal(batch["next", "reward"][:, 0], 10.0 * (batch["index"] + 1))
    batch, info = OfflineBuffer(data, batch_size=3).sample(return_info=True)
    assert torch.equal(info["index"], batch["index"])


def test_it_is_read_only(data):
    buffer = OfflineBuffer(data, batch_size=2)
    with pytest.raises(RuntimeError, match="writing"):
        buffer.extend(buffer.sample())
    data.rewards[0] = 77.0
    assert buffer[:]["next", "reward"][0] == 1.0


def test_rewards_are_scaled_then_shifted(file):
    buffer = load_dataset(file, "Pendulum-v1", reward_scale=0.5, reward_shift=-1.0)
    assert buffer[:]["next", "reward"][:, 0].tolist() == [-0.5, 0.0, 0.5, 1.0, 1.5]
    assert buffer.mean_return == 7.5  # episodes of 6 and 9, in the environment's own rewards


def test_float_actions_are_just_inside_the_bounds(file):
    """1e-5 of half a range of 4: 2e-5."""
    actions = load_dataset(file, "Pendulum-v1")[:]["action"]
    expected = torch.tensor([[-1.99998], [-1.0], [0.0], [1.0], [1.99998]])
    torch.testing.assert_close(actions, expected, rtol=0, atol=1e-7)
    assert torch.atanh(actions / 2).isfinite().all()


def test_properties(data, raw):
    buffer = OfflineBuffer(data)
    mean, std = buffer.stats
    np.testing.assert_allclose(mean, raw["observations"].mean(0), rtol=1e-6)
    np.testing.assert_allclose(std, raw["observations"].std(0), rtol=1e-6)
    assert (mean.dtype, std.dtype) == (torch.float32, torch.float32)
    assert buffer.fingerprint == data.fingerprint
    assert buffer.dropped == 0
    del raw["next_observations"]
    assert OfflineBuffer(Dataset.from_arrays(raw, "file")).dropped == 1


def test_std_has_a_floor(raw):
    raw["observations"][:, 1] = 4.0
    mean, std = OfflineBuffer(Dataset.from_arrays(raw, "file")).stats
    assert mean[1] == 4.0
    assert std[1] == pytest.approx(1e-3)


def test_pixels_stay_bytes(raw):
    for key in ("observations", "next_observations"):
        raw[key] = raw[key].astype(np.uint8)
    buffer = OfflineBuffer(Dataset.from_arrays(raw, "file"), batch_size=3)
    assert buffer.sample()["observation"].dtype == torch.uint8
    assert buffer.stats[0].tolist() == pytest.approx([4.8] * 3)


def test_state_is_the_fingerprint(data):
    buffer = OfflineBuffer(data)
    state = buffer.state_dict()
    assert state == {"fingerprint": data.fingerprint}
    OfflineBuffer(data).load_state_dict(state)
    other = OfflineBuffer(data, reward_scale=2.0)
    with pytest.raises(ValueError, match="the dataset is not the one of the checkpoint"):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="the dataset is not the one of the checkpoint"):
        other.load_state_dict({})


def test_a_samplers_state_is_kept(data):
    def make():
        return OfflineBuffer(data, batch_size=2, sampler=SamplerWithoutReplacement())

    torch.manual_seed(0)
    first = make()
    seen = first.sample()["index"].tolist()
    state = first.state_dict()
    second = make()
    second.load_state_dict(state)
    rest = second.sample()["index"].tolist()
    assert not set(seen) & set(rest)


def test_it_can_be_pickled_for_workers(data):
    buffer = pickle.loads(pickle.dumps(OfflineBuffer(data, batch_size=4)))
    batch = buffer.sample()
    assert torch.equal(batch["next", "observation"], batch["observation"] + 1)


def test_a_behaviour_by_name_prints_nothing(capfd):
    buffer = load_dataset("mixed", "CartPole-v1", size=300, seed=4, batch_size=32)
    assert len(buffer) == 300
    assert buffer.sample()["action"].dtype == torch.int64
    assert buffer.fingerprint == load_dataset("mixed", "CartPole-v1", size=300, seed=4).fingerprint
    assert buffer.fingerprint != load_dataset("mixed", "CartPole-v1", size=300).fingerprint
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("expert", ValueError, "unknown dataset 'expert'.*random, scripted, noisy, mixed"),
        ("nothing.npz", FileNotFoundError, r"dataset nothing.npz does not exist"),
        ("some/where", FileNotFoundError, r"dataset some/where does not exist"),
    ],
)
def test_unknown_names(name, error, message):
    with pytest.raises(error, match=message):
        load_dataset(name, "Pendulum-v1")


def test_a_file_of_another_environment(file):
    with pytest.raises(ValueError, match=r"data.npz: observations has rows of shape \(3,\)"):
        load_dataset(file, "CartPole-v1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"reward_scale": 0.0}, "reward_scale must be finite and not 0"),
        ({"reward_shift": float("nan")}, "reward_shift finite"),
    ],
)
def test_bad_arguments_of_the_buffer(data, arguments, message):
    with pytest.raises(ValueError, match=message):
        OfflineBuffer(data, **arguments)


def test_the_public_names_are_all_there():
    for name in composerl.data.__all__:
        assert getattr(composerl.data, name) is not None
    assert set(composerl.data.__all__) <= set(dir(composerl.data))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        composerl.data.nonsense  # noqa: B018
