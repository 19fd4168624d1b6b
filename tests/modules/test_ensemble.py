"""The ensemble: members are independent networks, elites share the rows, buffers travel."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tensordict import TensorDict

from composerl.envs.spaces import Spaces
from composerl.modules import ensemble

BOX = Spaces(obs_shape=(3,), low=(-2.0, -1.0), high=(2.0, 1.0))


def rows(number=11, *more):
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(*more, number, 3, generator=generator),
        torch.randn(*more, number, 2, generator=generator).tanh(),
    )


def small(**options):
    torch.manual_seed(0)
    return ensemble(BOX, (16, 8), **{"members": 4, "elites": 2, **options}).module


def one_member(model, index, observation, action):
    """Member ``index`` written out: plain layers, SiLU, log-variance between its two bounds."""
    x = (torch.cat([observation, action], -1) - model.mean) / model.std
    *inner, last = model.layers
    for layer in inner:
        x = x @ layer.weight[index] + layer.bias[index]
        x = x * torch.sigmoid(x)
    out = x @ last.weight[index] + last.bias[index]
    low, high = model.min_log_var, model.max_log_var
    log_var = high - F.softplus(high - out[:, 4:8])
    return out[:, :4], low + F.softplus(log_var - low)


def test_members_are_plain_networks():
    model = small()
    observation, action = rows()
    model.set_normalizer(observation, action)
    mean, log_var, logit = model.predict(observation, action)
    assert mean.shape == log_var.shape == (4, 11, 4)
    assert logit is None
    for index in range(4):
        torch.testing.assert_close(
            (mean[index], log_var[index]), one_member(model, index, observation, action)
        )


def test_rows_of_their_own_for_each_member():
    model = small()
    observation, action = rows(5, 4)
    mean, _, _ = model.predict(observation, action)
    for index in range(4):
        alone, _, _ = model.predict(observation[index], action[index])
        torch.testing.assert_close(mean[index], alone[index])


def test_log_variance_stays_within_its_bounds():
    model = small()
    with torch.no_grad():
        model.layers[-1].weight.mul_(1e4)
    _, log_var, _ = model.predict(*rows(100))
    # softplus approaches its bounds from outside by at most log(1 + exp(low - high))
    assert log_var.min() >= -10
    assert log_var.max() <= 0.5 + 1e-3
    assert log_var.max() - log_var.min() > 10


def test_no_member_reaches_another():
    model = small()
    mean, log_var, _ = model.predict(*rows())
    (mean[1].sum() + log_var[1].sum()).backward()
    for name, parameter in model.layers.named_parameters():
        assert parameter.grad[1].any(), name
        assert not parameter.grad[[0, 2, 3]].any(), name


def test_draws_come_from_the_elites_alone_evenly_and_anew():
    """Members that predict their own number, exactly: the reward tells who was drawn."""
    model = small(members=6, elites=3)
    with torch.no_grad():
        for parameter in model.layers.parameters():
            parameter.zero_()
        model.layers[-1].bias[:, 0, 3] = torch.arange(6.0)
        model.layers[-1].bias[:, 0, 4:] = -100.0
        model.min_log_var.fill_(-40.0)
        model.elites.copy_(torch.tensor([1, 4, 5]))
    observation, action = rows(9)
    drawn = torch.stack([model(observation, action)[1].squeeze(-1) for _ in range(400)])
    drawn = drawn.round()
    assert set(drawn.unique().tolist()) == {1.0, 4.0, 5.0}
    for number in (1.0, 4.0, 5.0):
        assert (drawn == number).sum(1).eq(3).all()  # nine rows dealt to three members
        shares = (drawn == number).float().mean(0)  # of each row, over time
        assert (shares - 1 / 3).abs().max() < 0.1
    assert (drawn[0] != drawn[1]).any()


@pytest.mark.parametrize("number", [1, 2, 7])
def test_any_number_of_rows(number):
    """Fewer rows than elites, and numbers that do not divide: noise-free draws are predictions."""
    model = small(members=3, elites=3)
    with torch.no_grad():
        model.layers[-1].weight[..., 4:] = 0
        model.layers[-1].bias[..., 4:] = -100.0
        model.min_log_var.fill_(-60.0)
    observation, action = rows(number)
    mean, _, _ = model.predict(observation, action)
    following, reward = model(observation, action)
    drawn = torch.cat([following - observation, reward], -1)
    distance = (mean - drawn).abs().amax(-1)  # members, rows
    assert (distance.amin(0) < 1e-5).all()
    assert (distance.amax(0) > 1e-3).all()


def test_draws_have_the_predicted_spread():
    model = small(members=1, elites=1)
    observation, action = rows(1)
    mean, log_var, _ = model.predict(observation, action)
    many = 20_000
    following, reward = model(observation.expand(many, -1), action.expand(many, -1))
    drawn = torch.cat([following - observation, reward], -1)
    torch.testing.assert_close(drawn.mean(0), mean[0, 0], atol=0.03, rtol=0)
    torch.testing.assert_close(drawn.var(0), log_var[0, 0].exp(), atol=0, rtol=0.05)


def test_as_a_tensordict_module():
    model = ensemble(BOX, (8,), terminates=True)
    observation, action = rows(6)
    batch = TensorDict({"observation": observation, "action": action}, [6])
    out = model(batch.reshape(2, 3))
    assert out["next", "observation"].shape == (2, 3, 3)
    assert out["next", "reward"].shape == out["next", "terminated"].shape == (2, 3, 1)
    assert out["next", "terminated"].dtype == torch.bool
    single = model(batch[0].clone())
    assert single["next", "observation"].shape == (3,)


def test_termination_head_decides_by_its_sign():
    model = small(terminates=True)
    with torch.no_grad():
        model.layers[-1].weight[..., -1] = 0
        for logit in (-1.0, 1.0):
            model.layers[-1].bias[..., -1] = logit
            assert model.predict(*rows())[2].eq(logit).all()
            assert model(*rows())[2].eq(logit > 0).all()


def test_normalizer_standardises_and_leaves_constants_alone():
    model = small()
    observation, action = rows(500)
    observation = observation * 3 + 1
    observation[:, 2] = 7.0
    model.set_normalizer(observation, action)
    x = model._normalize(observation, action)
    torch.testing.assert_close(x.mean(0), torch.zeros(5), atol=1e-5, rtol=0)
    torch.testing.assert_close(x[:, [0, 1, 3, 4]].std(0), torch.ones(4), atol=2e-3, rtol=0)
    assert model.std[2] == 1


def test_outputs_are_scaled_as_the_targets_are_spread():
    """Whatever the units of the reward, the network inside has numbers around 1 to learn."""
    model, (observation, action) = small(), rows(500)
    mean, log_var, _ = model.predict(observation, action)
    target = torch.randn(500, 4) * torch.tensor([1.0, 1e-3, 50.0, 1.0]) + 3
    target[:, 3] = 7.0
    model.set_normalizer(observation, action, target)
    model.mean.zero_(), model.std.fill_(1.0)  # the inputs as before
    spread = target.std(0, correction=0)
    spread[3] = 1.0
    scaled, scaled_log_var, _ = model.predict(observation, action)
    torch.testing.assert_close(scaled, mean * spread + target.mean(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(scaled_log_var, log_var + 2 * spread.log(), rtol=1e-4, atol=1e-4)


def test_state_dict_carries_normalizer_and_elites():
    model, other = small(), small()
    model.set_normalizer(*rows())
    model.elites.copy_(torch.tensor([3, 1]))
    other.load_state_dict(model.state_dict())
    for expected, got in zip(_draw(model), _draw(other), strict=True):
        assert torch.equal(expected, got)


def _draw(model):
    torch.manual_seed(5)
    return model(*rows())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"elites": 8}, "elites must be in"),
        ({"elites": 0}, "elites must be in"),
        ({"hidden": (8, 0)}, "hidden widths"),
        ({"hidden": ()}, "hidden widths"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        ensemble(BOX, **options)
    with pytest.raises(ValueError, match="discrete"):
        ensemble(Spaces(obs_shape=(3,), num_actions=2))
    with pytest.raises(ValueError, match="flat observations"):
        ensemble(Spaces(obs_shape=(3, 2), low=(-1.0,), high=(1.0,)))
