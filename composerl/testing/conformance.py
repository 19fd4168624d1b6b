"""Checks that a loss behaves as a native TorchRL LossModule."""

import dataclasses
from collections.abc import Callable
from copy import deepcopy

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, unravel_key
from torchrl.objectives import LossModule

from composerl.testing.numbers import CHECKS, assert_close, call, error_of, minimised

__all__ = ["check_loss"]


def check_loss(
    loss: LossModule, batch: TensorDictBase, *, num_actions: int | None = None, compile: bool = True
) -> None:
    """Raise an AssertionError that says which convention of TorchRL's losses is broken.

    Args:
        loss: a loss with ``reduction="mean"``, not used before.
        batch: a batch it can be called on, at least 4 rows; neither of the two is modified.
        num_actions: for discrete actions, how many there are: integer and one-hot forms must agree.
        compile: whether to check that ``torch.compile(fullgraph=True)`` finds no graph break
            (some seconds).
    """
    if not isinstance(loss, LossModule):
        raise TypeError(f"check_loss needs a TorchRL LossModule, got a {type(loss).__name__}")
    checks: list[Callable[[LossModule, TensorDict], None]] = [
        _keys, _outputs, _input_untouched, _dispatch, *CHECKS, _coefficients, _state_dict,
        _copies_and_moves, _bad_action,
    ]  # fmt: skip
    for check in checks:
        check(deepcopy(loss), batch.clone())
    if num_actions is not None:
        _discrete_forms(deepcopy(loss), batch.clone(), num_actions)
    if compile:
        _one_graph(deepcopy(loss), batch.clone())


def _keys(loss: LossModule, batch: TensorDict) -> None:
    assert dataclasses.is_dataclass(loss._AcceptedKeys), "_AcceptedKeys must be a dataclass"
    assert loss.default_keys is loss._AcceptedKeys, "default_keys must be _AcceptedKeys"
    before = list(loss.in_keys)
    missing = [key for key in before if batch.get(key, None) is None]
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
    assert set(out.keys()) == set(loss.out_keys), f"{set(out.keys())} != {loss.out_keys}"
    assert minimised(out), "no output starts with loss_"
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
    assert not extra, f"the loss wrote {extra} into its input"
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
        out = loss(**{flat(key): batch.get(key) for key in loss.in_keys})
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
    if key is None or key not in loss.in_keys:
        return
    action = batch.get(key)
    batch.set(key, torch.zeros(*batch.shape, 2, 5, 3, dtype=action.dtype))
    message = error_of(lambda: loss(batch))
    assert repr(key) in message, f"a wrong action must be refused naming {key!r}, got: {message}"
    assert "shape" in message, f"a wrong action must be refused with its shape, got: {message}"


def _discrete_forms(loss: LossModule, batch: TensorDict, num_actions: int) -> None:
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


def _one_graph(loss: LossModule, batch: TensorDict) -> None:
    torch.compiler.reset()
    # The eager backend still fails on a graph break, without the time of generating code.
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    expected = call(loss, batch)
    out = call(compiled, batch)
    for key in minimised(expected):
        assert_close(out[key], expected[key], f"{key} when compiled")
