"""Checks that a loss behaves as a native TorchRL LossModule."""

import dataclasses
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from unittest import SkipTest

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, unravel_key
from torchrl.objectives import LossModule

from composerl.testing.checks import assert_close, error_of, needs, run
from composerl.testing.equations import EQUATIONS
from composerl.testing.numbers import NUMBERS, call, minimised

__all__ = ["LOSS_CHECKS", "check_loss"]


def check_loss(
    loss: LossModule,
    batch: TensorDictBase,
    *,
    num_actions: int | None = None,
    compile: bool = True,
    only: str | None = None,
) -> None:
    """Raise an AssertionError that says what a TorchRL loss does and this one does not.

    Most checks are about conventions (keys, reductions, masks, gradients, targets, state dict). A
    loss that says what it is by its arguments and keys is also held to the equations: n-step
    returns, time limits, CQL's penalty and its Lagrange multiplier, logits of a discriminator.

    Args:
        loss: a loss with ``reduction="mean"``, not used before.
        batch: a batch it can be called on, at least 4 rows; neither of the two is modified.
        num_actions: for discrete actions, how many there are: integer and one-hot forms must agree.
        compile: whether to check that ``torch.compile(fullgraph=True)`` finds no graph break
            (some seconds).
        only: the name of one check, of ``LOSS_CHECKS``; ``unittest.SkipTest`` is raised if it does
            not concern this loss.
    """
    if not isinstance(loss, LossModule):
        raise TypeError(f"check_loss needs a TorchRL LossModule, got a {type(loss).__name__}")
    checks: dict[str, Callable[..., None]] = {
        **_CHECKS,
        "discrete_forms": partial(_discrete_forms, num_actions=num_actions),
        "one_graph": partial(_one_graph, compile=compile),
        # Last: TorchRL's functional losses do not recover from an error, not even their copies.
        "bad_action": _bad_action,
    }
    run(checks, only, lambda: (deepcopy(loss), batch.clone()))


def _keys(loss: LossModule, batch: TensorDict) -> None:
    assert dataclasses.is_dataclass(loss._AcceptedKeys), "_AcceptedKeys must be a dataclass"
    assert loss.default_keys is loss._AcceptedKeys, "default_keys must be _AcceptedKeys"
    before = list(loss.in_keys)
    optional = getattr(loss.tensor_keys, "priority_weight", None)
    missing = [key for key in before if batch.get(key, None) is None and key != optional]
    assert not missing, f"in_keys names entries that the batch lacks: {missing}"
    expected = call(loss, batch)
    for field in dataclasses.fields(loss._AcceptedKeys):
        if getattr(loss.tensor_keys, field.name) == "reward":
            # Transitions have the reward under "next", records of sequences beside the rest.
            beside = "reward" in before
            old, new = (key if beside else ("next", key) for key in ("reward", "renamed"))
            loss.set_keys(**{field.name: "renamed"})
            moved = batch.clone().rename_key_(old, new)
            assert new in loss.in_keys, "set_keys must change in_keys"
            out = call(loss, moved)
            for key in minimised(expected):
                assert_close(out[key], expected[key], f"{key} after set_keys({field.name}=...)")
            loss.set_keys(**{field.name: None})
    loss.in_keys = before[:1]
    assert list(loss.in_keys) == before[:1], "in_keys must be settable"
    assert error_of(lambda: loss.set_keys(no_such_key="x")), "set_keys must refuse unknown names"


def _outputs(loss: LossModule, batch: TensorDict) -> None:
    out = call(loss, batch)
    given, promised = sorted(out.keys()), sorted(loss.out_keys)
    # Metrics may go unnamed: who calls it with keyword tensors unpacks what out_keys promise.
    needed = {*promised, *(key for key in given if key.startswith("loss"))}
    assert needed == {*promised} & {*given}, (
        f"out_keys must name outputs, and all losses of {given}: they name {promised}"
    )
    assert any(key.startswith("loss_") for key in given), f"none of {given} starts with loss_"
    for key, value in out.items():
        if key.startswith("loss_"):
            assert value.requires_grad, f"{key} must carry a gradient"
        else:
            assert not value.requires_grad, f"{key} is no loss_*, it must be detached"
        assert value.shape == (), f"{key} must be a scalar, got {tuple(value.shape)}"


