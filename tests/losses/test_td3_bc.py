"""TD3+BC: numbers by hand, a plain rendition, TorchRL's own, gradients, properties, options."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
import torchrl.objectives as stock
from losses.examples import BOX, continuous_batch, td3_bc
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.data import Bounded, Composite
from torchrl.modules import Actor, ValueOperator

from composerl.envs.spaces import Spaces
from composerl.losses import TD3BCLoss
from composerl.modules import deterministic_actor, twin_q


class Line(nn.Module):
    """A weighted sum of one-dimensional inputs."""

    def __init__(self, *weights):
        super().__init__()
        self.weights = nn.Parameter(torch.tensor(weights))

    def forward(self, *inputs):
        return sum(w * x for w, x in zip(self.weights, inputs, strict=True))


def by_hand(**options):
    """pi(s) = s / 2 with actions in [-2, 2]; Q_1 = s + 2 a, Q_2 = 2 s + a; two transitions."""
    actor = TensorDictModule(Line(0.5), ["observation"], ["action"])
    critics = [
        TensorDictModule(Line(*w), ["observation", "action"], ["state_action_value"])
        for w in ((1.0, 2.0), (2.0, 1.0))
    ]
    terminated = torch.tensor([[False], [True]])
    batch = TensorDict(
        {
            "observation": torch.tensor([[1.0], [2.0]]),
            "action": torch.tensor([[1.0], [-1.0]]),
            "next": {
                "observation": torch.tensor([[2.0], [4.0]]),
                "reward": torch.tensor([[2.0], [0.0]]),
                "terminated": terminated,
                "done": terminated,
            },
        },
        [2],
    )
    options = {"bounds": (-2.0, 2.0), "policy_noise": 0.0, "gamma": 0.5} | options
    return TD3BCLoss(actor, critics, **options), batch


def test_numbers_by_hand():
    """Critics: a' = pi(2) = 1, Q_1 = 2 + 2 = 4 and Q_2 = 4 + 1 = 5, so that y = 2 + 0.5 * 4 = 4 for
    the first row and y = 0 for the second, which is terminal. Q(s, a) is (3, 3) and (0, 3): the
    losses are (3 - 4)² + (3 - 4)² = 2 and 0² + 3² = 9, the priorities 1 and 9.

    Actor: pi(s) = (0.5, 1), Q_1 = (1 + 1, 2 + 2) = (2, 4), lambda = 2.5 / 3. In half ranges of 2
    the actions are (0.5 - 1) / 2 and (1 + 1) / 2 off: squares 1/16 and 1. The losses are
    1/16 - 5/3 and 1 - 10/3.

    Its gradient by w in pi(s) = w s: Q_1 = s + 2 w s has 2 s, on average 3, times lambda 2.5; the
    squares have (w s - a) s / 2 = (-0.25, 2), on average 0.875. In all -1.625; if lambda had a
    gradient, Q's would cancel and 0.875 be left.
    """
    loss, batch = by_hand()
    out = loss(batch)
    assert out["loss_qvalue"].item() == pytest.approx(5.5)
    assert batch["td_error"].tolist() == [1.0, 9.0]
    assert out["loss_actor"].item() == pytest.approx((1 / 16 + 1) / 2 - 2.5)
    assert out["bc_loss"].item() == pytest.approx((1 / 16 + 1) / 2)
    assert out["lmbd"].item() == pytest.approx(2.5 / 3)
    assert out["state_action_value_actor"].item() == pytest.approx(3.0)
    assert out["pred_value"].item() == pytest.approx((3 + 3 + 0 + 3) / 4)
    assert out["target_value"].item() == pytest.approx(2.0)
    assert out["next_state_value"].item() == pytest.approx((4 + 8) / 2)
    out["loss_actor"].backward()
    assert loss.actor_network.module.weights.grad.item() == pytest.approx(-1.625)
    loss.reduction = "none"
    assert loss(batch)["loss_actor"].tolist() == pytest.approx([1 / 16 - 5 / 3, 1 - 10 / 3])


def test_rows_that_do_not_count_are_not_in_lambda():
    """Only the second row: lambda = 2.5 / 4 and the loss 1 - 2.5."""
    loss, batch = by_hand()
    batch["collector", "mask"] = torch.tensor([[False], [True]])
    out = loss(batch)
    assert out["lmbd"].item() == pytest.approx(2.5 / 4)
    assert out["loss_actor"].item() == pytest.approx(-1.5)


def test_without_alpha_it_is_td3():
    loss, batch = by_hand(alpha=None)
    out = loss(batch)
    assert list(out.keys()) == loss.out_keys
    assert not {"bc_loss", "lmbd"} & set(out.keys())
    assert out["loss_actor"].item() == pytest.approx(-3.0)
    assert out["loss_qvalue"].item() == pytest.approx(5.5)


def test_noise_of_the_target_is_clipped_and_so_are_its_actions():
    """pi(s') = 1 in half ranges of 2: noise that always reaches its clip of 0.25 gives 0.5 or 1.5,
    whose least values are 2 + 2 * 0.5 = 3 and 2 + 2 * 1.5 = 5; a clip of 0.5 gives 0 or 2; one of 3
    leaves the box, and gives its ends, -2 and 2."""
    for clip, expected in ((0.25, {3.0, 5.0}), (0.5, {2.0, 6.0}), (3.0, {-2.0, 6.0})):
        loss, batch = by_hand(policy_noise=1e9, noise_clip=clip, reduction="none")
        values = {loss(batch.clone())["next_state_value"][0].item() for _ in range(50)}
        assert values == expected


def test_a_second_rendition():
    loss, batch = td3_bc(policy_noise=0.3, noise_clip=0.4, gamma=0.9, alpha=1.5)
    for p in (*loss.target_qvalue_network.parameters(), *loss.target_actor_network.parameters()):
        p.add_(0.1)
    torch.manual_seed(4)
    out = loss(batch.clone())
    torch.manual_seed(4)
    half = torch.tensor([2.0, 1.0])
    obs, action, later = batch["observation"], batch["action"], batch["next"]
    next_action = loss.target_actor_network.module(later["observation"])
    noise = (torch.randn_like(next_action) * 0.3).clamp(-0.4, 0.4) * half
    next_action = (next_action + noise).minimum(half).maximum(-half)
    q1, q2 = (net.module(later["observation"], next_action) for net in loss.target_qvalue_network)
    target = later["reward"] + 0.9 * torch.minimum(q1, q2) * (~later["terminated"]).float()
    errors = [(net.module(obs, action) - target).square() for net in loss.qvalue_network]
    torch.testing.assert_close(out["loss_qvalue"], sum(errors).mean())
    mine = loss.actor_network.module(obs)
    q = loss.qvalue_network[0].module(obs, mine)
    imitation = ((mine - action) / half).square().mean()
    expected = -1.5 * q.mean() / q.abs().mean() + imitation
    torch.testing.assert_close(out["loss_actor"], expected)


@pytest.mark.parametrize("loss_function", ["l2", "smooth_l1"])
def test_torchrl_s_own_where_actions_are_in_the_unit_box(loss_function):
    """Without noise, as the two draw it at different times."""
    spaces = Spaces(obs_shape=(3,), low=(-1.0, -1.0), high=(1.0, 1.0))
    torch.manual_seed(0)
    networks = deterministic_actor(spaces, (8,)), twin_q(spaces, (8,))
    options = {"policy_noise": 0.0, "loss_function": loss_function, "alpha": 1.0}
    ours = TD3BCLoss(*deepcopy(networks), **options)
    theirs = stock.TD3BCLoss(*networks, action_spec=networks[0].spec, **options)
    theirs.make_value_estimator(gamma=0.99)
    batch = continuous_batch()
    mine, other = ours(batch.clone()), theirs(batch.clone())
    assert set(mine.keys()) == set(other.keys()) - {"td_error"}
    for key, value in other.items():
        torch.testing.assert_close(mine[key], value.mean(), msg=lambda m, k=key: f"{k}: {m}")


def test_each_loss_moves_its_own_networks_only():
    loss, batch = td3_bc()
    out = loss(batch)
    for key, network in (("loss_actor", "actor_network"), ("loss_qvalue", "qvalue_network")):
        loss.zero_grad()
        out[key].backward(retain_graph=True)
        moved = {name.split(".")[0] for name, p in loss.named_parameters() if p.grad is not None}
        assert moved == {network}
    assert all(p.grad is None for p in loss.target_actor_network.parameters())
    assert all(p.requires_grad for p in loss.qvalue_network.parameters())  # frozen for a moment


def test_the_scale_of_values_does_not_matter_to_the_policy():
    """That is what lambda is for: ten times the critic, the same loss and gradient of the actor."""
    gradients = []
    for scale in (1.0, 10.0):
        loss, batch = td3_bc()
        with torch.no_grad():
            for p in loss.qvalue_network[0].module.trunk[-1].parameters():
                p.mul_(scale)
        out = loss(batch)
        out["loss_actor"].backward()
        gradients.append([out["loss_actor"], *(p.grad for p in loss.actor_network.parameters())])
    torch.testing.assert_close(*gradients)


def test_small_alpha_clones():
    loss, batch = td3_bc(alpha=1e-6)
    adam = torch.optim.Adam(loss.actor_network.parameters(), lr=1e-2)
    for _ in range(400):
        adam.zero_grad()
        loss(batch)["loss_actor"].backward()
        adam.step()
    assert loss(batch)["bc_loss"] < 1e-2


def test_stock_networks_and_keys():
    """TorchRL's Actor and ValueOperator, an action of another name, a sequence as actor."""
    torch.manual_seed(0)
    spec = Bounded(torch.tensor([-2.0, -1.0]), torch.tensor([2.0, 1.0]))
    body = TensorDictModule(nn.Linear(3, 2), ["observation"], ["hidden"])
    last = TensorDictModule(nn.Tanh(), ["hidden"], ["move"])
    batch = continuous_batch().rename_key_("action", "move")
    critic = ValueOperator(nn.Bilinear(3, 2, 1), in_keys=["observation", "move"])
    for actor in (
        Actor(nn.Linear(3, 2), ["observation"], ["move"], spec=Composite(move=spec)),
        TensorDictSequential(body, last),
    ):
        loss = TD3BCLoss(actor, critic, action_spec=spec)
        loss.set_keys(action="move")
        assert "move" in loss.in_keys
        loss(batch)["loss_actor"].backward()
        assert all(p.grad is not None for p in actor.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.0}, r"alpha must be in \(0, inf\), got 0.0"),
        ({"policy_noise": -0.1}, "policy_noise"),
        ({"noise_clip": -1.0}, "noise_clip"),
        ({"bounds": (1.0, -1.0)}, "lower bounds must be below"),
        ({"bounds": (-1.0, 1.0), "action_spec": Bounded(-1, 1, (2,))}, "pass one of them"),
        ({"num_qvalue_nets": 3}, "needs as many networks"),
        ({"priority_key": "p"}, "set_keys"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        td3_bc(**options)


def test_bounds_are_needed():
    actor = TensorDictModule(nn.Linear(3, 2), ["observation"], ["action"])
    with pytest.raises(ValueError, match="bounded actions are needed"):
        TD3BCLoss(actor, twin_q(BOX, (8,)))


def test_without_delay_there_are_no_copies():
    loss, batch = td3_bc(delay_actor=False, delay_qvalue=False)
    assert loss.target_actor_network is loss.actor_network
    assert loss.target_qvalue_network is loss.qvalue_network
    loss(batch)
