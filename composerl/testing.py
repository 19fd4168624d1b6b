"""Checks that a loss behaves as a native TorchRL LossModule; usable on your own losses too.

from composerl.testing import check_loss

def test_my_loss():
    check_loss(my_loss, batch)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from copy import deepcopy

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, unravel_key
from torch import Tensor
from torchrl.objectives import HardUpdate, LossModule, SoftUpdate, ValueEstimators

__all__ = ["check_loss"]

MASK = ("collector", "mask")


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
        _keys, _outputs, _input_untouched, _dispatch, _reductions, _mask, _weights, _priority,
        _gradients, _targets, _value_estimator, _coefficients, _state_dict, _copies_and_moves,
        _bad_action,
    ]  # fmt: skip
    for check in checks:
        check(deepcopy(loss), batch.clone())
    if num_actions is not None:
        _discrete_forms(deepcopy(loss), batch.clone(), num_actions)
    if compile:
        _one_graph(deepcopy(loss), batch.clone())


def _call(loss: LossModule, batch: TensorDictBase, seed: int = 0) -> TensorDictBase:
    """The loss on a copy of the batch, with the same random numbers at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return loss(batch.clone())


def _minimised(out: TensorDictBase) -> list[str]:
    return [key for key in out.keys() if key.startswith("loss_")]  # noqa: SIM118


def _close(a: Tensor, b: Tensor, what: str, tolerance: float = 1e-5) -> None:
    assert torch.allclose(a, b, rtol=tolerance, atol=tolerance), f"{what}: {a} != {b}"


def _keys(loss: LossModule, batch: TensorDict) -> None:
    assert dataclasses.is_dataclass(loss._AcceptedKeys), "_AcceptedKeys must be a dataclass"
    assert loss.default_keys is loss._AcceptedKeys, "default_keys must be _AcceptedKeys"
    before = list(loss.in_keys)
    missing = [key for key in before if batch.get(key, None) is None]
    assert not missing, f"in_keys names entries that the batch lacks: {missing}"
    expected = _call(loss, batch)
    for field in dataclasses.fields(loss._AcceptedKeys):
        if getattr(loss.tensor_keys, field.name) == "reward":
            # Transitions have the reward under "next", records of sequences beside the rest.
            beside = "reward" in before
            old, new = (key if beside else ("next", key) for key in ("reward", "renamed"))
            loss.set_keys(**{field.name: "renamed"})
            moved = batch.clone().rename_key_(old, new)
            assert new in loss.in_keys, "set_keys must change in_keys"
            out = _call(loss, moved)
            for key in _minimised(expected):
                _close(out[key], expected[key], f"{key} after set_keys({field.name}=...)")
            loss.set_keys(**{field.name: None})
    loss.in_keys = before[:1]
    assert list(loss.in_keys) == before[:1], "in_keys must be settable"
    assert _error(lambda: loss.set_keys(no_such_key="x")), "set_keys must refuse unknown names"


def _outputs(loss: LossModule, batch: TensorDict) -> None:
    out = _call(loss, batch)
    assert set(out.keys()) == set(loss.out_keys), f"{set(out.keys())} != {loss.out_keys}"
    assert _minimised(out), "no output starts with loss_"
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

    expected = _call(loss, batch)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        out = loss(**{flat(key): batch.get(key) for key in loss.in_keys})
    out = out if isinstance(out, tuple) else (out,)
    for key, value in zip(loss.out_keys, out, strict=True):
        _close(value, expected[key], f"{key} when called with keyword tensors")


def _reductions(loss: LossModule, batch: TensorDict) -> None:
    outs = {}
    for reduction in ("mean", "sum", "none"):
        loss.reduction = reduction
        outs[reduction] = _call(loss, batch)
    for key in _minimised(outs["mean"]):
        rows = outs["none"][key]
        assert rows.shape[0] == batch.shape[0], f"{key} with reduction 'none': {rows.shape}"
        _close(rows.mean(), outs["mean"][key], f"{key}: mean of 'none' against 'mean'")
        _close(rows.sum(), outs["sum"][key], f"{key}: sum of 'none' against 'sum'", 1e-4)


