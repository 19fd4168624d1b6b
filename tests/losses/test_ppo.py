"""Clipped PPO: numbers by hand, TorchRL's own loss, value clipping, entropy, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from losses.examples import ppo
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from composerl.envs.spaces import Spaces
from composerl.losses import ClipPPOLoss, clipped_objective
from composerl.modules import categorical_actor, gaussian_actor, tanh_gaussian_actor, value
from composerl.testing import check_loss
from composerl.update import Update

ONE = Spaces(obs_shape=(1,), num_actions=2)


def coin(logit=0.0, worth=0.0):
    """A policy with probability sigmoid(logit) of action 1, and a constant value."""
    actor = categorical_actor(ONE, ())
    critic = value(ONE, ())
    with torch.no_grad():
        for p in [*actor.parameters(), *critic.parameters()]:
            p.zero_()
        actor.module[0].module.trunk[-1].bias[1] = logit
        critic.module[-1].bias.fill_(worth)
    return actor, critic


def step(action=1, log_prob=-0.7, advantage=1.0, target=0.0, old=0.0):
    return TensorDict(
        {
            "observation": torch.zeros(1, 1),
            "action": torch.tensor([action]),
            "action_log_prob": torch.tensor([log_prob]),
            "advantage": torch.tensor([[advantage]]),
            "value_target": torch.tensor([[target]]),
            "state_value": torch.tensor([[old]]),
        },
        [1],
    )


@pytest.mark.parametrize(
    ("old", "advantage", "expected", "clipped", "moves"),
    [
        (0.5, 2.0, -2.0, 0, True),  # ratio 1
        (0.25, 2.0, -2.4, 1, False),  # ratio 2, to go up: paid as 1.2
        (0.25, -2.0, 4.0, 1, True),  # ratio 2, to go down: in full
        (1.0, -2.0, 1.6, 1, False),  # ratio 0.5, to go down: as 0.8
        (1.0, 2.0, -1.0, 1, True),  # ratio 0.5, to go up: in full
    ],
)
def test_objective_by_hand(old, advantage, expected, clipped, moves):
    """pi(1) = 0.5 now and ``old`` then; clip 0.2. KL estimate: rho - 1 - log rho."""
    loss = ClipPPOLoss(*coin(), entropy_coeff=0.0)
    out = loss(step(log_prob=math.log(old), advantage=advantage))
    assert out["loss_objective"].item() == pytest.approx(expected, rel=1e-5)
    assert out["clip_fraction"].item() == clipped
    ratio = 0.5 / old
    assert out["kl_approx"].item() == pytest.approx(ratio - 1 - math.log(ratio), abs=1e-6)
    out["loss_objective"].backward()
    bias = loss.actor_network.module[0].module.trunk[-1].bias
    assert bool(bias.grad.any()) == moves


def test_entropy_bonus_by_hand():
    """A fair coin has entropy log 2; the value network gets none of it."""
    loss = ClipPPOLoss(*coin(), entropy_coeff=0.3)
    out = loss(step())
    assert out["entropy"].item() == pytest.approx(math.log(2))
    assert out["loss_entropy"].item() == pytest.approx(-0.3 * math.log(2))
    assert "loss_entropy" not in ClipPPOLoss(*coin(), entropy_coeff=0.0).out_keys


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (3.0, 0.5 * 4.0),  # V = 1, plainly (1 - 3)^2 = 4; clipped to 0.2 it would be 7.84
        (0.0, 0.5 * 1.0),  # (1 - 0)^2 = 1 is worse than (0.2)^2
    ],
)
def test_value_loss_by_hand(target, expected):
    """V = 1 now and 0 then, clip 0.2: the worse of V and of V moved by no more than 0.2."""
    batch = step(target=target, old=0.0)
    plain = ClipPPOLoss(*coin(worth=1.0), critic_coeff=0.5)(batch)
    assert plain["loss_critic"].item() == pytest.approx(expected)
    near = ClipPPOLoss(*coin(worth=1.0), critic_coeff=0.5, clip_value=0.2)(batch)
    assert near["loss_critic"].item() == pytest.approx(max(expected, 0.5 * (0.2 - target) ** 2))


def test_value_clip_stops_the_gradient_of_what_moved_enough():
    """Towards the target, beyond the clip: no gradient. Away from it: the full one."""
    for target, moves in ((3.0, False), (0.0, True)):
        loss = ClipPPOLoss(*coin(worth=1.0), clip_value=0.2)
        loss(step(target=target))["loss_critic"].backward()
        assert bool(loss.critic_network.module[-1].bias.grad.any()) == moves


@pytest.mark.parametrize(("actions", "make"), [(3, categorical_actor), (None, gaussian_actor)])
@pytest.mark.parametrize("clip_value", [None, 0.3])
def test_equals_torchrl(actions, make, clip_value):
    """Second rendition: torchrl's ClipPPOLoss."""
    from torchrl.objectives import ClipPPOLoss as Reference

    options = {"entropy_coeff": 0.02, "critic_coeff": 0.7, "clip_value": clip_value}
    loss, batch = ppo(actions, make, loss_critic_type="l2", **options)
    reference = Reference(
        loss.actor_network, loss.critic_network, loss_critic_type="l2", clip_epsilon=0.2, **options
    )
    ours, theirs = loss(batch.clone()), reference(batch.clone())
    for key in ("loss_objective", "loss_critic", "loss_entropy", "entropy", "clip_fraction"):
        torch.testing.assert_close(ours[key], theirs[key].mean(), msg=key)