def _input_untouched(loss: LossModule, batch: TensorDict) -> None:
    given = batch.clone()
    loss(given)
    allowed = unravel_key(getattr(loss.tensor_keys, "priority", "_"))
    extra = {k for k in given.keys(True, True) if k not in batch.keys(True, True)} - {allowed}
    assert not extra, f"the loss wrote {sorted(map(str, extra))} into its input"
    for key in batch.keys(True, True):
        if key != allowed:
            same = torch.equal(given.get(key), batch.get(key))
            assert same, f"the loss changed {key!r} of its input"


def _dispatch(loss: LossModule, batch: TensorDict) -> None:
    def flat(key: NestedKey) -> str:
        return key if isinstance(key, str) else "_".join(key)

    expected = call(loss, batch)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        out = loss(**{flat(key): batch.get(key) for key in loss.in_keys if key in batch.keys(True)})
    out = out if isinstance(out, tuple) else (out,)
    for key, value in zip(loss.out_keys, out, strict=True):
        assert_close(value, expected[key], f"{key} when called with keyword tensors")


def _coefficients(loss: LossModule, batch: TensorDict) -> None:
    floats = [name for name, value in vars(loss).items() if isinstance(value, float)]
    assert not floats, f"coefficients must be buffers, to travel in the state dict: {floats}"


def _state_dict(loss: LossModule, batch: TensorDict) -> None:
    fresh = deepcopy(loss)
    with torch.no_grad():
        for parameter in loss.parameters():
            parameter.add_(0.1)
    expected = call(loss, batch)
    fresh.load_state_dict(loss.state_dict())
    out = call(fresh, batch)
    for key in minimised(expected):
        assert torch.equal(out[key], expected[key]), f"{key} differs after load_state_dict"


def _copies_and_moves(loss: LossModule, batch: TensorDict) -> None:
    expected = call(loss, batch)
    copy = deepcopy(loss)
    assert not {id(p) for p in copy.parameters()} & {id(p) for p in loss.parameters()}
    other = call(loss, batch, seed=1)
    doubled = batch.apply(lambda x: x.double() if x.is_floating_point() else x)
    out = call(copy.double(), doubled)
    for key in minimised(expected):
        assert out[key].dtype == torch.float64, f"{key} after .double() is {out[key].dtype}"
        if torch.equal(other[key], expected[key]):  # random numbers differ between types
            assert_close(
                out[key].float(), expected[key], f"{key} after deepcopy and .double()", 1e-3
            )
    if torch.cuda.is_available():
        call(deepcopy(loss).cuda(), batch.cuda())


def _bad_action(loss: LossModule, batch: TensorDict) -> None:
    key = getattr(loss.tensor_keys, "action", None)
    needs(key is not None and key in loss.in_keys, "an action")
    action = batch.get(key)
    batch.set(key, torch.zeros(*batch.shape, 2, 5, 3, dtype=action.dtype))
    message = error_of(lambda: loss(batch))
    assert repr(key) in message, f"a wrong action must be refused naming {key!r}, got: {message}"
    assert "shape" in message, f"a wrong action must be refused with its shape, got: {message}"


def _discrete_forms(loss: LossModule, batch: TensorDict, num_actions: int | None) -> None:
    if num_actions is None:
        raise SkipTest("num_actions is not given")
    key = loss.tensor_keys.action
    action = batch.get(key)
    given_one_hot = action.shape[-1] == num_actions and action.ndim > batch.ndim
    index = action.argmax(-1) if given_one_hot else action.reshape(batch.shape)
    one_hot = torch.nn.functional.one_hot(index, num_actions)
    forms = {"(B,)": index, "(B, 1)": index.unsqueeze(-1), "one-hot": one_hot}
    outs = {name: call(loss, batch.clone().set(key, form)) for name, form in forms.items()}
    for name, out in outs.items():
        for loss_key in minimised(out):
            assert_close(out[loss_key], outs["(B,)"][loss_key], f"{loss_key} with {name} actions")


def _one_graph(loss: LossModule, batch: TensorDict, compile: bool) -> None:
    needs(compile, "compile=True")
    torch.compiler.reset()
    # The eager backend still fails on a graph break, without the time of generating code.
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    expected = call(loss, batch)
    out = call(compiled, batch)
    for key in minimised(expected):
        assert_close(out[key], expected[key], f"{key} when compiled")


_CHECKS = {
    "keys": _keys,
    "outputs": _outputs,
    "input_untouched": _input_untouched,
    "dispatch": _dispatch,
    **NUMBERS,
    **EQUATIONS,
    "coefficients": _coefficients,
    "state_dict": _state_dict,
    "copies_and_moves": _copies_and_moves,
}
LOSS_CHECKS = (*_CHECKS, "discrete_forms", "one_graph", "bad_action")
