"""GAIL's discriminator: numbers by hand, its optimum, the gradient penalty, two batch sizes."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from losses.examples import gail
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.objectives import GAILLoss as StockGAILLoss

from composerl.envs.spaces import Spaces
from composerl.losses import GAILLoss, discriminator_loss
from composerl.modules import discriminator
from composerl.testing import check_loss
from composerl.update import Update


class Linear(nn.Module):
    """l = w . (observation, action) + b; remembers what it was called on."""

    def __init__(self, weight, bias=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))
        self.bias = nn.Parameter(torch.tensor(bias))
        self.calls = []

    def forward(self, observation, action):
        self.calls.append((observation.detach(), action.detach()))
        return torch.cat([observation, action], -1) @ self.weight.unsqueeze(-1) + self.bias


class Probability(Linear):
    """What TorchRL's loss wants of a discriminator."""

    def forward(self, observation, action):
        return super().forward(observation, action).sigmoid()


def linear(weight, bias=0.0):
    return TensorDictModule(Linear(weight, bias), ["observation", "action"], ["logits"])


def rows(observation, action):
    observation, action = torch.as_tensor(observation), torch.as_tensor(action)
    return TensorDict({"observation": observation, "action": action}, [len(observation)])


def both(policy, expert):
    """A batch of two sizes: entries of a TensorDict without batch size."""
    return TensorDict({**dict(policy.items()), "expert": expert})


def drawn(policy=6, expert=4, obs=3, actions=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        rows(torch.randn(n, obs, generator=generator), torch.randn(n, actions, generator=generator))
        for n in (policy, expert)
    ]


def test_by_hand():
    """l = 2 o + a. Policy (0, 0), (1, -2): l = 0, 0. Expert (1, 1): l = 3.

    BCE of the policy, softplus(l): log 2 twice; of the expert, softplus(l) - l = log(1 + e^-3).
    The loss is half the sum of their means. l = 0 counts as told right for the policy only.
    """
    loss = GAILLoss(linear([2.0, 1.0]))
    out = loss(both(rows([[0.0], [1.0]], [[0.0], [-2.0]]), rows([[1.0]], [[1.0]])))
    expected = 0.5 * (math.log(2) + math.log1p(math.exp(-3)))
    assert out["loss_discriminator"].item() == pytest.approx(expected, rel=1e-6)
    assert out["logits_policy"].item() == 0
    assert out["logits_expert"].item() == pytest.approx(3)
    assert out["accuracy_policy"].item() == 1
    assert out["accuracy_expert"].item() == 1
    p = 1 / (1 + math.exp(-3))
    coin = -p * math.log(p) - (1 - p) * math.log(1 - p)
    assert out["entropy"].item() == pytest.approx(0.5 * (math.log(2) + coin), rel=1e-5)
    assert sorted(out.keys()) == sorted(loss.out_keys)


