"""The page on what differs from TorchRL's losses says what the code says."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import torchrl.objectives as stock
from losses.test_options import NAMESAKES

from composerl import losses
from composerl.losses.arguments import Only
from composerl.testing.building import build

PAGE = Path(losses.__file__).with_name("README.md").read_text(encoding="utf-8")


def section(name):
    """The part of the page on a class, on one line."""
    found = re.search(rf"^## {name}\n(.*?)(?=^#)", PAGE, re.M | re.S)
    assert found, f"losses/README.md has no section on {name}"
    return re.sub(r"\s+", " ", found[1])


def defaults(kind, package):
    """Arguments of a class and of the classes below it, with their defaults."""
    found = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith(package):
            for name, parameter in inspect.signature(base.__init__).parameters.items():
                if parameter.default is not inspect.Parameter.empty:
                    found[name] = parameter.default
    return found


def plain(value):
    return value.value if isinstance(value, Only) else value


@pytest.mark.parametrize("name", NAMESAKES)
def test_page_names_every_default_that_differs(name):
    mine, theirs = getattr(losses, name), getattr(stock, name)
    ours = defaults(mine, "composerl") | dict(mine.further)
    for option, default in defaults(theirs, "torchrl").items():
        if option in ours and plain(ours[option]) != default:
            assert f"`{option}={plain(ours[option])!r}` ({default!r})" in section(name)


@pytest.mark.parametrize("name", NAMESAKES)
def test_page_names_every_option_that_is_refused(name):
    for option, default in getattr(losses, name).further.items():
        if isinstance(default, Only):
            assert f"`{option}`: {default.reason}" in section(name)
    ours = defaults(getattr(losses, name), "composerl") | dict(getattr(losses, name).further)
    for option in defaults(getattr(stock, name), "torchrl").keys() - ours.keys():
        assert option in REQUIRED or f"`{option}`" in section(name).split("**Refused**")[1]


#: With a default there, which makes an error.
REQUIRED = ("actor_network", "critic_network")


@pytest.mark.parametrize("name", NAMESAKES)
def test_page_names_every_key_of_another_name(name):
    ours, theirs = (getattr(package, name).default_keys() for package in (losses, stock))
    for field in fields(theirs):
        default = getattr(theirs, field.name)
        if not hasattr(ours, field.name):
            assert f"The key `{field.name}`" in section(name)
        elif getattr(ours, field.name) != default:
            expected = f"`{field.name}={getattr(ours, field.name)!r}` ({default!r})"
            assert expected in section(name)


def test_page_names_nothing_that_is_not_there():
    for name in NAMESAKES:
        known = {*defaults(getattr(losses, name), "composerl"), *getattr(losses, name).further}
        known |= {*dir(getattr(losses, name).default_keys())}
        for option in re.findall(r"`(\w+)=[^`]*` \(", section(name)):
            assert option in known, f"{name}: {option}"
    theirs = {"qvalue_loss"}
    for name in {*re.findall(r"`(\w+_loss|\w+Loss)`", PAGE)} - theirs:
        assert hasattr(losses, name), name


def test_example_on_the_page_runs():
    torch.manual_seed(0)
    names = {}
    exec(re.search(r"```python\n(.*?)```", PAGE, re.S)[1], names)
    for network in (names["actor"], names["value"], *names["critics"]):
        assert network.weight.grad.norm() > 0
    assert all(target.weight.grad is None for target in names["targets"])


@pytest.mark.parametrize("name", ["IQLLoss", "SACLoss", "TD3BCLoss", "BCLoss"])
def test_calls_with_keyword_tensors_unpack_as_torchrl_s(name):
    """Who writes ``actor, qvalue, value, entropy = loss(...)`` changes nothing but the import."""
    ours, theirs = (build(getattr(module, name))[0] for module in (losses, stock))
    assert list(ours.out_keys) == list(theirs.out_keys)
