from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Every test has a cache of its own."""
    monkeypatch.setenv("COMPOSERL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def raw():
    """Two episodes of Pendulum's shapes, one cut after 3 rows and one that ends after 2.

    Observation i is (i, i, i), its successor i + 1; the episodes start at 0 and 10.
    """
    start = np.array([0, 1, 2, 10, 11], dtype=np.float32)
    return {
        "observations": np.repeat(start[:, None], 3, axis=1),
        "actions": np.array([[-2.0], [-1.0], [0.0], [1.0], [2.0]], dtype=np.float32),
        "rewards": np.array([1, 2, 3, 4, 5], dtype=np.float32),
        "next_observations": np.repeat(start[:, None] + 1, 3, axis=1),
        "terminals": np.array([0, 0, 0, 0, 1], dtype=bool),
        "timeouts": np.array([0, 0, 1, 0, 0], dtype=bool),
    }