def _mask(loss: LossModule, batch: TensorDict) -> None:
    half = batch.shape[0] // 2
    mask = torch.ones(*batch.shape, 1, dtype=torch.bool)
    mask[half:] = False
    batch.set(MASK, mask)
    garbage = batch.apply(lambda x: x.clone())
    for key in batch.keys(True, True):
        if garbage.get(key).is_floating_point():
            garbage.get(key)[half:] = torch.nan
    gradients = []
    for padding in (batch, garbage):
        out = _call(loss, padding)
        loss.zero_grad()
        sum(out[key] for key in _minimised(out)).backward()
        gradients.append([p.grad for p in loss.parameters() if p.grad is not None])
        if padding is batch:
            expected = out
    for key in _minimised(expected):
        _close(out[key], expected[key], f"{key} with NaN in rows masked by {MASK}")
    for a, b in zip(*gradients, strict=True):
        _close(a, b, f"a gradient with NaN in rows masked by {MASK}")
    loss.reduction = "none"
    rows = _call(loss, batch)
    for key in _minimised(rows):
        assert not rows[key][half:].any(), f"{key}: rows masked by {MASK} must be zero"
        _close(rows[key].sum() / mask.sum(), expected[key], f"{key}: the mean counts masked rows")


def _weights(loss: LossModule, batch: TensorDict) -> None:
    key_name = getattr(loss.tensor_keys, "priority_weight", None)
    assert key_name is not None, "tensor_keys must have priority_weight"
    weights = torch.linspace(0.1, 2.0, batch.numel()).reshape(batch.shape)
    weighted = batch.clone().set(key_name, weights)
    out = _call(loss, weighted)
    loss.reduction = "none"
    rows = _call(loss, batch)
    for key in _minimised(out):
        expected = (rows[key] * weights).sum() / weights.sum()
        _close(out[key], expected, f"{key} with priority weights", 1e-4)


def _priority(loss: LossModule, batch: TensorDict) -> None:
    if not hasattr(loss.tensor_keys, "priority"):
        return
    loss.set_keys(priority="my_priority")
    loss(batch)
    priority = batch.get("my_priority", None)
    assert priority is not None, "the priority must be written under tensor_keys.priority"
    assert priority.shape[: batch.ndim] == batch.shape, f"priority has shape {priority.shape}"
    assert not priority.requires_grad, "the priority must be detached"
    assert bool((priority >= 0).all()), "the priority must not be negative"


def _gradients(loss: LossModule, batch: TensorDict) -> None:
    out = _call(loss, batch)
    reached: dict[str, set[str]] = {}
    for key in _minimised(out):
        loss.zero_grad()
        out[key].backward(retain_graph=True)
        names = [n for n, p in loss.named_parameters() if p.grad is not None and p.grad.any()]
        reached[key] = {name.split(".")[0] for name in names}
        assert names, f"{key} reaches no parameter"
        for other, networks in reached.items():
            # Two losses may train one network together, but none may touch another's.
            if networks & reached[key]:
                assert networks == reached[key], f"{key} and {other} share {networks} only in part"
    for name, parameter in torch.nn.Module.named_parameters(loss):
        if name.startswith("target_"):
            assert parameter.grad is None, f"the target {name} got a gradient"


def _targets(loss: LossModule, batch: TensorDict) -> None:
    names = [n for n, _ in loss.named_children() if n.startswith("target_") and "_params" in n]
    if not names:
        return
    trained = {id(p) for p in loss.parameters()}
    for name in names:
        for key, value in getattr(loss, name).items(True, True):
            assert id(value) not in trained, f"{name}/{key} is listed by parameters()"
            assert not value.requires_grad, f"{name}/{key} requires a gradient"
    for updater, share in (
        (SoftUpdate(deepcopy(loss), tau=0.25), 0.25),
        (HardUpdate(deepcopy(loss), value_network_update_interval=0), 1.0),
    ):
        module = updater.loss_module
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(1.0)
        before = {name: getattr(module, name).clone() for name in names}
        updater.step()
        for name in names:
            source = getattr(module, name.removeprefix("target_"))
            for key, value in getattr(module, name).items(True, True):
                if source.get(key).requires_grad:
                    expected = before[name].get(key).lerp(source.get(key), share)
                    _close(value, expected, f"{type(updater).__name__} of {name}/{key}")


