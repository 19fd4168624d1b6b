"""Files that tests write and readers must return the content of."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest

from composerl.data import generate, read_dataset, validate, write_dataset
from composerl.envs.spaces import Spaces

SHARED = Path("/work/shared/data")


def assert_holds(data, raw):
    for key, value in raw.items():
        np.testing.assert_array_equal(getattr(data, key), value, err_msg=key)


def write_hdf5(path, arrays):
    with h5py.File(path, "w") as file:
        for key, value in arrays.items():
            file[key] = value
    return path


def episode(first, steps, terminal):
    """A Minari episode that counts up from ``first``, with one observation more than steps."""
    counts = np.arange(first, first + steps + 1, dtype=np.float64)
    flags = np.zeros(steps, bool)
    last = flags.copy()
    last[-1:] = True
    return {
        "observations": np.repeat(counts[:, None], 3, axis=1),
        "actions": np.full((steps, 1), 0.5, dtype=np.float32),
        "rewards": counts[:-1] * 10,
        "terminations": last if terminal else flags,
        "truncations": flags if terminal else last,
    }


def write_minari(folder, episodes):
    (folder / "data").mkdir(parents=True)
    with h5py.File(folder / "data" / "main_data.hdf5", "w") as file:
        for name, arrays in episodes.items():
            group = file.create_group(name)
            group.create_group("infos")
            for key, value in arrays.items():
                group[key] = value
    return folder


def test_npz(raw, tmp_path):
    np.savez_compressed(tmp_path / "a.npz", **raw, comment=np.array("ignored"))
    data = read_dataset(tmp_path / "a.npz")
    assert_holds(data, raw)
    assert data.source == str(tmp_path / "a.npz")


@pytest.mark.parametrize("name", ["a.hdf5", "a.h5"])
def test_d4rl_hdf5(raw, tmp_path, name):
    path = write_hdf5(tmp_path / name, {**raw, "infos/qpos": np.zeros(5), "metadata/x": 1})
    assert_holds(read_dataset(str(path)), raw)


def test_d4rl_hdf5_without_next_observations(raw, tmp_path):
    del raw["next_observations"]
    data = read_dataset(write_hdf5(tmp_path / "a.hdf5", raw))
    assert data.next_observations[:, 0].tolist() == [1, 2, 11, 11]
    assert data.dropped == 1


@pytest.mark.parametrize("inner", ["", "data/main_data.hdf5"])
def test_minari_episodes_in_order_of_number(tmp_path, inner):
    """Episode 10 comes after 2; the last successor of each is its own; nothing is dropped."""
    folder = write_minari(
        tmp_path / "set-v0",
        {
            "episode_10": episode(100, 2, terminal=True),
            "episode_2": episode(20, 2, terminal=False),
            "episode_0": episode(0, 3, terminal=True),
        },
    )
    data = read_dataset(folder / inner if inner else folder)
    assert data.observations[:, 2].tolist() == [0, 1, 2, 20, 21, 100, 101]
    assert data.next_observations[:, 2].tolist() == [1, 2, 3, 21, 22, 101, 102]
    assert data.rewards.tolist() == [0, 10, 20, 200, 210, 1000, 1010]
    assert np.flatnonzero(data.terminals).tolist() == [2, 6]
    assert np.flatnonzero(data.timeouts).tolist() == [4]
    assert data.actions.tolist() == [[0.5]] * 7
    assert data.dropped == 0


def test_minari_episodes_that_meet_by_chance_are_whole_and_unfinished_ones_are_cut(tmp_path):
    """Episode 1 starts where episode 0 was cut; in this layout that is no leak."""
    unfinished = episode(2, 2, terminal=False)
    unfinished["truncations"][:] = False
    folder = write_minari(
        tmp_path / "set", {"episode_0": episode(0, 2, terminal=False), "episode_1": unfinished}
    )
    data = read_dataset(folder)
    assert data.next_observations[:, 0].tolist() == [1, 2, 3, 4]
    assert data.timeouts.tolist() == [False, True, False, True]


def without(arrays, key):
    return {k: v for k, v in arrays.items() if k != key}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: without(e, "rewards"), "episode_3: no rewards; it has actions, infos, obs"),
        (
            lambda e: {**e, "observations": e["observations"][:-1]},
            "episode_3: observations has 2 rows, expected 3",
        ),
        (lambda e: {**e, "actions": e["actions"][:1]}, "episode_3: actions has 1 rows, but"),
        (
            lambda e: {**without(e, "observations"), "observations/x": np.zeros(3)},
            "episode_3: observations has not the parts of earlier episodes",
        ),
        (
            lambda e: {**without(e, "actions"), "actions/x": np.zeros(2)},
            "episode_3: actions is a group",
        ),
        (
            lambda e: {**e, "actions": np.array([b"a", b"b"], dtype=object)},
            "episode_3: actions has type object",
        ),
        (
            lambda e: {**e, "observations": e["observations"][:, :2]},
            r"episode_3: observations has rows of shape \(2,\), but those of earlier",
        ),
    ],
)
def test_bad_minari_episodes_are_named(tmp_path, change, message):
    bad = change(episode(0, 2, terminal=True))
    folder = write_minari(tmp_path / "set", {"episode_0": episode(5, 2, True), "episode_3": bad})
    with pytest.raises(ValueError, match=message):
        read_dataset(folder)


def test_minari_without_steps_or_numbers(tmp_path):
    none = write_minari(tmp_path / "a", {"episode_0": episode(0, 0, terminal=False)})
    with pytest.raises(ValueError, match="none of the 1 episodes has a step"):
        read_dataset(none)
    odd = write_minari(tmp_path / "b", {"episode_x": episode(0, 1, terminal=False)})
    with pytest.raises(ValueError, match="group 'episode_x' is not named episode_<number>"):
        read_dataset(odd)


class Poison:
    """Unpickling it creates a file."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return (os.mkdir, (self.marker,))


