"""What the checks find in TorchRL's own losses, and not in ours of the same names."""

from __future__ import annotations

from importlib.metadata import version
from unittest import SkipTest

import pytest
import torchrl.objectives
from torchrl.modules import MLP

import composerl.losses
from composerl.testing import check_loss
from composerl.testing.building import build, network

#: Where this was seen. Look again at what is listed below when another version is installed.
SEEN = "0.14.1"

#: Class, check, and the sentence (a part of it) that names the defect.
DEFECTS = [
    ("CQLLoss", "penalty_samples", "which is that of 3 actions"),
    ("CQLLoss", "penalty_bounds", r"must fill the box of the action spec, \[-3, 3\]"),
    ("CQLLoss", "multiplier", "four times as hard, it does -2.00 times"),
    ("CQLLoss", "multiplier_gradient", r"its multiplier alone, not \['qvalue_network_params"),
    ("CQLLoss", "mask", "loss_cql with NaN in rows masked"),
    ("CQLLoss", "weights", "tensor_keys must have priority_weight"),
    ("IQLLoss", "mask", "loss_qvalue with NaN in rows masked"),
    ("IQLLoss", "n_step", r"loss_qvalue of 2-step rows must discount by gamma\^2"),
    ("IQLLoss", "weights", "tensor_keys must have priority_weight"),
    ("GAILLoss", "logits", "logits of 3.0 in 'd_logits' end in an error: .* between 0 and 1"),
    ("GAILLoss", "outputs", r"none of \['gp_loss', 'loss'\] starts with loss_"),
    ("REDQLoss", "n_step", "loss_qvalue of 2-step rows"),
    ("DQNLoss", "outputs", r"none of \['loss'\] starts with loss_"),
]


class Probability(MLP):
    """What TorchRL's GAIL takes for the logits that its key asks for."""

    def forward(self, *inputs):
        return super().forward(*inputs).sigmoid()


def stock(name):
    cls = getattr(torchrl.objectives, name)
    if name != "GAILLoss":
        return build(cls)
    judge = network(Probability(5, 1, 1, 8), "d_logits")
    return build(cls, discriminator_network=judge, use_grad_penalty=True)


@pytest.mark.skipif(
    version("torchrl") != SEEN,
    reason=f"seen with torchrl {SEEN}, this is {version('torchrl')}: run pytest --composerl-losses "
    "torchrl.objectives, and bring DEFECTS up to date",
)
@pytest.mark.parametrize(("name", "check", "sentence"), DEFECTS)
def test_a_defect_of_torchrl_is_named(name, check, sentence):
    loss, batch, options = stock(name)
    with pytest.raises(AssertionError, match=sentence):
        check_loss(loss, batch, only=check, **options)


OURS = [(name, check) for name, check, _ in DEFECTS if name in composerl.losses.__all__]


@pytest.mark.parametrize(("name", "check"), OURS)
def test_ours_does_not_have_it(name, check):
    loss, batch, options = build(getattr(composerl.losses, name))
    try:
        check_loss(loss, batch, only=check, **options)
    except SkipTest as reason:  # which pytest would take for success
        pytest.fail(f"the check looks at nothing: {reason}")