def test_cross_entropy_is_torch_s():
    logits, label = torch.linspace(-40, 40, 17), torch.linspace(0, 1, 17)
    expected = F.binary_cross_entropy_with_logits(logits, label, reduction="none")
    torch.testing.assert_close(discriminator_loss(logits, label), expected, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize(("policy", "expert"), [(6, 4), (3, 50), (8, 8), (5, 1)])
def test_each_side_counts_half_whatever_its_size(policy, expert):
    net = linear([0.3, -1.0, 2.0, 0.5, 0.1], 0.7)
    mine, theirs = drawn(policy, expert)
    out = GAILLoss(net)(both(mine, theirs))["loss_discriminator"]
    logits = [net(side)["logits"] for side in (mine, theirs)]
    expected = 0.5 * sum(
        F.binary_cross_entropy_with_logits(x, torch.full_like(x, y))
        for x, y in zip(logits, (0.0, 1.0), strict=True)
    )
    torch.testing.assert_close(out, expected)
    by_keyword = GAILLoss(net)(
        observation=mine["observation"], action=mine["action"],
        expert_observation=theirs["observation"], expert_action=theirs["action"],
    )  # fmt: skip
    torch.testing.assert_close(by_keyword[0], expected)


def test_pairs_are_the_same_as_two_batches_of_one_size():
    mine, theirs = drawn(8, 8)
    for options in ({}, {"entropy_coeff": 0.3, "label_smoothing": 0.1}):
        loss = GAILLoss(linear([0.3, -1.0, 2.0, 0.5, 0.1]), **options)
        paired = loss(mine.clone().set("expert", theirs))
        unpaired = loss(both(mine, theirs))
        for key in loss.out_keys:
            torch.testing.assert_close(paired[key], unpaired[key])


@pytest.mark.parametrize("sizes", [(20_000, 20_000), (20_000, 5_000)])
def test_optimum_is_the_log_ratio_of_two_gaussians(sizes):
    """Expert N(1, 1), policy N(-0.5, 1): log p_e / p_pi = 1.5 x - (1 - 0.25) / 2.

    The action is 0 throughout, so a linear discriminator can express the optimum exactly; to which
    of the two there are more rows must not matter.
    """
    torch.manual_seed(0)
    policy = rows(torch.randn(sizes[0], 1) - 0.5, torch.zeros(sizes[0], 1))
    expert = rows(torch.randn(sizes[1], 1) + 1.0, torch.zeros(sizes[1], 1))
    loss = GAILLoss(linear([0.0, 0.0]))
    update = Update(loss, lr=0.05)
    for _ in range(300):
        update(both(policy, expert))
    network = loss.discriminator_network.module
    assert network.weight[0].item() == pytest.approx(1.5, abs=0.05)
    assert network.bias.item() == pytest.approx(-0.375, abs=0.05)


def test_a_network_finds_the_log_ratio_too():
    """Expert N(0, 1), policy N(0, 2): log p_e / p_pi = log 2 - 3/8 x^2."""
    torch.manual_seed(0)
    spaces = Spaces(obs_shape=(1,), low=(-1.0,), high=(1.0,))
    network = discriminator(spaces, (32, 32), activation="tanh")
    update = Update(GAILLoss(network), lr=6e-3)
    for _ in range(400):
        policy = rows(2 * torch.randn(1000, 1), torch.zeros(1000, 1))
        expert = rows(torch.randn(1000, 1), torch.zeros(1000, 1))
        network.observe(policy["observation"], expert["observation"])
        update(both(policy, expert))
    x = torch.linspace(-2, 2, 21).unsqueeze(-1)
    logits = network(rows(x, torch.zeros_like(x)))["logits"].detach()
    assert (logits - (math.log(2) - 0.375 * x.square())).abs().max() < 0.25


# ---- gradient penalty --------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(6, 4), (4, 6), (5, 5), (5, 1)])
def test_penalty_of_a_linear_discriminator(sizes):
    """The slope of w . x is w everywhere: the penalty is lambda (|w| - 1)^2 for any mixture.

    |(2, -1, 2, 0, 4)| = 5, so it is 10 * 16 = 160.
    """
    loss = GAILLoss(linear([2.0, -1.0, 2.0, 0.0, 4.0]), gp_lambda=10.0)
    out = loss(both(*drawn(*sizes)))
    assert out["loss_gradient_penalty"].item() == pytest.approx(160.0, rel=1e-5)
    out["loss_gradient_penalty"].backward()
    # d/dw lambda (|w| - 1)^2 = 2 lambda (|w| - 1) w / |w| = 16 w
    weight = loss.discriminator_network.module.weight
    torch.testing.assert_close(weight.grad, 16 * weight.detach())


@pytest.mark.parametrize("sizes", [(6, 4), (4, 6), (5, 5)])
def test_penalty_mixes_whole_rows(sizes):
    """Each mixture lies between policy row i and expert row i mod E, at one place for all of it."""
    loss = GAILLoss(linear([1.0] * 5), gp_lambda=1.0)
    policy, expert = drawn(*sizes)
    loss(both(policy, expert))
    _, mixed = loss.discriminator_network.module.calls
    start = torch.cat([policy["observation"], policy["action"]], 1)
    index = torch.arange(sizes[0]) % sizes[1]
    end = torch.cat([expert["observation"], expert["action"]], 1)[index]
    place = (torch.cat(mixed, 1) - start) / (end - start)
    assert place.shape == (sizes[0], 5)
    torch.testing.assert_close(place, place[:, :1].expand(-1, 5), atol=1e-4, rtol=1e-3)
    assert ((place > 0) & (place < 1)).all()
    assert place[:, 0].std() > 0.05


def test_penalty_by_autograd():
    """A second rendition, by torch.autograd.grad at the same mixtures."""
    torch.manual_seed(0)
    spaces = Spaces(obs_shape=(3,), low=(-1.0, -1.0), high=(1.0, 1.0))
    network = discriminator(spaces, (16,), activation="tanh")
    policy, expert = drawn(7, 7)
    torch.manual_seed(3)
    out = GAILLoss(network, gp_lambda=2.0)(both(policy, expert))["loss_gradient_penalty"]
    torch.manual_seed(3)
    share = torch.rand(7, 1)
    mixed = [
        (share * expert[key] + (1 - share) * policy[key]).requires_grad_()
        for key in ("observation", "action")
    ]
    slopes = torch.autograd.grad(network.module(*mixed).sum(), mixed)
    expected = 2 * (torch.cat(slopes, 1).norm(dim=1) - 1).square().mean()
    torch.testing.assert_close(out.detach(), expected)


def test_penalty_off_costs_nothing():
    loss = GAILLoss(linear([1.0] * 5))
    before = torch.random.get_rng_state()
    out = loss(both(*drawn()))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert len(loss.discriminator_network.module.calls) == 1
    assert "loss_gradient_penalty" not in out.keys()  # noqa: SIM118
    assert "loss_gradient_penalty" not in loss.out_keys


# ---- options -----------------------------------------------------------------------------


def test_entropy_bonus_and_label_smoothing_by_hand():
    """l = 1 on both sides, s = 0.1, c_H = 0.5.

    BCE: softplus(1) - 0.1 for the policy, softplus(1) - 0.9 for the expert, so softplus(1) - 0.5
    in the mean; H = softplus(1) - sigmoid(1).
    """
    loss = GAILLoss(linear([0.0, 0.0], 1.0), entropy_coeff=0.5, label_smoothing=0.1)
    out = loss(both(*drawn(3, 2, 1, 1)))
    softplus, sigmoid = math.log1p(math.e), 1 / (1 + math.exp(-1))
    expected = softplus - 0.5 - 0.5 * (softplus - sigmoid)
    assert out["loss_discriminator"].item() == pytest.approx(expected, rel=1e-5)


def test_label_smoothing_bounds_the_logits():
    """Where only the expert goes the optimum is log((1 - s) / s), instead of infinity."""
    loss = GAILLoss(linear([0.0, 0.0]), label_smoothing=0.05)
    update = Update(loss, lr=0.05)
    batch = both(rows([[-1.0]], [[0.0]]), rows([[1.0]], [[0.0]]))
    for _ in range(500):
        update(batch)
    out = loss(batch)
    assert out["logits_expert"].item() == pytest.approx(math.log(19), abs=1e-2)
    assert out["logits_policy"].item() == pytest.approx(-math.log(19), abs=1e-2)


def test_expert_actions_in_every_form():
    loss, batch = gail(3)
    expected = loss(batch)["loss_discriminator"]
    index = batch["expert", "action"]
    for form in (index.unsqueeze(-1), F.one_hot(index, 3), F.one_hot(index, 3).float()):
        other = batch.clone()
        other["expert", "action"] = form
        torch.testing.assert_close(loss(other)["loss_discriminator"], expected)


@pytest.mark.parametrize(("policy", "expert"), [("collector_", ""), ("", "expert_"), ("p_", "e_")])
def test_torchrl_s_names_and_layout(policy, expert):
    """TorchRL's loss by its own names of the keys, whatever they are set to; half its sum is ours.

    Its network ends in a sigmoid, ours does not.
    """
    mine, theirs = drawn(8, 8)
    weight = [0.3, -1.0, 2.0, 0.5, 0.1]
    batch = TensorDict(
        {
            f"{policy}observation": mine["observation"], f"{policy}action": mine["action"],
            f"{expert}observation": theirs["observation"], f"{expert}action": theirs["action"],
        },
        [8],
    )  # fmt: skip
    names = {
        "collector_observation": f"{policy}observation", "collector_action": f"{policy}action",
        "expert_observation": f"{expert}observation", "expert_action": f"{expert}action",
    }  # fmt: skip
    reads = [names["expert_observation"], names["expert_action"]]
    stock = StockGAILLoss(TensorDictModule(Probability(weight), reads, ["d_logits"]))
    stock.set_keys(**names)
    loss = GAILLoss(TensorDictModule(Linear(weight), reads, ["d_logits"]))
    loss.set_keys(**names)
    assert {*loss.in_keys} == {*batch.keys()}
    assert {name: getattr(loss.tensor_keys, name) for name in names} == names
    assert loss.tensor_keys.discriminator_pred == "d_logits"
    torch.testing.assert_close(loss(batch)["loss_discriminator"], stock(batch)["loss"] / 2)
    loss.set_keys(collector_action=None)
    assert loss.tensor_keys.action == "action"


def test_penalty_by_torchrl_s_arguments():
    def make(**options):
        return GAILLoss(linear([2.0, -1.0, 2.0, 0.0, 4.0]), **options)

    batch = both(*drawn())
    penalty = make(use_grad_penalty=True)(batch)["loss_gradient_penalty"]  # 10 (|w| - 1)^2
    assert penalty.item() == pytest.approx(160.0, rel=1e-5)
    penalty = make(use_grad_penalty=True, gp_lambda=1.0)(batch)["loss_gradient_penalty"]
    assert penalty.item() == pytest.approx(16.0, rel=1e-5)
    for off in ({}, {"use_grad_penalty": False, "gp_lambda": 10.0}, {"gp_lambda": 0.0}):
        assert not make(**off).use_grad_penalty
        assert "loss_gradient_penalty" not in make(**off)(batch).keys()  # noqa: SIM118


def test_probabilities_are_refused():
    network = nn.Sequential(Linear([1.0, 1.0]), nn.Sigmoid())
    with pytest.raises(ValueError, match="must write logits: leave out its last Sigmoid"):
        GAILLoss(TensorDictModule(network, ["observation", "action"], ["d_logits"]))


def test_other_networks_work():
    """A TensorDictModule with keys of its own, and one that is no plain module call."""
    from tensordict.nn import TensorDictSequential

    mine, theirs = drawn(6, 4)
    expected = GAILLoss(linear([0.3, -1.0, 2.0, 0.5, 0.1]))(both(mine, theirs))
    named = TensorDictModule(Linear([0.3, -1.0, 2.0, 0.5, 0.1]), ["s", "a"], ["d"])
    for network in (named, TensorDictSequential(named)):
        loss = GAILLoss(network)
        loss.set_keys(discriminator_pred="d")
        out = loss(both(mine, theirs))["loss_discriminator"]
        torch.testing.assert_close(out, expected["loss_discriminator"])


def test_mask_and_weights_of_unpaired_rows_are_the_policy_s():
    mine, theirs = drawn(6, 4)
    loss = GAILLoss(linear([0.3, -1.0, 2.0, 0.5, 0.1]), gp_lambda=1.0)
    torch.manual_seed(0)
    expected = loss(both(mine[:4], theirs))["loss_discriminator"]
    mask = torch.ones(6, 1, dtype=torch.bool)
    mask[4:] = False
    padded = mine.clone()
    padded["observation"][4:] = torch.nan
    batch = both(padded, theirs)
    batch["collector", "mask"] = mask
    torch.testing.assert_close(loss(batch)["loss_discriminator"], expected)
    weighted = both(mine, theirs)
    weighted["priority_weight"] = mask.squeeze(-1).float()
    torch.testing.assert_close(loss(weighted)["loss_discriminator"], expected)
    loss.reduction = "none"
    out = loss(both(mine, theirs))
    assert out["loss_discriminator"].shape == (6,)
    assert out["logits_expert"].shape == (4,)
    with pytest.raises(ValueError, match=r"'priority_weight' has 3 rows, but 'observation' has 6"):
        loss(both(mine, theirs).set("priority_weight", torch.ones(3)))


def test_batches_of_more_dimensions():
    mine, theirs = drawn(8, 8)
    loss = GAILLoss(linear([0.3, -1.0, 2.0, 0.5, 0.1]))
    expected = loss(both(mine, theirs))["loss_discriminator"]
    shaped = mine.clone().set("expert", theirs).reshape(2, 4)
    torch.testing.assert_close(loss(shaped)["loss_discriminator"], expected)


@pytest.mark.parametrize(
    "options",
    [
        {"actions": None},
        {"actions": 3, "gp_lambda": 10.0},
        {"actions": None, "gp_lambda": 1.0, "entropy_coeff": 0.1, "label_smoothing": 0.1},
    ],
)
def test_conforms_with_options(options):
    loss, batch = gail(**options)
    check_loss(loss, batch, num_actions=options["actions"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gp_lambda": -1.0}, "gp_lambda"),
        ({"entropy_coeff": -0.1}, "entropy_coeff"),
        ({"label_smoothing": 0.5}, "label_smoothing"),
        ({"num_actions": 1}, "num_actions"),
        ({"reduction": "median"}, "reduction"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        GAILLoss(linear([1.0, 1.0]), **options)


def test_bad_inputs_name_the_entry():
    with pytest.raises(ValueError, match="two entries, observation and action, got in_keys"):
        GAILLoss(TensorDictModule(nn.Linear(3, 1), ["observation"], ["logits"]))
    loss, batch = gail(3)
    other = batch.clone()
    other["expert", "action"] = torch.zeros(8, 5, dtype=torch.long)
    with pytest.raises(ValueError, match=r"\('expert', 'action'\) must be integers .* \(8, 5\)"):
        loss(other)
    with pytest.raises(KeyError, match=r"no entry \('expert', 'observation'\)"):
        loss(batch.select("observation", "action"))
    continuous, pairs = gail(None)
    with pytest.raises(ValueError, match=r"'action' must be floats .* need num_actions"):
        continuous(pairs.set("action", torch.zeros(8, dtype=torch.long)))