def test_annotate_makes_the_ratio_one():
    for actions, make in ((3, categorical_actor), (None, gaussian_actor)):
        loss, batch = ppo(actions, make)
        given = batch.exclude("action_log_prob").reshape(2, 4)
        out = loss(loss.annotate(given).reshape(-1))
        assert given["action_log_prob"].shape == (2, 4)
        assert not given["action_log_prob"].requires_grad
        assert out["kl_approx"].item() == pytest.approx(0, abs=1e-6)
        assert out["loss_objective"].item() == pytest.approx(-batch["advantage"].mean().item())


def test_entropy_without_closed_form_is_measured():
    """Tanh of a narrow Gaussian at 0 on [-2, 2]: its scale is about 2 sigma."""
    spaces = Spaces(obs_shape=(1,), low=(-2.0,), high=(2.0,))
    actor = tanh_gaussian_actor(spaces, ())
    with torch.no_grad():
        for p in actor.parameters():
            p.zero_()
        actor.module[0].module.trunk[-1].bias[1] = -3.0
    rows = 4000
    batch = TensorDict(
        {
            "observation": torch.zeros(rows, 1),
            "action": torch.zeros(rows, 1),
            "action_log_prob": torch.zeros(rows),
            "advantage": torch.zeros(rows, 1),
            "value_target": torch.zeros(rows, 1),
        },
        [rows],
    )
    torch.manual_seed(0)
    out = ClipPPOLoss(actor, value(spaces, ()))(batch)
    expected = 0.5 * math.log(2 * math.pi * math.e) + math.log(2) - 3.0
    assert out["entropy"].item() == pytest.approx(expected, abs=0.05)
    assert out["loss_entropy"].requires_grad


def test_finds_the_better_action():
    """A bandit with rewards 0 and 1: the policy goes to action 1, its value to the mean return."""
    torch.manual_seed(0)
    loss = ClipPPOLoss(*coin(), entropy_coeff=0.0)
    update = Update(loss, lr=0.05)
    for _ in range(40):
        obs = torch.zeros(64, 1)
        action = loss.actor_network.explore(obs)
        reward = action.float().unsqueeze(-1)
        batch = TensorDict({"observation": obs, "action": action}, [64])
        batch["state_value"] = loss.critic_network(batch.clone())["state_value"].detach()
        batch["advantage"] = reward - batch["state_value"]
        batch["value_target"] = reward
        loss.annotate(batch)
        for _ in range(4):
            update(batch)
    with torch.no_grad():
        probability = loss.actor_network.get_dist(batch).probs[0, 1].item()
    assert probability > 0.95
    assert batch["state_value"][0].item() > 0.9


def test_clipped_objective_ignores_gradients_of_the_advantage():
    advantage = torch.ones(3, requires_grad=True)
    ratio = torch.ones(3, requires_grad=True)
    clipped_objective(ratio, advantage, 0.2).sum().backward()
    assert advantage.grad is None
    assert (ratio.grad == -1).all()


@pytest.mark.parametrize(
    "options",
    [
        {"entropy_coeff": 0.0, "clip_value": 0.2},
        {"actions": None, "make": gaussian_actor},
        {"actions": None, "make": tanh_gaussian_actor, "clip_value": 0.1},
    ],
)
def test_conforms_with_options(options):
    loss, batch = ppo(**options)
    check_loss(loss, batch, num_actions=options.get("actions", 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_epsilon": 0.0}, "clip_epsilon"),
        ({"entropy_coeff": -0.1}, "entropy_coeff"),
        ({"critic_coeff": 0.0}, "critic_coeff"),
        ({"clip_value": -1.0}, "clip_value"),
        ({"loss_critic_type": "l3"}, "loss_function must be one of"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        ClipPPOLoss(*coin(), **options)


def test_bad_inputs_name_the_entry():
    loss, batch = ppo()
    with pytest.raises(KeyError, match="no entry 'advantage'"):
        loss(batch.exclude("advantage", "next"))
    with pytest.raises(ValueError, match=r"'advantage' must have shape \(8, 1\), got \(8,\)"):
        loss(batch.clone().set("advantage", torch.zeros(8)))
    with pytest.raises(ValueError, match=r"output 'state_value' must have shape \(8, 1\)"):
        ClipPPOLoss(
            loss.actor_network, TensorDictModule(nn.Linear(3, 2), ["observation"], ["state_value"])
        )(batch)
