"""What the losses share: coefficients, calls of networks, the way from rows to losses."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from tensordict import NestedKey, TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torch.distributions import Categorical
from torchrl.modules import (
    MaskedCategorical,
    MaskedOneHotCategorical,
    OneHotCategorical,
    ProbabilisticActor,
)

from composerl.losses import BCLoss
from composerl.losses.calling import call_network
from composerl.losses.common import RowLoss
from composerl.losses.reading import read


class Toy(RowLoss):
    """Two rows: a loss, a metric that has a gradient, a metric for all, a priority."""

    @dataclass
    class _AcceptedKeys:
        value: NestedKey = "x"
        priority: NestedKey = "td_error"
        priority_weight: NestedKey = "priority_weight"

    default_keys = _AcceptedKeys
    default_value_estimator = None
    out_keys = ["loss_toy", "metric", "constant"]  # noqa: RUF012

    def __init__(self, weight=2.0, reduction=None):
        super().__init__(reduction)
        self.network = nn.Linear(1, 1)
        self.coefficient("weight", weight, "[0, 10)", symbol="w")

    def reads(self):
        return [self.tensor_keys.value, self.tensor_keys.value]

    def rows(self, batch, mask):
        x = self.weight * read(batch, self.tensor_keys.value) + 0 * self.network.bias
        return {"loss_toy": x, "metric": -x, "constant": self.weight, "priority": x.detach().abs()}


@pytest.mark.parametrize("weight", [-1.0, 10.0, float("nan"), True, "2", None])
def test_a_coefficient_outside_its_interval_is_refused_by_name(weight):
    with pytest.raises(ValueError, match=r"weight \(w\) must be in \[0, 10\), got"):
        Toy(weight)


def test_a_coefficient_is_a_float_buffer():
    loss = Toy(3)
    assert loss.state_dict()["weight"].dtype == torch.float32
    assert loss.double().weight == 3.0
    assert loss.weight.dtype == torch.float64


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("mean", [6.0, -6.0, 2.0]), ("sum", [12.0, -6.0, 2.0]), (None, [6.0, -6.0, 2.0])],
)
def test_rows_become_losses_and_metrics(reduction, expected):
    """Rows 2 * (1, 5): losses are reduced, metrics averaged and detached, one number kept."""
    loss, batch = Toy(reduction=reduction), TensorDict({"x": torch.tensor([1.0, 5.0])}, [2])
    out = loss(batch)
    assert [out[key].item() for key in loss.out_keys] == expected
    assert [out[key].requires_grad for key in loss.out_keys] == [True, False, False]
    assert batch["td_error"].tolist() == [2.0, 10.0]
    assert loss.in_keys == ["x"]  # once
    loss.set_keys(value="y", priority="p")
    assert loss.in_keys == ["y"]
    loss(batch.rename_key_("x", "y"))
    assert batch["p"].tolist() == [2.0, 10.0]


def test_masked_rows_count_nowhere():
    loss = Toy(reduction="none")
    mask = torch.tensor([[True], [False]])
    batch = TensorDict({"x": torch.tensor([1.0, torch.nan]), ("collector", "mask"): mask}, [2])
    out = loss(batch)
    assert out.batch_size == (2,)
    assert out["loss_toy"].tolist() == [2.0, 0.0]
    assert out["metric"].tolist() == [-2.0, 0.0]
    assert out["constant"].tolist() == [2.0, 2.0]
    assert batch["td_error"].tolist() == [2.0, 0.0]
    assert batch["x"].isnan().any()  # the input is left as it was
    loss.reduction = "mean"
    assert loss(batch)["loss_toy"] == 2.0


def networks():
    """One network that is called directly and one that needs a TensorDict, equal otherwise."""
    torch.manual_seed(0)

    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(3.0))

        def forward(self, observation, action):
            return self.weight * observation * action

    plain = TensorDictModule(Product(), in_keys=["observation", "action"], out_keys=["q"])
    return plain, TensorDictSequential(plain)


@pytest.mark.parametrize("network", networks())
def test_networks_are_called_on_the_batch_and_what_is_given(network):
    """3 * observation * action: 3 * 2 * 5 = 30 here, 3 * 7 * 5 at the next step."""
    action = torch.full((4, 1), 5.0)
    batch = TensorDict({"observation": torch.full((4, 1), 2.0), "action": action,
                        ("next", "observation"): torch.full((4, 1), 7.0)}, [4])  # fmt: skip
    assert torch.equal(call_network(network, batch, "q"), torch.full((4, 1), 30.0))
    later = call_network(network, batch, "q", given={"action": action}, next_step=True)
    assert torch.equal(later, torch.full((4, 1), 105.0))
    many = torch.arange(3.0).view(3, 1, 1).expand(3, 4, 1).clone().requires_grad_()
    for frozen in (False, True):
        network.zero_grad()
        many.grad = None
        out = call_network(network, batch, "q", given={"action": many}, lead=(3,), frozen=frozen)
        assert torch.equal(out[:, 0, 0], torch.tensor([0.0, 6.0, 12.0]))
        out.sum().backward()
        assert torch.equal(many.grad, torch.full((3, 4, 1), 6.0))
        (weight,) = network.parameters()
        assert (weight.grad is None) == frozen


@pytest.mark.parametrize("network", networks())
def test_what_does_not_fit_is_refused_by_name(network):
    batch = TensorDict({"observation": torch.ones(4, 2), "action": torch.ones(4, 3)}, [4])
    with pytest.raises(ValueError, match=r"fails on inputs .*'observation': \(4, 2\)"):
        call_network(network, batch, "q")
    with pytest.raises(KeyError, match="no entry 'action'; it has"):
        call_network(network, batch.exclude("action"), "q")
    with pytest.raises(ValueError, match=r"entry 'action' must have shape \(4, 2\), got \(4, 3\)"):
        read(batch, "action", (2,))


def test_an_output_that_is_not_written_is_named():
    batch = TensorDict({"observation": torch.ones(4, 1), "action": torch.ones(4, 1)}, [4])
    with pytest.raises(ValueError, match=r"must write 'value', it writes \['q'\]"):
        call_network(networks()[1], batch, "value")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("form", ["(B,)", "(B, 1)", "bool", "int", "float"])
def test_discrete_actions_of_every_form_and_distribution(form, one_hot, masked):
    """Logits (0, 1, 2) for every row: log-softmax over all three, or over the two allowed ones."""
    network = TensorDictModule(
        lambda observation: torch.arange(3.0).expand(len(observation), 3),
        in_keys=["observation"],
        out_keys=["logits"],
    )
    kinds = {(False, False): Categorical, (True, False): OneHotCategorical,
             (False, True): MaskedCategorical, (True, True): MaskedOneHotCategorical}  # fmt: skip
    keys = {"logits": "logits", **({"mask": "action_mask"} if masked else {})}
    actor = ProbabilisticActor(network, in_keys=keys, distribution_class=kinds[one_hot, masked])
    index = torch.tensor([0, 1, 1, 0])
    hot = nn.functional.one_hot(index, 3)
    action = {"(B,)": index, "(B, 1)": index.unsqueeze(-1), "bool": hot.bool(), "int": hot,
              "float": hot.float()}[form]  # fmt: skip
    mask = torch.tensor([True, True, not masked]).expand(4, 3)
    batch = TensorDict({"observation": torch.zeros(4, 2), "action": action,
                        "action_mask": mask}, [4])  # fmt: skip
    loss = BCLoss(actor, reduction="none")
    logits = torch.arange(3.0)[: 2 if masked else 3]
    torch.testing.assert_close(loss(batch)["loss_bc"], -logits.log_softmax(0)[index])
    assert ("action_mask" in loss.in_keys) == masked
