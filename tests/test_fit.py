"""Fitting an ensemble: a known system is recovered, the best weights come back, runs repeat."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from tensordict import TensorDict

from composerl.bookkeeping.trees import load_tree, save_tree
from composerl.envs.spaces import Spaces
from composerl.losses import DynamicsLoss, IQLLoss, gaussian_nll
from composerl.modules import ensemble, gaussian_actor, twin_q, value
from composerl.optim.adam import FusedAdam
from composerl.optim.fit import DynamicsFit
from composerl.update import Update

SPACES = Spaces(obs_shape=(2,), low=(-1.0,), high=(1.0,))
VARIANCE = torch.tensor([0.01, 0.09, 0.04])


def linear_system(rows, scale=1.0):
    """s' = A s + B a + noise, r = s_0 - 2 a + noise; also the exact means of (s' - s, r)."""
    a_matrix, b_matrix = torch.tensor([[0.9, 0.2], [-0.3, 0.8]]), torch.tensor([[0.5], [1.0]])
    s, a = scale * torch.randn(rows, 2), 2 * torch.rand(rows, 1) - 1
    mean = torch.cat([s @ a_matrix.T + a @ b_matrix.T - s, s[:, :1] - 2 * a], -1)
    drawn = mean + VARIANCE.sqrt() * torch.randn(rows, 3)
    following = {"observation": s + drawn[:, :2], "reward": drawn[:, 2:]}
    return TensorDict({"observation": s, "action": a, "next": following}, [rows]), mean


def make_update(hidden=(16,), lr=1e-3, **options):
    loss = DynamicsLoss(ensemble(SPACES, hidden, **options), per_member=True)
    return Update(loss, optimizer=FusedAdam(loss.parameter_groups(lr)))


def fit_dynamics(update, data, **options):
    return DynamicsFit(update, **options)(data)


@pytest.fixture(scope="module")
def fitted():
    torch.manual_seed(0)
    update = make_update((64, 64, 64))
    metrics = fit_dynamics(update, linear_system(8000)[0])
    return update.loss.model, metrics


@torch.no_grad()
def elites(model, batch):
    mean, log_var, _ = model.predict(batch["observation"], batch["action"])
    return mean[model.elites], log_var[model.elites]


def test_recovers_a_known_stochastic_system(fitted):
    model, metrics = fitted
    torch.manual_seed(1)
    batch, truth = linear_system(4000)
    mean, log_var = elites(model, batch)
    error = (mean.mean(0) - truth).square().mean(0).sqrt() / truth.square().mean(0).sqrt()
    assert (error < 0.05).all(), error
    ratio = log_var.exp().mean((0, 1)) / VARIANCE
    assert ((ratio > 0.8) & (ratio < 1.2)).all(), ratio
    # the error that is left is the system's own noise, here as a share of the targets' variance
    noise = (VARIANCE / (truth.var(0) + VARIANCE)).mean().item()
    assert metrics["model/holdout_mse"] == pytest.approx(noise, rel=0.1)


def test_approaches_the_likelihood_of_the_truth(fitted):
    """Nothing beats the truth's own density on fresh data; each elite is near."""
    torch.manual_seed(2)
    batch, truth = linear_system(20_000)
    mean, log_var = elites(fitted[0], batch)
    s, following = batch["observation"], batch["next"]
    target = torch.cat([following["observation"] - s, following["reward"]], -1)
    best = gaussian_nll(target - truth, VARIANCE.log().expand_as(truth)).mean()
    nll = gaussian_nll(target - mean, log_var).mean((1, 2))
    assert (nll > best).all()
    assert (nll < best + 0.1).all(), (nll, best)


def test_disagreement_grows_off_the_data(fitted):
    torch.manual_seed(3)
    spread = []
    for scale in (1.0, 4.0, 16.0):
        mean, _ = elites(fitted[0], linear_system(1000, scale)[0])
        spread.append(mean.std(0).mean().item())
    assert spread[1] > 2 * spread[0]
    assert spread[2] > 2 * spread[1]


def members_of(model):
    """The parameters that each member has for itself: all but the bounds of the variance."""
    return list(model.layers.parameters())


class Recorder:
    """An Update that notes each member's weights and holdout error after every epoch."""

    def __init__(self, update, monkeypatch):
        self.errors, self.weights = [], []
        loss, original = update.loss, update.loss.holdout_mse

        def holdout_mse(judge):
            self.judge = judge
            self.errors.append(original(judge))
            self.weights.append([p.detach().clone() for p in members_of(loss.model)])
            return self.errors[-1]

        monkeypatch.setattr(loss, "holdout_mse", holdout_mse, raising=False)
        self.measure = original


