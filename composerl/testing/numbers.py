"""What the numbers of a loss must do: reductions, masks, weights, gradients, targets."""

from copy import deepcopy

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.objectives import HardUpdate, LossModule, SoftUpdate, ValueEstimators

from composerl.testing.checks import assert_close, needs

__all__ = ["NUMBERS", "call", "minimised"]

MASK = ("collector", "mask")


def call(loss: LossModule, batch: TensorDictBase, seed: int = 0) -> TensorDictBase:
    """The loss on a copy of the batch, with the same random numbers at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return loss(batch.clone())


def minimised(out: TensorDictBase) -> list[str]:
    """The outputs named ``loss_*``, or ``loss`` as a few of TorchRL's losses say."""
    return [key for key in out.keys() if key.startswith("loss_") or key == "loss"]  # noqa: SIM118


def _reductions(loss: LossModule, batch: TensorDict) -> None:
    outs = {}
    for reduction in ("mean", "sum", "none"):
        loss.reduction = reduction
        outs[reduction] = call(loss, batch)
    for key in minimised(outs["mean"]):
        rows = outs["none"][key]
        assert rows.shape[0] == batch.shape[0], f"{key} with reduction 'none': {rows.shape}"
        assert_close(rows.mean(), outs["mean"][key], f"{key}: mean of 'none' against 'mean'")
        assert_close(rows.sum(), outs["sum"][key], f"{key}: sum of 'none' against 'sum'", 1e-4)


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
        out = call(loss, padding)
        loss.zero_grad()
        sum(out[key] for key in minimised(out)).backward()
        gradients.append([p.grad for p in loss.parameters() if p.grad is not None])
        if padding is batch:
            expected = out
    for key in minimised(expected):
        assert_close(out[key], expected[key], f"{key} with NaN in rows masked by {MASK}")
    for expected_gradient, gradient in zip(*gradients, strict=True):
        assert_close(gradient, expected_gradient, f"a gradient with NaN in rows masked by {MASK}")
    loss.reduction = "none"
    rows = call(loss, batch)
    for key in minimised(rows):
        assert not rows[key][half:].any(), f"{key}: rows masked by {MASK} must be zero"
        assert_close(
            rows[key].sum() / mask.sum(), expected[key], f"{key}: the mean counts masked rows"
        )


def _weights(loss: LossModule, batch: TensorDict) -> None:
    key_name = getattr(loss.tensor_keys, "priority_weight", None)
    assert key_name is not None, "tensor_keys must have priority_weight"
    weights = torch.linspace(0.1, 2.0, batch.numel()).reshape(batch.shape)
    weighted = batch.clone().set(key_name, weights)
    out = call(loss, weighted)
    loss.reduction = "none"
    rows = call(loss, batch)
    for key in minimised(out):
        expected = (rows[key] * weights).sum() / weights.sum()
        assert_close(out[key], expected, f"{key} with priority weights", 1e-4)


def _priority(loss: LossModule, batch: TensorDict) -> None:
    needs(hasattr(loss.tensor_keys, "priority"), "a priority")
    loss.set_keys(priority="my_priority")
    loss(batch)
    priority = batch.get("my_priority", None)
    assert priority is not None, "the priority must be written under tensor_keys.priority"
    assert priority.shape[: batch.ndim] == batch.shape, f"priority has shape {priority.shape}"
    assert not priority.requires_grad, "the priority must be detached"
    assert bool((priority >= 0).all()), "the priority must not be negative"


def _gradients(loss: LossModule, batch: TensorDict) -> None:
    out = call(loss, batch)
    reached: dict[str, set[str]] = {}
    for key in minimised(out):
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
    needs(names, "target networks")
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
                    assert_close(value, expected, f"{type(updater).__name__} of {name}/{key}")


def _value_estimator(loss: LossModule, batch: TensorDict) -> None:
    needs(loss.default_value_estimator is not None, "a value estimator")
    assert loss.make_value_estimator(ValueEstimators.TD0, gamma=0.5) is loss, (
        "make_value_estimator must return self"
    )
    # Where advantages are there, nothing is left to estimate.
    batch = batch.exclude(getattr(loss.tensor_keys, "advantage", "advantage"))
    half = call(loss, batch)
    zero = call(loss.make_value_estimator(gamma=0.0), batch)
    changed = any(not torch.equal(half[key], zero[key]) for key in minimised(half))
    assert changed, "make_value_estimator(gamma=...) changes no loss"


NUMBERS = {
    "reductions": _reductions,
    "mask": _mask,
    "weights": _weights,
    "priority": _priority,
    "gradients": _gradients,
    "targets": _targets,
    "value_estimator": _value_estimator,
}
