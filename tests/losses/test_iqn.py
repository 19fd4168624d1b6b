"""IQN: numbers by hand, a second rendition, every knob, what it learns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from losses.examples import DISCRETE, discrete_batch, iqn
from losses.quantile_networks import Formula, record, transition
from tensordict import TensorDict
from torch import nn
from torchrl.objectives import SoftUpdate, ValueEstimators
from torchrl.objectives.value import TD0Estimator, TDLambdaEstimator

from composerl.losses import IQNLoss, quantile_huber_loss
from composerl.modules import iqn_network
from composerl.testing import check_loss
from composerl.update import Update


def constant(double=False, **options):
    """Points as distributions: F(0, .) = (1, 2), F(1, .) = (3, 4); targets F(1, .) = (20, 10)."""
    network = Formula([[1.0, 2.0], [3.0, 4.0]], [0.0, 0.0])
    loss = IQNLoss(network, gamma=0.5, double_dqn=double, **options)
    with torch.no_grad():
        loss.target_value_network.table.copy_(torch.tensor([[0.0, 0.0], [20.0, 10.0]]))
    return loss


@pytest.mark.parametrize(("double", "target"), [(True, 6.0), (False, 11.0)])
def test_iqn3_target_network_and_double_by_hand(double, target):
    """From s = 0, a = 0, r = 1 to s' = 1, gamma 0.5.

    Double: online prefers a' = 1, whose target is 10, y = 6; else the target network's own best,
    20, y = 11. F(s, a) = 1, so delta = y - 1 is positive and beyond kappa = 1: each quantile costs
    tau_i (delta - 1/2), the same for all targets; with N = 3 the sum over i is
    (delta - 1/2) sum tau_i. The fractions are the third draw of the generator, after K and N'.
    """
    loss = constant(double, num_quantiles=3, num_target_quantiles=2, num_acting_quantiles=4)
    batch = transition(0, 0, 1.0, 1)
    torch.manual_seed(0)
    out = loss(batch)
    torch.manual_seed(0)
    torch.rand(1, 4 + 2)
    expected = torch.rand(1, 3).sum().item() * (target - 1 - 0.5)
    assert out["loss_qvalue"].item() == pytest.approx(expected, rel=1e-5)
    assert out["target_value"].item() == target
    assert out["pred_value"].item() == 1.0
    assert out["td_error"].item() == target - 1
    assert batch["td_error"].tolist() == [target - 1]


def test_truncated_rows_bootstrap_and_terminated_ones_do_not():
    loss = constant()
    assert loss(transition(0, 0, 1.0, 1, truncated=True))["target_value"].item() == 11.0
    assert loss(transition(0, 0, 1.0, 1, terminated=True))["target_value"].item() == 1.0


def test_n_step_targets_use_gamma_to_the_n():
    """gamma 0.5, F(s') = 20: n = 1: 1 + 10; 2: 1 + 5; 3: 1 + 2.5."""
    loss = constant()
    for steps, expected in ((1, 11.0), (2, 6.0), (3, 3.5)):
        out = loss(transition(0, 0, 1.0, 1, steps=steps))
        assert out["target_value"].item() == pytest.approx(expected)


@pytest.mark.parametrize("double", [False, True])
def test_second_rendition_in_numpy(double):
    """The same draws: K for the batch, then N' and N for every row."""
    loss, batch = iqn(double_dqn=double, kappa=0.7, gamma=0.9)
    batch.set("steps_to_next_obs", torch.arange(8).remainder(3).add(1).unsqueeze(-1))
    torch.manual_seed(7)
    with torch.no_grad():
        for p in loss.target_value_network.parameters():
            p.add_(0.3 * torch.randn_like(p))
    torch.manual_seed(1)
    loss.reduction = "none"
    out = loss(batch)

    torch.manual_seed(1)
    acting, after, taus = torch.rand(3), torch.rand(8, 4), torch.rand(8, 5)
    online, target = loss.value_network, loss.target_value_network
    x, x2 = batch["observation"], batch["next", "observation"]
    chooser = online if double else target
    best = chooser(x2, acting).mean(-1).argmax(-1).numpy()
    z, f = target(x2, after).detach().numpy(), online(x, taus).detach().numpy()
    for row in range(8):
        r = batch["next", "reward"][row].item()
        discount = 0.9 ** batch["steps_to_next_obs"][row].item()
        y = r + discount * (not batch["next", "terminated"][row]) * z[row, best[row]]
        current = f[row, batch["action"][row]]
        total = 0.0
        for tau, quantile in zip(taus[row].numpy(), current, strict=True):
            d = y - quantile
            huber = np.where(abs(d) <= 0.7, d**2 / 2, 0.7 * (abs(d) - 0.35)) / 0.7
            total += np.mean(abs(tau - (d < 0)) * huber)
        assert out["loss_qvalue"][row].item() == pytest.approx(total, rel=1e-4)
        error = abs(y.mean() - current.mean())
        assert batch["td_error"][row].item() == pytest.approx(error, rel=1e-4, abs=1e-6)


# ---- knobs -------------------------------------------------------------------------------


def test_iqn4_numbers_of_fractions_and_where_they_go():
    """N for Q(s, a); K choose a', N' are the target: own draws, of the network that does it."""
    sizes = {"num_quantiles": 5, "num_target_quantiles": 4, "num_acting_quantiles": 3}
    loss, batch = iqn(**sizes)
    online, target = record(loss)
    loss(batch)
    assert [taus.shape for taus in online] == [(8, 5)]
    assert [taus.shape for taus in target] == [(3,), (8, 4)]
    assert len(torch.cat([taus.flatten() for taus in online + target]).unique()) == 40 + 3 + 32

    loss, batch = iqn(**sizes, double_dqn=True)
    online, target = record(loss)
    loss(batch)
    assert [taus.shape for taus in online] == [(3,), (8, 5)]
    assert [taus.shape for taus in target] == [(8, 4)]


def test_iqn4_target_action_has_fractions_of_its_own():
    """F(s', 0, tau) = 1, F(s', 1, tau) = 2 tau: with K = N' = 1, a' = 1 when tau~ > 1/2.

    The target is then 2 tau' with a fresh tau', mean 1, so that the mean target is 1 either way.
    Were tau' the same as tau~, a' = 1 would come with 2 tau' > 1: mean 1/2 * 1 + 1/2 * 1.5 = 1.25.
    """
    network = Formula([[1.0, 0.0]], [0.0, 2.0])
    loss = IQNLoss(network, num_target_quantiles=1, num_acting_quantiles=1, gamma=1.0)
    batch = transition(0, 0, 0.0, 0)
    torch.manual_seed(0)
    targets = [loss(batch)["target_value"].item() for _ in range(800)]
    assert np.mean(targets) == pytest.approx(1.0, abs=0.06)  # deviation 0.41 / sqrt(800)


@pytest.mark.parametrize("name", ["num_quantiles", "num_target_quantiles", "num_acting_quantiles"])
def test_iqn4_more_fractions_make_less_noise(name):
    """Spread of what each knob is about, over calls that differ in nothing but their draws."""
    network = Formula([[0.0, 1.0]], [2.0, 0.3])
    batch, spread = transition(0, 0, 0.0, 0), {}
    for number in (2, 50):
        sizes = {"num_quantiles": 2, "num_target_quantiles": 2, "num_acting_quantiles": 2}
        loss = IQNLoss(network, **{**sizes, name: number}, gamma=1.0)
        torch.manual_seed(0)
        outs = [loss(batch) for _ in range(300)]
        predictions, targets = (
            np.array([out[key].item() for out in outs]) for key in ("pred_value", "target_value")
        )
        spread[number] = {
            "num_quantiles": predictions.std(),
            "num_target_quantiles": targets.std(),
            # Action 1 (values 1 to 1.3) is the better one, but not in every sample of action 0.
            "num_acting_quantiles": ((targets < 1) | (targets > 1.3)).mean(),
        }[name]
    assert spread[50] < 0.5 * spread[2]


def test_kappa_takes_effect():
    """delta = 10, beyond kappa: tau (10 - kappa / 2), so kappa 4 against 1 is 8 against 9.5."""
    losses = {}
    for kappa in (1.0, 4.0):
        torch.manual_seed(0)
        losses[kappa] = constant(kappa=kappa)(transition(0, 0, 1.0, 1))["loss_qvalue"].item()
    assert losses[4.0] / losses[1.0] == pytest.approx(8 / 9.5, rel=1e-5)


@pytest.mark.parametrize("options", [{"dueling": True}, {"layer_norm": True}, {"embedding_dim": 7}])
def test_network_options_take_effect(options):
    losses = []
    for extra in ({}, options):
        torch.manual_seed(0)
        loss = IQNLoss(iqn_network(DISCRETE, (8, 8), **extra).value_network)
        torch.manual_seed(1)
        losses.append(loss(discrete_batch())["loss_qvalue"].item())
    assert losses[0] != losses[1]


@pytest.mark.parametrize("options", [{"double_dqn": True}])
def test_options_conform(options):
    check_loss(*iqn(**options), num_actions=3, compile=False)


def test_priority_weights_reach_the_loss():
    """Weights 3 and 1: (3 l_0 + l_1) / 4."""
    loss, batch = iqn(reduction="none")
    batch = batch[:2]
    torch.manual_seed(0)
    rows = loss(batch)["loss_qvalue"]
    loss.reduction = "mean"
    torch.manual_seed(0)
    weighted = loss(batch.set("priority_weight", torch.tensor([3.0, 1.0])))["loss_qvalue"]
    torch.testing.assert_close(weighted, (3 * rows[0] + rows[1]) / 4)


def test_batches_of_sequences():
    """A batch of shape (2, 4) is one of 8 rows; the generator's numbers come in the same order."""
    loss, batch = iqn()
    torch.manual_seed(0)
    flat = loss(batch)
    torch.manual_seed(0)
    shaped = loss(batch.reshape(2, 4))
    for key, value in flat.items():
        torch.testing.assert_close(shaped[key], value)


# ---- learning ----------------------------------------------------------------------------


def test_only_the_online_network_learns_and_the_target_follows():
    loss, batch = iqn()
    loss(batch)["loss_qvalue"].backward()
    missing = [name for name, p in loss.named_parameters() if p.grad is None or not p.grad.any()]
    assert missing == []
    assert all(p.grad is None for p in loss.target_value_network.parameters())
    before = [p.clone() for p in loss.target_value_network.parameters()]
    Update(loss, tau=0.25)(batch)
    online = loss.value_network.parameters()
    for old, new, source in zip(
        before, loss.target_value_network.parameters(), online, strict=True
    ):
        torch.testing.assert_close(new, old.lerp(source, 0.25))


def test_torchrl_soft_update_works():
    loss, _ = iqn()
    updater = SoftUpdate(loss, tau=0.5)
    with torch.no_grad():
        loss.value_network.head[-1].bias.add_(1.0)
    updater.step()
    difference = loss.value_network.head[-1].bias - loss.target_value_network.head[-1].bias
    torch.testing.assert_close(difference, torch.full((3,), 0.5))


def test_learns_the_quantiles_of_the_reward():
    """One state, rewards 0, 1, 5 with equal chance, then the end: F is 0, 1, 5 on thirds of (0, 1).

    Q(s, a), the mean over fractions, is 2.
    """
    torch.manual_seed(0)
    actor = iqn_network(DISCRETE, (16, 16), embedding_dim=16, num_acting_quantiles=60)
    loss = IQNLoss(
        actor.value_network, num_quantiles=8, num_target_quantiles=1, num_acting_quantiles=1,
        kappa=0.1,
    )  # fmt: skip
    batch = TensorDict(
        {
            "observation": torch.ones(30, 3),
            "action": torch.zeros(30, dtype=torch.long),
            "next": {
                "observation": torch.ones(30, 3),
                "reward": torch.tensor([0.0, 1.0, 5.0]).repeat(10).unsqueeze(-1),
                "terminated": torch.ones(30, 1, dtype=torch.bool),
            },
        },
        [30],
    )
    updates = 600
    update = Update(loss, lr=1e-2, schedule=lambda n: 1 - n / updates)
    for _ in range(updates):
        update(batch)
    taus = torch.tensor([0.1, 1 / 6, 0.25, 0.42, 0.5, 0.58, 0.75, 5 / 6, 0.9])
    found = actor.value_network(torch.ones(1, 3), taus)[0, 0].tolist()
    assert found == pytest.approx([0.0] * 3 + [1.0] * 3 + [5.0] * 3, abs=0.4)
    out = actor(TensorDict({"observation": torch.ones(1, 3)}, [1]))
    assert out["action_value"][0, 0].item() == pytest.approx(2.0, abs=0.15)


# ---- errors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_quantiles": 0}, "num_quantiles must be an integer of at least 1, got 0"),
        ({"num_target_quantiles": -1}, "num_target_quantiles"),
        ({"num_acting_quantiles": 2.0}, "num_acting_quantiles must be an integer"),
        ({"kappa": 0.0}, r"kappa must be in \(0, inf\), got 0.0"),
        ({"kappa": math.nan}, "kappa"),
        ({"gamma": 1.5}, "gamma"),
        ({"reduction": "median"}, "reduction"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        iqn(**options)


def test_wrong_networks_and_estimators_are_refused():
    with pytest.raises(TypeError, match=r"value_network needs in_keys.*Linear has no in_keys"):
        IQNLoss(nn.Linear(3, 3))
    loss, _ = iqn()
    with pytest.raises(NotImplementedError, match="TDLambda"):
        loss.make_value_estimator(ValueEstimators.TDLambda, gamma=0.9, lmbda=0.5)
    with pytest.raises(ValueError, match="IQNLoss needs TD0"):
        loss.make_value_estimator(TDLambdaEstimator, gamma=0.9, lmbda=0.5, value_network=None)
    with pytest.raises(ValueError, match="average_rewards"):
        loss.make_value_estimator(gamma=0.9, average_rewards=True)
    loss.make_value_estimator(TD0Estimator, gamma=0.25, value_network=None)
    assert loss.value_estimator.gamma.item() == 0.25


def test_wrong_entries_are_refused_by_name():
    loss, batch = iqn()
    with pytest.raises(ValueError, match=r"'action' must be integers .* shape \(8,\)"):
        loss(batch.clone().set("action", torch.rand(8)))
    with pytest.raises(ValueError, match=r"\('next', 'reward'\) must have shape \(8, 1\)"):
        loss(batch.clone().set(("next", "reward"), torch.rand(8)))
    with pytest.raises(KeyError, match=r"no entry .*next.*terminated"):
        loss(batch.clone().exclude(("next", "terminated")))
    with pytest.raises(ValueError, match=r"fails on inputs of shape .*observation.*\(8, 7\)"):
        loss(batch.clone().set("observation", torch.rand(8, 7)))


def test_rows_are_quantile_huber_losses():
    loss, batch = iqn(reduction="none")
    online, _ = record(loss)
    rows = loss(batch)["loss_qvalue"]
    assert rows.shape == (8,)
    current = loss.value_network.network(batch["observation"], online[0])
    ended = batch["next", "terminated"].squeeze(-1)
    picked = current[torch.arange(8), batch["action"]]
    expected = quantile_huber_loss(picked, batch["next", "reward"], online[0])
    torch.testing.assert_close(rows[ended], expected[ended])
