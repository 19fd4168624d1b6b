"""What the equations of a loss imply, where its arguments and keys say which they are.

Checks of CQL's penalty and of discriminators make a loss of the same class around networks whose
answers are known; a constructor that takes other networks than TorchRL's cannot be checked so.
"""

import math
from typing import Any
from unittest import SkipTest

import torch
import torch.nn.functional as F
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.objectives import LossModule, ValueEstimators

from composerl.testing.building import ACTIONS, actor, arguments_of, build, network
from composerl.testing.checks import assert_close, needs
from composerl.testing.numbers import call, minimised

__all__ = ["EQUATIONS"]

# ---- returns ---------------------------------------------------------------------------------


def _bootstraps(loss: LossModule, batch: TensorDict) -> TensorDict:
    """The batch for a loss that makes targets of rewards and next values."""
    needs(loss.default_value_estimator is not None, "a value estimator")
    key = getattr(loss.tensor_keys, "terminated", "terminated")
    needs(batch.get(("next", key), None) is not None, "transitions")
    # Where advantages are there, nothing is left to estimate.
    return batch.exclude(getattr(loss.tensor_keys, "advantage", "advantage"))


def _with_gamma(loss: LossModule, gamma: float, batch: TensorDict) -> TensorDict:
    loss.make_value_estimator(ValueEstimators.TD0, gamma=gamma)
    return call(loss, batch)


def _n_step(loss: LossModule, batch: TensorDict) -> None:
    batch = _bootstraps(loss, batch)
    expected = _with_gamma(loss, 0.81, batch)
    steps = torch.full((*batch.shape, 1), 2)
    out = _with_gamma(loss, 0.9, batch.set("steps_to_next_obs", steps))
    for key in minimised(out):
        assert_close(out[key], expected[key], f"{key} of 2-step rows must discount by gamma^2")


def _time_limits(loss: LossModule, batch: TensorDict) -> None:
    batch, keys = _bootstraps(loss, batch), loss.tensor_keys
    ends = torch.ones(*batch.shape, 1, dtype=torch.bool)
    batch.set(("next", keys.done), ends)
    for terminated in (ends, ~ends):
        batch.set(("next", keys.terminated), terminated).set(("next", "truncated"), ~terminated)
        outs = [_with_gamma(loss, gamma, batch) for gamma in (0.9, 0.0)]
        same = all(torch.equal(outs[0][key], outs[1][key]) for key in minimised(outs[0]))
        if terminated.all():
            assert same, "the next state counts although the episode has terminated"
        else:
            assert not same, "the next state does not count where a time limit cut the episode"


# ---- conservative penalties --------------------------------------------------------------------


