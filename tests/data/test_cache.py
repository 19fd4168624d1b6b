"""The cache of generated datasets: used, verified, rebuilt, never in the way."""

from __future__ import annotations

import hashlib
import json
import os
import warnings

import gymnasium as gym
import numpy as np
import pytest

from composerl.data import Dataset, generate
from composerl.data.offline import generation
from composerl.data.offline.checks import KEYS


def test_the_cache_is_used(cache, monkeypatch):
    made = generate("CartPole-v1", "random", 100, 0)
    assert [path.suffix for path in cache.iterdir()] == [".npz"]
    monkeypatch.setattr(generation, "play_episodes", None)
    again = generate("CartPole-v1", "random", 100, 0)
    assert isinstance(again, Dataset)
    for key in KEYS:
        np.testing.assert_array_equal(getattr(again, key), getattr(made, key))
    with pytest.raises(TypeError):  # another seed is not in the cache
        generate("CartPole-v1", "random", 100, 1)


def test_the_cache_depends_on_the_version_of_gymnasium(cache, monkeypatch):
    generate("CartPole-v1", "random", 10, 0)
    monkeypatch.setattr(gym, "__version__", "0.0.0")
    generate("CartPole-v1", "random", 10, 0)
    assert len(list(cache.iterdir())) == 2


def test_the_cache_depends_on_the_environment_s_arguments(cache):
    """None and none given are the same; the order in which they are given does not matter."""
    plain = generate("Pendulum-v1", "random", 10, 0)
    assert generate("Pendulum-v1", "random", 10, 0, env_kwargs={}).fingerprint == plain.fingerprint
    assert len(list(cache.iterdir())) == 1
    light = generate("Pendulum-v1", "random", 10, 0, env_kwargs={"g": 1.0, "max_episode_steps": 3})
    assert light.episodes().tolist() == [[0, 3], [3, 6], [6, 9], [9, 10]]
    assert light.fingerprint != plain.fingerprint
    generate("Pendulum-v1", "random", 10, 0, env_kwargs={"max_episode_steps": 3, "g": 1.0})
    assert len(list(cache.iterdir())) == 2
    generate("Pendulum-v1", "random", 10, 0, env_kwargs={"g": np.float32(1)})  # not JSON
    assert len(list(cache.iterdir())) == 2
    assert "'g': 1.0" in light.source


def test_the_names_of_files_made_earlier_are_kept(cache):
    """Written down from the file's name of before there were arguments."""
    generate("CartPole-v1", "random", 100, 0)
    request = json.dumps([1, "CartPole-v1", "random", 100, 0, gym.__version__])
    name = hashlib.sha256(request.encode()).hexdigest()[:32]
    assert [path.name for path in cache.iterdir()] == [f"{name}.npz"]


def flip(content):
    """Change one number in the middle of the file: the zip itself may stay readable."""
    at = len(content) // 2
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


@pytest.mark.parametrize(
    "damage", [lambda c: c[: len(c) // 2], lambda c: b"", lambda c: b"rubbish", flip]
)
def test_a_damaged_cache_file_is_rebuilt(cache, damage):
    made = generate("CartPole-v1", "random", 300, 0)
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    with pytest.warns(UserWarning, match=r"\.npz is damaged and made again"):
        again = generate("CartPole-v1", "random", 300, 0)
    assert again.fingerprint == made.fingerprint
    assert list(cache.iterdir()) == [path]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert generate("CartPole-v1", "random", 300, 0).fingerprint == made.fingerprint


def test_a_cache_file_with_other_content_is_rebuilt(cache):
    """Sound zip files that are not what their name says: a swapped, an edited and a poor one."""
    made = generate("CartPole-v1", "random", 50, 0)
    (path,) = cache.iterdir()
    with np.load(path) as file:
        arrays = dict(file)
    other = generate("CartPole-v1", "random", 50, 1)
    (swapped,) = set(cache.iterdir()) - {path}
    edited = {**arrays, "rewards": arrays["rewards"] + 1}
    lacking = {key: value for key, value in arrays.items() if key != "terminals"}
    for content in (swapped.read_bytes(), edited, lacking):
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            np.savez(path, **content)
        with pytest.warns(UserWarning, match="is damaged and made again"):
            assert generate("CartPole-v1", "random", 50, 0).fingerprint == made.fingerprint
    assert made.fingerprint != other.fingerprint


def test_an_unwritable_cache_only_warns(tmp_path, monkeypatch):
    """A file stands where the directory should be (permissions would not stop root)."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COMPOSERL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(UserWarning, match="generated dataset is not cached"):
        assert len(generate("CartPole-v1", "random", 10, 0)) == 10


def test_a_failed_write_leaves_nothing_behind(cache, monkeypatch):
    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(UserWarning, match="not cached: disk full"):
        generate("CartPole-v1", "random", 10, 0)
    assert list(cache.iterdir()) == []


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("COMPOSERL_CACHE", str(tmp_path / "a"))
    assert generation.cache_dir() == tmp_path / "a"
    monkeypatch.delenv("COMPOSERL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert generation.cache_dir() == tmp_path / "b" / "composerl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert generation.cache_dir() == tmp_path / ".cache" / "composerl"
