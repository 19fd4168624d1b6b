"""Every loss of the package is a native LossModule: keys, targets, gradients, compile."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from losses.examples import EXAMPLES, iql
from tensordict import NestedKey, TensorDict
from tensordict.nn import dispatch
from torchrl.objectives import LossModule

import composerl.losses
from composerl.losses import IQLLoss, RowLoss
from composerl.testing import check_loss

LOSSES = [
    name
    for name in composerl.losses.__all__
    if isinstance(thing := getattr(composerl.losses, name), type)
    and issubclass(thing, LossModule)
    and thing is not RowLoss  # no loss by itself
]


@pytest.mark.parametrize("name", LOSSES)
def test_loss_conforms(name):
    assert name in EXAMPLES, f"add an example of {name} to tests/losses/examples.py"
    make, options = EXAMPLES[name]
    check_loss(*make(), **options)


# ---- the suite itself must notice what is wrong ------------------------------------------


class LeakyLoss(IQLLoss):
    """Lets the actor's loss reach the critics."""

    @dispatch
    def forward(self, tensordict):
        out = super().forward(tensordict)
        return out.set("loss_actor", out["loss_actor"] + 0.1 * out["loss_value"])


class ScribblingLoss(IQLLoss):
    """Writes into its input."""

    @dispatch
    def forward(self, tensordict):
        out = super().forward(tensordict)
        tensordict.set("scribble", torch.zeros(tensordict.shape))
        return out


class MasklessLoss(IQLLoss):
    """Forgets the padding mask."""

    def _loss_mask_keys(self):
        return ()


class AttachedLoss(IQLLoss):
    """Returns a metric that still has a graph."""

    @dispatch
    def forward(self, tensordict):
        out = super().forward(tensordict)
        return out.set("entropy", out["loss_actor"] * 1.0)


class WeightlessLoss(IQLLoss):
    """Ignores the importance weights."""

    use_prioritized_weights = False


class FloatyLoss(IQLLoss):
    """Keeps a coefficient outside of the state dict."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = 0.5


class GraphBreakLoss(IQLLoss):
    """Looks at a value while computing."""

    @dispatch
    def forward(self, tensordict):
        out = super().forward(tensordict)
        if out["loss_value"].mean().item() < -1:
            out["loss_value"] = out["loss_value"] * 2
        return out


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (LeakyLoss, "only in part"),
        (ScribblingLoss, "wrote"),
        (MasklessLoss, "masked"),
        (AttachedLoss, "must be detached"),
        (WeightlessLoss, "priority weights"),
        (FloatyLoss, "must be buffers"),
        (GraphBreakLoss, "item"),
    ],
)
def test_suite_finds_the_defect(broken, message):
    loss, batch = iql()
    networks = loss.actor_network, list(loss.qvalue_network), loss.value_network
    with pytest.raises(Exception, match=message):
        check_loss(broken(*networks), batch)


def test_suite_works_on_a_loss_from_elsewhere():
    class Squared(LossModule):
        @dataclass
        class _AcceptedKeys:
            action: NestedKey = "action"
            priority_weight: NestedKey = "priority_weight"

        default_keys = _AcceptedKeys
        in_keys = ["observation"]  # noqa: RUF012
        out_keys = ["loss_fit"]  # noqa: RUF012

        def __init__(self):
            super().__init__()
            self.reduction = "mean"
            self.net = torch.nn.Linear(3, 1)

        def _forward_value_estimator_keys(self, **kwargs):
            return None

        def forward(self, tensordict):
            rows = self.net(tensordict["observation"]).squeeze(-1).square()
            weights = self._maybe_get_priority_weight(tensordict)
            return TensorDict({"loss_fit": self._reduce_loss(rows, tensordict, weights=weights)})

    loss = Squared()
    with pytest.raises(TypeError):  # no @dispatch: keyword tensors are not understood
        check_loss(loss, iql()[1], compile=False)