class _Uniform(torch.distributions.Distribution):
    """Uniform over a box: a policy whose actions all have the same density."""

    arg_constraints = {}  # noqa: RUF012
    has_rsample = True

    def __init__(self, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> None:
        self.loc, self.low, self.high = loc, low, high
        super().__init__(loc.shape[:-1], loc.shape[-1:], validate_args=False)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        noise = torch.rand(*sample_shape, *self.loc.shape)
        return self.low + (self.high - self.low) * noise + 0 * self.loc

    def log_prob(self, value: Tensor) -> Tensor:
        return -(self.high - self.low).log().sum() + 0 * value.sum(-1)


class _Beyond(nn.Module):
    """How far the largest entry of an action is beyond 1.5, times a parameter."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(slope))

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        return self.slope * F.relu(action.abs().amax(-1, keepdim=True) - 1.5)


def _again(loss: LossModule, **given: Any) -> tuple[LossModule, TensorDict]:
    """The same class around networks whose answers are known."""
    try:
        made, batch, _ = build(type(loss), **given)
    except Exception as error:
        name = type(loss).__name__
        raise SkipTest(f"{name} cannot be made around other networks: {error}") from error
    return made, batch


def _conservative(
    loss: LossModule,
    *,
    bound: float = 1.0,
    reach: float | None = None,
    slope: float = 0.0,
    **options: Any,
) -> tuple[LossModule, TensorDict]:
    """The same class with actions up to ``bound``, a policy up to ``reach``, known critics."""
    arguments = arguments_of(type(loss))
    needs("num_random" in arguments, "the argument num_random")
    needs("loss_cql" in loss.out_keys, "the output loss_cql")
    span = torch.full((ACTIONS,), bound if reach is None else reach)
    policy = actor(_Uniform, (bound,) * ACTIONS, low=-span, high=span)
    key = getattr(loss.tensor_keys, "state_action_value", "state_action_value")
    critics = [network(_Beyond(slope), key) for _ in range(2)]
    usual = {"temperature": 1.0, "with_lagrange": False}
    options = {name: x for name, x in usual.items() if name in arguments} | options
    return _again(loss, actor_network=policy, qvalue_network=critics, **options)


def _penalty(loss: LossModule, **options: Any) -> float:
    return call(*_conservative(loss, **options))["loss_cql"].item()


def _zero_penalty(loss: LossModule, bound: float = 1.0, number: int = 1) -> tuple[float, float]:
    """The penalty of a zero critic under a uniform policy, found and expected.

    Each of the 3n entries is 0 - log(1 / volume). What the loss multiplies by (its weight, the
    critics) shows where n is 1 and the box is [-1, 1].
    """
    unit = _penalty(loss, num_random=1) / math.log(3 * 2.0**ACTIONS)
    assert unit > 0, "the penalty of a zero critic must be positive"
    found = _penalty(loss, bound=bound, num_random=number) / unit
    return found, math.log(3 * number * (2 * bound) ** ACTIONS)


def _penalty_samples(loss: LossModule, batch: TensorDict) -> None:
    found, expected = _zero_penalty(loss, number=10)
    assert math.isclose(found, expected, rel_tol=1e-4), (
        "the logsumexp over 3 * num_random actions of a zero critic must be log(3 n volume) = "
        f"{expected:.3f} for n = 10, got {found:.3f}, which is that of "
        f"{math.exp(found) / 2**ACTIONS:.0f} actions"
    )


def _penalty_bounds(loss: LossModule, batch: TensorDict) -> None:
    reached = _penalty(loss, bound=3.0, reach=0.5, slope=100.0, num_random=50)
    flat = _penalty(loss, bound=3.0, reach=0.5, num_random=50)
    assert reached - flat > 10, (
        "random actions must fill the box of the action spec, [-3, 3]: none of 50 was beyond 1.5"
    )
    found, expected = _zero_penalty(loss, bound=3.0)
    assert math.isclose(found, expected, rel_tol=1e-4), (
        "random actions must be corrected by the volume of the box, so that the penalty of a zero "
        f"critic is log(3 n volume) = {expected:.3f}, got {found:.3f}"
    )


def _lagrange(loss: LossModule, thresh: float) -> tuple[LossModule, TensorDict, nn.Parameter]:
    needs("with_lagrange" in arguments_of(type(loss)), "the argument with_lagrange")
    options = {"with_lagrange": True, "lagrange_thresh": thresh, "num_random": 4, "slope": 1.0}
    made, batch = _conservative(loss, bound=3.0, **options)
    needs(hasattr(made, "log_alpha_prime"), "a multiplier log_alpha_prime")
    return made, batch, made.log_alpha_prime


def _multiplier_gradient(loss: LossModule, batch: TensorDict) -> None:
    slopes = []
    for thresh in (0.0, 1e3):
        made, batch, multiplier = _lagrange(loss, thresh)
        call(made, batch)["loss_alpha_prime"].backward()
        gradients = {name: p.grad for name, p in made.named_parameters() if p is not multiplier}
        reached = [name for name, grad in gradients.items() if grad is not None and grad.any()]
        assert not reached, f"loss_alpha_prime must reach its multiplier alone, not {reached}"
        slopes.append(0.0 if multiplier.grad is None else multiplier.grad.item())
    assert slopes[0] < 0, "the multiplier must grow while the gap is above lagrange_thresh"
    assert slopes[1] > 0, "the multiplier must shrink while the gap is below lagrange_thresh"


def _multiplier(loss: LossModule, batch: TensorDict) -> None:
    made, batch, multiplier = _lagrange(loss, 0.0)
    slope = next(p for n, p in made.named_parameters() if n.startswith("qvalue") and "slope" in n)
    pushes = []
    for _ in range(2):
        out = call(made, batch)
        made.zero_grad()
        (out["loss_cql"] + out["loss_alpha_prime"]).backward()
        pushes.append(slope.grad.mean().item())
        with torch.no_grad():
            multiplier.add_(math.log(4))
    assert math.isclose(pushes[1], 4 * pushes[0], rel_tol=1e-4), (
        "four times the multiplier must push the critics four times as hard, it does "
        f"{pushes[1] / pushes[0]:.2f} times as hard"
    )


# ---- discriminators ----------------------------------------------------------------------------


class _Constant(nn.Module):
    """The same answer for all."""

    def __init__(self, answer: float) -> None:
        super().__init__()
        self.answer = nn.Parameter(torch.tensor(answer))

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        return self.answer.expand(*observation.shape[:-1], 1)


def _logits(loss: LossModule, batch: TensorDict) -> None:
    needs("discriminator_network" in arguments_of(type(loss)), "a discriminator")
    key = getattr(loss.tensor_keys, "discriminator_pred", "")
    needs("logits" in str(key), "logits in the name of what the discriminator writes")
    # Each answer l is right for one half and wrong for the other: softplus(l) + softplus(-l).
    found, expected = [], []
    for answer in (0.0, 3.0, -3.0):
        made = _again(loss, discriminator_network=network(_Constant(answer), key))
        try:
            out = call(*made)
        except RuntimeError as error:
            raise AssertionError(
                f"logits of {answer} in {key!r} end in an error: {error}"
            ) from error
        found.append(sum(x.item() for x in out.values() if x.requires_grad))
        expected.append(F.softplus(torch.tensor([answer, -answer])).sum().item())
    assert_close(
        torch.tensor(found) / found[0], torch.tensor(expected) / expected[0],
        f"the cross entropy of {key!r} is not that of logits: 0, 3, -3 give {found}", 1e-4,
    )  # fmt: skip


EQUATIONS = {
    "n_step": _n_step,
    "time_limits": _time_limits,
    "penalty_samples": _penalty_samples,
    "penalty_bounds": _penalty_bounds,
    "multiplier": _multiplier,
    "multiplier_gradient": _multiplier_gradient,
    "logits": _logits,
}