def test_a_poisoned_pickle_is_never_loaded(raw, tmp_path):
    marker = tmp_path / "marker"
    raw["observations"] = np.array([Poison(marker)] * 5, dtype=object)
    np.savez(tmp_path / "a.npz", **raw)
    # The poison works: without this, a marker that stays away would prove nothing.
    np.load(tmp_path / "a.npz", allow_pickle=True)["observations"]
    marker.rmdir()
    with pytest.raises(ValueError, match=r"a.npz: observations cannot be read: Object arrays"):
        read_dataset(tmp_path / "a.npz")
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Poison(marker)))
    with pytest.raises(ValueError, match=r"b.npz is not a readable npz file"):
        read_dataset(tmp_path / "b.npz")
    assert not marker.exists()


@pytest.mark.parametrize("name", ["a.npz", "a.hdf5"])
def test_damaged_files(raw, tmp_path, name):
    path = tmp_path / name
    if name.endswith("npz"):
        np.savez(path, **raw)
    else:
        write_hdf5(path, raw)
    whole = path.read_bytes()
    for content in (b"", b"not a dataset", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name} is not a readable"):
            read_dataset(path)


def test_flipped_bytes_inside_an_npz_are_found(raw, tmp_path):
    np.savez(tmp_path / "a.npz", **raw)
    content = (tmp_path / "a.npz").read_bytes()
    at = content.index(raw["rewards"].tobytes())
    (tmp_path / "a.npz").write_bytes(content[:at] + b"\xff" + content[at + 1 :])
    with pytest.raises(ValueError, match=r"a.npz: rewards cannot be read: Bad CRC"):
        read_dataset(tmp_path / "a.npz")


def test_a_flipped_name_inside_an_npz_is_found(raw, tmp_path):
    """What may be missing would be taken for missing."""
    path = tmp_path / "data.npz"
    np.savez(path, **raw)
    content = path.read_bytes()
    at = content.rindex(b"rewards.npy")  # in the archive's directory, at its end
    path.write_bytes(content[:at] + b"s" + content[at + 1 :])
    with pytest.raises(ValueError, match=r"cannot be read: .*differ"):
        read_dataset(path)


@pytest.mark.parametrize("name", ["a.h5", "minari"])
def test_flipped_bytes_inside_what_we_write_are_found(tmp_path, name):
    """Or nothing else is read because of them: HDF5 has checksums, if it is told so."""
    whole = generate("Pendulum-v1", "noisy", 250, 0, cache=False)
    write_dataset(whole, tmp_path / name)
    file = next(path for path in tmp_path.rglob("*.h*5"))
    content, told = file.read_bytes(), 0
    for place in range(0, len(content), 41):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        file.write_bytes(changed)
        try:
            assert read_dataset(tmp_path / name).fingerprint == whole.fingerprint, place
        except ValueError:
            told += 1
    assert told > 100


def test_missing_keys_list_what_is_there(tmp_path, raw):
    del raw["rewards"]
    message = r"no rewards in the file; it has actions, next_observations, observations, te"
    np.savez(tmp_path / "a.npz", **raw)
    with pytest.raises(ValueError, match=rf"a.npz: {message}"):
        read_dataset(tmp_path / "a.npz")
    with pytest.raises(ValueError, match=rf"a.h5: {message}"):
        read_dataset(write_hdf5(tmp_path / "a.h5", raw))


def test_paths_that_lead_to_no_dataset(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing.npz does not exist"):
        read_dataset(tmp_path / "nothing.npz")
    with pytest.raises(FileNotFoundError, match=r"is not a Minari dataset in HDF5 format"):
        read_dataset(tmp_path)
    (tmp_path / "a.csv").write_text("1,2")
    with pytest.raises(ValueError, match=r"ending '.csv', expected .npz, .hdf5, .h5 or a Minari"):
        read_dataset(tmp_path / "a.csv")
    np.save(tmp_path / "b.npy", np.zeros(3))
    (tmp_path / "b.npy").rename(tmp_path / "b.npz")
    with pytest.raises(ValueError, match=r"b.npz holds one bare array"):
        read_dataset(tmp_path / "b.npz")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the public datasets are not on this machine")
@pytest.mark.parametrize(
    ("name", "env", "episodes", "rows", "dropped", "mean"),
    [
        ("pendulum_replay", "Pendulum-v1", 500, 99_500, 500, -180),
        ("pendulum_expert", "Pendulum-v1", 50, 10_000, 0, -175),
        ("cartpole_expert", "CartPole-v1", 100, 49_527, 100, 494),
    ],
)
def test_public_files_are_what_their_readme_says(name, env, episodes, rows, dropped, mean):
    """500 and 100 episodes whose last successor belongs to the next one: none is left."""
    data = validate(read_dataset(SHARED / f"{name}.npz"), Spaces.of(env))
    assert (len(data), data.dropped) == (rows - dropped, dropped)
    assert len(data.episodes()) == episodes
    assert data.returns().mean() == pytest.approx(mean, abs=1)
    inside = np.flatnonzero(~(data.terminals | data.timeouts))
    np.testing.assert_array_equal(data.next_observations[inside], data.observations[inside + 1])
    ends = data.episodes()[:-1, 1] - 1
    assert (data.next_observations[ends] != data.observations[ends + 1]).any(axis=1).all()