def _value_estimator(loss: LossModule, batch: TensorDict) -> None:
    if loss.default_value_estimator is None:
        return
    assert loss.make_value_estimator(ValueEstimators.TD0, gamma=0.5) is loss, (
        "make_value_estimator must return self"
    )
    half = _call(loss, batch)
    zero = _call(loss.make_value_estimator(gamma=0.0), batch)
    changed = any(not torch.equal(half[key], zero[key]) for key in _minimised(half))
    assert changed, "make_value_estimator(gamma=...) changes no loss"


def _coefficients(loss: LossModule, batch: TensorDict) -> None:
    floats = [name for name, value in vars(loss).items() if isinstance(value, float)]
    assert not floats, f"coefficients must be buffers, to travel in the state dict: {floats}"


def _state_dict(loss: LossModule, batch: TensorDict) -> None:
    fresh = deepcopy(loss)
    with torch.no_grad():
        for parameter in loss.parameters():
            parameter.add_(0.1)
    expected = _call(loss, batch)
    fresh.load_state_dict(loss.state_dict())
    out = _call(fresh, batch)
    for key in _minimised(expected):
        assert torch.equal(out[key], expected[key]), f"{key} differs after load_state_dict"


def _copies_and_moves(loss: LossModule, batch: TensorDict) -> None:
    expected = _call(loss, batch)
    copy = deepcopy(loss)
    assert not {id(p) for p in copy.parameters()} & {id(p) for p in loss.parameters()}
    other = _call(loss, batch, seed=1)
    doubled = batch.apply(lambda x: x.double() if x.is_floating_point() else x)
    out = _call(copy.double(), doubled)
    for key in _minimised(expected):
        assert out[key].dtype == torch.float64, f"{key} after .double() is {out[key].dtype}"
        if torch.equal(other[key], expected[key]):  # random numbers differ between types
            _close(out[key].float(), expected[key], f"{key} after deepcopy and .double()", 1e-3)
    if torch.cuda.is_available():
        _call(deepcopy(loss).cuda(), batch.cuda())


def _bad_action(loss: LossModule, batch: TensorDict) -> None:
    key = getattr(loss.tensor_keys, "action", None)
    if key is None or key not in loss.in_keys:
        return
    action = batch.get(key)
    batch.set(key, torch.zeros(*batch.shape, 2, 5, 3, dtype=action.dtype))
    message = _error(lambda: loss(batch))
    assert repr(key) in message, f"a wrong action must be refused naming {key!r}, got: {message}"
    assert "shape" in message, f"a wrong action must be refused with its shape, got: {message}"


def _error(call: Callable[[], object]) -> str:
    """The message of the error that a call ends in, empty if there is none."""
    try:
        call()
    except (ValueError, RuntimeError, KeyError) as error:
        return str(error)
    return ""


def _discrete_forms(loss: LossModule, batch: TensorDict, num_actions: int) -> None:
    key = loss.tensor_keys.action
    action = batch.get(key)
    one_hot = action.shape[-1] == num_actions and action.ndim > batch.ndim
    index = action.argmax(-1) if one_hot else action.reshape(batch.shape)
    forms = {
        "(B,)": index,
        "(B, 1)": index.unsqueeze(-1),
        "one-hot": torch.nn.functional.one_hot(index, num_actions),
    }
    outs = {name: _call(loss, batch.clone().set(key, form)) for name, form in forms.items()}
    for name, out in outs.items():
        for loss_key in _minimised(out):
            _close(out[loss_key], outs["(B,)"][loss_key], f"{loss_key} with {name} actions")


def _one_graph(loss: LossModule, batch: TensorDict) -> None:
    torch._dynamo.reset()
    # The eager backend still fails on a graph break, without the time of generating code.
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    expected = _call(loss, batch)
    out = _call(compiled, batch)
    for key in _minimised(expected):
        _close(out[key], expected[key], f"{key} when compiled")
