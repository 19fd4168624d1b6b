"""Checks of the equations notice what is wrong, and losses are made by their signatures."""

from __future__ import annotations

import math
from unittest import SkipTest

import pytest
import torch
from torchrl.objectives import LossModule

from composerl.losses import CQLLoss, DiscreteCQLLoss, GAILLoss, IQLLoss, RowLoss
from composerl.testing import LOSS_CHECKS, check_loss, loss_examples
from composerl.testing.building import arguments_of, build


class OneStep(IQLLoss):
    def td_target(self, batch, next_value):
        return super().td_target(batch.exclude("steps_to_next_obs"), next_value)


class StopsAtTimeLimits(IQLLoss):
    def td_target(self, batch, next_value):
        ended = batch.clone(recurse=False)
        ended["next", "terminated"] = batch["next", "done"]
        return super().td_target(ended, next_value)


class NeverStops(IQLLoss):
    def td_target(self, batch, next_value):
        endless = batch.clone(recurse=False)
        endless["next", "terminated"] = torch.zeros_like(batch["next", "done"])
        return super().td_target(endless, next_value)


class FewSamples(CQLLoss):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.num_random = 1


class UnitBox(CQLLoss):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.low.clamp_(-1, 1)
        self.high.clamp_(-1, 1)


class UnitVolume(CQLLoss):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.log_volume.fill_(len(self.low) * math.log(2))


class NeverMultiplies(CQLLoss):
    def rows(self, batch, mask):
        rows = super().rows(batch, mask)
        return rows | {"loss_cql": rows["loss_cql"] / rows["alpha_prime"].detach()}


class WrongWay(CQLLoss):
    def rows(self, batch, mask):
        rows = super().rows(batch, mask)
        return rows | {"loss_alpha_prime": -rows["loss_alpha_prime"]}


class Leaky(CQLLoss):
    def rows(self, batch, mask):
        rows = super().rows(batch, mask)
        return rows | {"loss_alpha_prime": rows["loss_alpha_prime"] - 0.1 * rows["loss_cql"]}


class Probabilities(GAILLoss):
    def _logits(self, observation, action):
        return super()._logits(observation, action).sigmoid()


@pytest.mark.parametrize(
    ("broken", "check", "sentence"),
    [
        (OneStep, "n_step", r"discount by gamma\^2"),
        (StopsAtTimeLimits, "time_limits", "does not count where a time limit cut"),
        (NeverStops, "time_limits", "counts although the episode has terminated"),
        (FewSamples, "penalty_samples", "which is that of 3 actions"),
        (UnitBox, "penalty_bounds", "must fill the box"),
        (UnitVolume, "penalty_bounds", "volume of the box"),
        (NeverMultiplies, "multiplier", "it does 1.00 times"),
        (WrongWay, "multiplier_gradient", "must grow while the gap is above"),
        (Leaky, "multiplier_gradient", "not .*qvalue_network"),
        (Probabilities, "logits", "is not that of logits"),
    ],
)
def test_wrong_equations_are_noticed(broken, check, sentence):
    loss, batch, _ = build(broken)
    with pytest.raises(AssertionError, match=sentence):
        check_loss(loss, batch, only=check)
    sound, batch, _ = build(broken.__mro__[1])
    check_loss(sound, batch, only=check)


def test_one_check_is_known_by_its_name():
    loss, batch, _ = build(IQLLoss)
    with pytest.raises(ValueError, match=r"only must be one of .*'n_step'.* got 'nonsense'"):
        check_loss(loss, batch, only="nonsense")
    with pytest.raises(SkipTest, match="does not apply without the argument num_random"):
        check_loss(loss, batch, only="penalty_samples")
    assert len(set(LOSS_CHECKS)) == len(LOSS_CHECKS)


def test_losses_are_made_by_their_signature():
    class Mine(CQLLoss):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)

    assert {"actor_network", "qvalue_network", "num_random"} <= arguments_of(Mine).keys()
    assert build(Mine)[0](build(Mine)[1])["loss_cql"].isfinite()
    loss, batch, options = build(DiscreteCQLLoss)
    assert options == {"num_actions": 3}
    assert batch["action"].shape == (8,)
    assert loss(batch)["loss_cql"].isfinite()

    class Odd(LossModule):
        def __init__(self, actor_network, world):
            super().__init__()

    with pytest.raises(ValueError, match="it needs world"):
        build(Odd)
    with pytest.raises(ValueError, match="it takes none of actor_network, qvalue_network"):
        build(RowLoss)


def test_the_losses_of_a_module_are_its_own():
    """TorchRL's base class and what is imported from elsewhere are left out."""
    names = set(loss_examples("composerl.losses"))
    assert {"IQLLoss", "DreamerLoss", "RowLoss"} <= names
    assert "LossModule" not in names
    assert not loss_examples("composerl.losses.functional")
    assert set(loss_examples("composerl.losses.cql")) == {"CQLLoss"}
