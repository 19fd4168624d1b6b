"""LaProp: a plain rendition, numbers by hand, and its place in an Update."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from losses.examples import dreamer

from composerl import Update
from composerl.optim import LaProp, lr_schedule, warm_up


def plain(params, gradients, lr, betas=(0.9, 0.99), eps=1e-20, clip=0.3):
    """One tensor after the other, in float64."""
    mean, square = [0.0] * len(params), [0.0] * len(params)
    params = [p.double() for p in params]
    for t, grads in enumerate(gradients, start=1):
        for i, grad in enumerate(grads):
            g = grad.double()
            if clip is not None:
                limit = clip * max(1e-3, float(params[i].norm()))
                g = g / max(1.0, float(g.norm()) / limit)
            square[i] = betas[1] * square[i] + (1 - betas[1]) * g**2
            normal = g / ((square[i] / (1 - betas[1] ** t)).sqrt() + eps)
            mean[i] = betas[0] * mean[i] + (1 - betas[0]) * normal
            params[i] = params[i] - lr * mean[i] / (1 - betas[0] ** t)
    return [p.float() for p in params]


@pytest.mark.parametrize("clip", [0.3, None])
@pytest.mark.parametrize("eps", [1e-20, 1e-3])
def test_plain_rendition(clip, eps):
    torch.manual_seed(0)
    shapes = [(5, 3), (7,), (2, 3, 4), (1,)]
    params = [torch.randn(shape) for shape in shapes]
    params[3].zero_()  # what starts at zero has the least norm
    gradients = [[10 ** (i - 2) * torch.randn(s) for i, s in enumerate(shapes)] for _ in range(20)]
    learned = [p.clone().requires_grad_() for p in params]
    optimizer = LaProp(learned, 1e-2, eps=eps, clip=clip)
    for grads in gradients:
        for p, grad in zip(learned, grads, strict=True):
            p.grad = grad.clone()
        optimizer.step()
    for found, expected in zip(learned, plain(params, gradients, 1e-2, eps=eps, clip=clip),
                               strict=True):  # fmt: skip
        torch.testing.assert_close(found.detach(), expected, rtol=1e-4, atol=1e-6)


def test_clipping_by_hand():
    """A tensor of norm 5 and a gradient (6, 8) of norm 10: the limit is 0.3 * 5 = 1.5, so that
    (0.9, 1.2) enters the averages: v = 0.01 g^2. A tensor of zeros has a limit of 0.0003."""
    p, zero = (torch.tensor(x, requires_grad=True) for x in ([3.0, 4.0], [0.0, 0.0]))
    optimizer = LaProp([p, zero], 0.0)
    p.grad, zero.grad = torch.tensor([6.0, 8.0]), torch.tensor([6.0, 8.0])
    optimizer.step()
    torch.testing.assert_close(optimizer.state[p]["exp_avg_sq"], torch.tensor([0.0081, 0.0144]))
    expected = 0.01 * torch.tensor([0.00018, 0.00024]).square()
    torch.testing.assert_close(optimizer.state[zero]["exp_avg_sq"], expected)
    # of normalised gradients: whatever the size, (1, 1) on the first step
    torch.testing.assert_close(optimizer.state[zero]["exp_avg"], torch.tensor([0.1, 0.1]))
    assert torch.equal(p.grad, torch.tensor([6.0, 8.0]))  # as Update's grad_norm has seen it


def test_no_gradient_and_a_gradient_of_zeros_move_nothing():
    p, other = (torch.ones(2, requires_grad=True) for _ in range(2))
    optimizer = LaProp([p, other], 0.1)
    p.grad = torch.zeros(2)
    optimizer.step()
    assert torch.equal(p.detach(), torch.ones(2))
    assert other not in optimizer.state
    # and one that joins later has steps of its own
    p.grad, other.grad = torch.ones(2), torch.ones(2)
    optimizer.step()
    assert (optimizer.state[p]["step"], optimizer.state[other]["step"]) == (2, 1)
    torch.testing.assert_close(other.detach(), torch.full((2,), 0.9))


def test_warm_up_by_hand():
    """4 updates from 0 to 1, then what follows from its own start."""
    schedule = warm_up(4, lr_schedule("linear", 2))
    assert [schedule(n) for n in range(7)] == [0, 0.25, 0.5, 0.75, 1, 0.5, 0]
    assert [warm_up(0)(n) for n in range(2)] == [1, 1]


def test_in_an_update_and_resumed():
    """The first update does not move weights, as the rate is 0; a copy goes on with the bits."""

    def make():
        loss, batch = dreamer()
        optimizer = LaProp(loss.parameters(), 1e-3)
        return Update(loss.train(), optimizer=optimizer, schedule=warm_up(2), tau=0.02), batch

    (one, batch), (other, _) = make(), make()
    before = [p.detach().clone() for p in one.loss.parameters()]
    torch.manual_seed(0)
    assert one(batch.clone())["lr"] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, one.loss.parameters(), strict=True))
    assert one(batch.clone())["lr"].item() == pytest.approx(5e-4)
    other.load_state_dict(deepcopy(one.state_dict()))
    for update in (one, other):
        torch.manual_seed(1)
        for _ in range(3):
            metrics = update(batch.clone())
        assert metrics["lr"].item() == pytest.approx(1e-3)
    for a, b in zip(one.loss.parameters(), other.loss.parameters(), strict=True):
        assert torch.equal(a, b)


def test_wrong_arguments_are_refused():
    p = [torch.zeros(1, requires_grad=True)]
    for options in ({"betas": (1.0, 0.9)}, {"eps": -1.0}, {"clip": 0.0}, {"lr": float("nan")}):
        with pytest.raises(ValueError, match=next(iter(options))):
            LaProp(p, **options)
    with pytest.raises(ValueError, match="closure"):
        LaProp(p).step(lambda: 0.0)
