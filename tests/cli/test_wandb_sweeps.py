"""W&B sweeps: every value a sweep can choose parses, in the form the agent passes it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from composerl.catalog import load_recipe
from composerl.config import parse

SWEEPS = sorted((Path(__file__).parents[2] / "recipes" / "sweeps").glob("*.yaml"))


def load(path):
    return yaml.safe_load(path.read_text())


def values(parameter):
    """All values of a list, the ends of a range."""
    if "values" in parameter:
        return parameter["values"]
    return [parameter["value"]] if "value" in parameter else [parameter["min"], parameter["max"]]


def test_there_are_the_promised_sweeps():
    assert {path.stem.partition("_")[0] for path in SWEEPS} >= {"iql", "iqn", "mbpo"}


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_wandb_understands_the_file(path):
    """As W&B's schema wants it; the search itself runs on its server."""
    config = load(path)
    assert config["method"] in ("grid", "random", "bayes")
    assert set(config["metric"]) == {"name", "goal"}
    assert config["metric"]["goal"] == "maximize"
    assert (path.parents[2] / config["program"]).is_file()
    assert config["command"] == ["${env}", "composerl", "run", path.stem, "${args}"]
    for name, parameter in config["parameters"].items():
        if "min" in parameter:
            assert parameter["distribution"] == "log_uniform_values", name
            assert 0 < parameter["min"] < parameter["max"]
        else:
            assert len(parameter) == 1, name
            assert set(parameter) <= {"value", "values"}, name


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_value_parses_as_the_agent_passes_it(path):
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    module, parameters = load_recipe(path.stem), load(path)["parameters"]
    for name, parameter in parameters.items():
        for value in values(parameter):
            flags = utils.create_sweep_command_args({"args": {name: {"value": value}}})["args"]
            assert flags == [f"--{name}={value}"]
            got = getattr(parse(module.Config, flags), name)
            assert got == (tuple(value) if isinstance(value, list) else value), flags
    # And all together, with the first values and with the last.
    for end in (0, -1):
        chosen = {name: {"value": values(p)[end]} for name, p in parameters.items()}
        config = parse(module.Config, utils.create_sweep_command_args({"args": chosen})["args"])
        assert config.steps == chosen["steps"]["value"]


def test_booleans_and_lists_in_every_spelling():
    module = load_recipe("iql_pendulum")
    for text in ("true", "True", "1"):
        assert parse(module.Config, [f"--normalize={text}"]).normalize is True
    for text in ("false", "False", "0"):
        assert parse(module.Config, [f"--normalize={text}"]).normalize is False
    for text in ("[32, 16]", "[32,16]", "(32, 16)"):
        assert parse(module.Config, [f"--hidden={text}", "--lr=1e-4"]).hidden == (32, 16)