@pytest.mark.parametrize("lr", [1e-3, 0.1])
def test_each_member_goes_back_to_its_best_weights(lr, monkeypatch):
    """With a large learning rate errors go up and down, and members peak at different times."""
    torch.manual_seed(0)
    update = make_update(lr=lr, members=5, elites=3)
    record = Recorder(update, monkeypatch)
    metrics = fit_dynamics(update, linear_system(500)[0], batch_size=64)
    errors = torch.stack(record.errors)  # epochs + 1, members
    assert len(errors) == metrics["model/epochs"] + 1
    best = errors.argmin(0)
    if lr == 0.1:
        assert len(set(best.tolist())) > 1
        assert (best < len(errors) - 1).any()
    for member, epoch in enumerate(best.tolist()):
        restored = [p[member] for p in members_of(update.loss.model)]
        expected = [w[member] for w in record.weights[epoch]]
        assert all(torch.equal(a, b) for a, b in zip(restored, expected, strict=True))
    torch.testing.assert_close(record.measure(record.judge), errors.amin(0))
    # the elites are the best of them, in order
    assert update.loss.model.elites.tolist() == errors.amin(0).argsort()[:3].tolist()
    assert metrics["model/holdout_mse"] == pytest.approx(errors.amin(0).sort()[0][:3].mean().item())


def test_patience_counts_epochs_in_which_nobody_gains(monkeypatch):
    """Errors by hand, two members: a gain is more than 1 % below the last gain.

    Epoch 1 gains (both), 2 and 3 do not (0.5 %), 4 gains (member 1), 5 to 7 do not: patience 3
    ends it there. Member 0 is best in epoch 3 although that was no gain."""
    update = make_update(members=2, elites=1)
    script = [[2.0, 9.0], [1.0, 8.0], [0.995, 8.5], [0.991, 8.5], [1.5, 7.0], *[[1.5, 7.0]] * 9]
    calls = iter(script)
    monkeypatch.setattr(
        update.loss, "holdout_mse", lambda judge: torch.tensor(next(calls)), raising=False
    )
    metrics = fit_dynamics(update, linear_system(50)[0], patience=3)
    assert metrics["model/epochs"] == 7
    assert metrics["model/holdout_mse"] == pytest.approx(0.991)
    assert update.loss.model.elites.tolist() == [0]


def test_a_model_that_gets_worse_is_left_as_it_was():
    torch.manual_seed(0)
    update = make_update(lr=1e3)
    before = deepcopy(members_of(update.loss.model))
    metrics = fit_dynamics(update, linear_system(200)[0])
    for now, then in zip(members_of(update.loss.model), before, strict=True):
        assert torch.equal(now, then)
    assert metrics["model/epochs"] == 5


def test_splits_bootstraps_and_batches(monkeypatch):
    """Holdout rows are never trained on; members see rows of their own, with repetitions."""
    torch.manual_seed(0)
    update = make_update(members=3, elites=1)
    data = linear_system(100)[0]
    seen, record = [], Recorder(update, monkeypatch)
    loss = update.loss.forward
    monkeypatch.setattr(
        update.loss, "forward", lambda batch: (seen.append(batch), loss(batch))[1], raising=False
    )
    fit_dynamics(update, data, batch_size=32, max_epochs=2)
    assert record.judge.shape == (20,)
    assert [batch.shape[1] for batch in seen] == [32, 32, 16] * 2
    held = {row.item() for row in record.judge["observation"][:, 0]}
    trained = torch.cat([batch["observation"][..., 0] for batch in seen[:3]], 1)
    again = torch.cat([batch["observation"][..., 0] for batch in seen[3:]], 1)
    rows = [set(member.tolist()) for member in trained]
    assert all(not member & held for member in rows)
    assert all(40 < len(member) < 64 for member in rows)  # 80 (1 - 1/e) = 50 in the mean
    assert rows[0] != rows[1]
    for first, second in zip(trained, again, strict=True):
        assert sorted(first.tolist()) == sorted(second.tolist())
        assert first.tolist() != second.tolist()
    model = update.loss.model
    train = torch.tensor(sorted(set(data["observation"][:, 0].tolist()) - held))
    assert model.mean[0].item() == pytest.approx(train.mean().item(), abs=1e-6)
    fit_dynamics(update, linear_system(1000)[0], max_epochs=1, max_holdout=30)
    assert record.judge.shape == (30,)


def test_what_is_held_out_stays_so_while_data_come_in(monkeypatch):
    """Weights from before a fit compete with those from it on rows that neither was trained on.

    Drawn anew, four of five rows of a second holdout would be those of the first training."""
    torch.manual_seed(0)
    update = make_update(members=2, elites=1)
    record, data, trained = Recorder(update, monkeypatch), linear_system(5000)[0], set()
    for rows in (1000, 2000, 5000):
        fit_dynamics(update, data[:rows], max_epochs=1, max_holdout=300)
        held = set(record.judge["observation"][:, 0].tolist())
        assert len(held) == min(rows // 5, 300)
        assert len(held & trained) <= 0.05 * len(held)  # (at the edge the share itself moves)
        trained |= set(data["observation"][:rows, 0].tolist()) - held
    # which rows they are has nothing to do with what is in them
    assert abs(record.judge["observation"].mean()) < 0.2


def test_repeats_and_resumes_exactly(tmp_path):
    """Two fits in a row, or the second from the state after the first: the same bits."""
    torch.manual_seed(0)
    fit, other = DynamicsFit(make_update(), max_epochs=4), DynamicsFit(make_update(), max_epochs=4)
    assert fit.metrics == {}
    data = [linear_system(300)[0], linear_system(400)[0]]
    fit(data[0])
    save_tree(tmp_path / "x.safetensors", "checkpoint", fit.state_dict())
    generator = torch.get_rng_state()
    first, second = fit.metrics, fit(data[1])
    assert fit.metrics is second
    other.load_state_dict(load_tree(tmp_path / "x.safetensors", "checkpoint"))
    assert other.metrics == first
    torch.set_rng_state(generator)
    assert other(data[1]) == second
    for (name, a), b in zip(
        fit.update.loss.state_dict().items(), other.update.loss.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b), name


def test_learns_when_episodes_terminate():
    """s_0 > 1 after the step terminates: the head finds it where the noise allows."""
    torch.manual_seed(0)
    update = make_update((32, 32), terminates=True)
    data, _ = linear_system(4000)
    data["next", "terminated"] = data["next", "observation"][:, :1] > 1
    metrics = fit_dynamics(update, data)
    assert metrics["model/loss_terminated"] < 7 * 0.2
    batch, mean = linear_system(1000)
    following = (batch["observation"] + mean[:, :2])[:, 0]
    clear = (following - 1).abs() > 0.3  # three standard deviations of the noise
    drawn = update.loss.model(batch["observation"], batch["action"])[2].squeeze(-1)
    agree = (drawn == (following > 1))[clear].float().mean()
    assert agree > 0.97


def test_bad_arguments():
    update, data = make_update(), linear_system(20)[0]
    for options, message in (
        ({"holdout": 0.0}, "holdout must be"),
        ({"holdout": 0.01}, "leaves none"),
        ({"patience": 0}, "patience must be"),
        ({"min_gain": 1.0}, "min_gain must be"),
        ({"max_epochs": 0}, "max_epochs must be"),
        ({"batch_size": 0}, "batch_size must be"),
    ):
        with pytest.raises(ValueError, match=message):
            fit_dynamics(update, data, **options)
    shared = Update(DynamicsLoss(ensemble(SPACES, (8,))))
    other = Update(IQLLoss(gaussian_actor(SPACES), twin_q(SPACES), value(SPACES)))
    for wrong in (shared, other):
        with pytest.raises(ValueError, match="per_member=True"):
            fit_dynamics(wrong, data)


def test_units_of_the_targets_do_not_matter():
    """The same system with rewards 100 times as large is fitted as well, reward and changes:
    a fit that lets the largest numbers decide gives up early."""
    errors = []
    for scale in (1.0, 100.0):
        torch.manual_seed(0)
        data, _ = linear_system(500)
        data["next", "reward"] *= scale
        update = make_update((32, 32), lr=3e-3)
        errors.append(fit_dynamics(update, data, batch_size=32)["model/holdout_mse"])
    assert errors[0] == pytest.approx(errors[1], rel=0.05)


@pytest.mark.parametrize("lr", [-1.0, float("nan"), float("inf")])
def test_a_bad_learning_rate_of_a_group_is_refused(lr):
    with pytest.raises(ValueError, match=f"lr must be a number >= 0, got {lr}"):
        make_update(lr=lr)
