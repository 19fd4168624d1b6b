"""Reading networks and batches: direct calls where a TensorDict would only cost time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution
from torchrl.modules import TanhNormal

__all__ = [
    "action_index",
    "action_log_prob",
    "blank",
    "call_at",
    "call_network",
    "call_with",
    "distribution",
    "frozen",
    "is_squashed",
    "read",
    "squashed_parameters",
    "step_key",
]


def blank(batch: TensorDictBase, mask: Tensor) -> TensorDictBase:
    """A copy whose masked rows are zero: NaN in padding would reach every gradient as 0 * NaN."""

    def clean(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        rows = mask.reshape(*mask.shape, *[1] * (x.ndim - mask.ndim))
        return torch.where(rows, x, torch.zeros_like(x))

    return batch.apply(clean)


def call_network(
    network: nn.Module, batch: TensorDictBase, key: NestedKey, *, next_step: bool = False
) -> Tensor | None:
    """Output ``key`` of a network; inputs that do not fit are refused by name and shape."""
    inputs = network_inputs(network, batch, next_step=next_step)
    try:
        if is_plain(network):
            out = network.module(*inputs)
            return out[network.out_keys.index(key)] if isinstance(out, tuple) else out
        data = TensorDict(dict(zip(network.in_keys, inputs, strict=True)), batch.batch_size)
        return network(data).get(key)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        shapes = {k: tuple(x.shape) for k, x in zip(network.in_keys, inputs, strict=True)}
        raise ValueError(f"a network fails on inputs of shape {shapes}: {error}") from error


def call_with(
    network: nn.Module,
    batch: TensorDictBase,
    given: dict[NestedKey, Tensor],
    key: NestedKey,
    *,
    next_step: bool = False,
) -> Tensor:
    """Output ``key`` of a network on the batch with some inputs ``given`` ``(batch, ...)``."""
    inputs = [
        given[name] if name in given else read(batch, step_key(name) if next_step else name)
        for name in network.in_keys
    ]
    try:
        if is_plain(network):
            out = network.module(*inputs)
            return out[network.out_keys.index(key)] if isinstance(out, tuple) else out
        data = TensorDict(dict(zip(network.in_keys, inputs, strict=True)), batch.batch_size)
        return network(data).get(key)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        shapes = {k: tuple(x.shape) for k, x in zip(network.in_keys, inputs, strict=True)}
        raise ValueError(f"a network fails on inputs of shape {shapes}: {error}") from error


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Gradients pass through the module, but do not reach its parameters.

    Cheaper than a functional call with detached parameters, but not for a compiled graph.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    for p in trained:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in trained:
            p.requires_grad_(True)


def call_at(
    network: nn.Module,
    batch: TensorDictBase,
    given: dict[NestedKey, Tensor],
    key: NestedKey,
    *,
    next_step: bool = False,
    frozen: bool = False,
) -> Tensor:
    """Output ``key`` of a network on the batch with some inputs ``given`` ``(k, batch, ...)``.

    The other inputs are repeated k times (as views). With ``frozen`` no gradient reaches the
    network's parameters, but those of the inputs flow.
    """
    number = next(iter(given.values())).shape[0]
    inputs = []
    for name in network.in_keys:
        if name in given:
            inputs.append(given[name])
        else:
            value = read(batch, step_key(name) if next_step else name)
            inputs.append(value.expand(number, *value.shape))
    plain = is_plain(network)
    module = network.module if plain else network
    arguments = tuple(inputs)
    if not plain:
        shape = (number, *batch.batch_size)
        arguments = (TensorDict(dict(zip(network.in_keys, inputs, strict=True)), shape),)
    try:
        if frozen:
            tensors = {k: p.detach() for k, p in module.named_parameters()}
            out = torch.func.functional_call(module, tensors, arguments)
        else:
            out = module(*arguments)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        shapes = {k: tuple(x.shape) for k, x in zip(network.in_keys, inputs, strict=True)}
        raise ValueError(f"a network fails on inputs of shape {shapes}: {error}") from error
    if not plain:
        return out.get(key)
    return out[network.out_keys.index(key)] if isinstance(out, tuple) else out


def action_index(action: Tensor, number: int, batch_size: torch.Size, key: NestedKey) -> Tensor:
    """Discrete actions as integers ``(batch,)``, from ``(batch,)``, ``(batch, 1)`` or one-hot."""
    if action.shape == batch_size and not action.is_floating_point():
        return action.long()
    if action.shape == (*batch_size, number) and number > 1:
        return action.argmax(-1)
    if action.shape == (*batch_size, 1) and not action.is_floating_point():
        return action.squeeze(-1).long()
    raise ValueError(
        f"entry {key!r} must be integers of shape {tuple(batch_size)} or {(*batch_size, 1)}, or "
        f"one-hot of shape {(*batch_size, number)}; got {action.dtype} of shape "
        f"{tuple(action.shape)}"
    )


def action_log_prob(dist: Distribution, batch: TensorDictBase, key: NestedKey) -> Tensor:
    """Log-probability of the batch's actions, ``(batch,)``; integers and one-hot are both read."""
    action = read(batch, key)
    if isinstance(dist, Categorical):
        action = action_index(action, dist.logits.shape[-1], batch.batch_size, key)
    elif action.shape != (shape := (*dist.batch_shape, *dist.event_shape)):
        raise ValueError(f"entry {key!r} must have shape {tuple(shape)}, got {tuple(action.shape)}")
    return dist.log_prob(action).reshape(batch.batch_size)


def step_key(key: NestedKey) -> tuple[str, ...]:
    """The key of the same entry at the next step."""
    return ("next", key) if isinstance(key, str) else ("next", *key)


def network_inputs(
    network: nn.Module, batch: TensorDictBase, *, next_step: bool = False
) -> list[Tensor]:
    """The network's ``in_keys`` from the batch, or from its ``next`` entry."""
    if next_step:
        return [read(batch, step_key(key)) for key in network.in_keys]
    return [read(batch, key) for key in network.in_keys]


def read(batch: TensorDictBase, key: NestedKey) -> Tensor:
    """An entry of the batch, or a KeyError that says what is there."""
    value = batch.get(key, None)
    if value is None:
        raise KeyError(
            f"the batch has no entry {key!r}; it has {sorted(map(str, batch.keys(True)))}"
        )
    return value


def is_plain(network: nn.Module) -> bool:
    """Whether calling ``network.module`` on the inputs is all that the network does."""
    return (
        isinstance(network, TensorDictModule)
        and type(network).forward is TensorDictModule.forward
        and network._kwargs is None
        and network.method is None
        and not network._forward_hooks
        and not network._forward_pre_hooks
    )


def squashed_parameters(
    actor: nn.Module, batch: TensorDictBase, *, next_step: bool = False
) -> tuple[Tensor, Tensor]:
    """Location and scale before the tanh, of an actor that :func:`is_squashed`."""
    network = actor.module[0]
    return network.module(*network_inputs(network, batch, next_step=next_step))


def is_squashed(actor: nn.Module, low: Tensor, high: Tensor) -> bool:
    """Whether the actor is one network and a plain TanhNormal over this box on top of it."""
    if not _is_pair(actor):
        return False
    network, head = actor.module
    options = dict(head.distribution_kwargs)
    return (
        head.distribution_class is TanhNormal
        and list(head.in_keys) == list(network.out_keys) == ["loc", "scale"]
        and not options.pop("tanh_loc", False)
        and torch.equal(torch.as_tensor(options.pop("low", -1.0)).expand_as(low), low)
        and torch.equal(torch.as_tensor(options.pop("high", 1.0)).expand_as(high), high)
        and not options
    )


def _is_pair(actor: nn.Module) -> bool:
    """Whether the actor is a plain network and a distribution of its outputs."""
    return (
        isinstance(actor, ProbabilisticTensorDictSequential)
        and len(actor.module) == 2
        and is_plain(actor.module[0])
        and isinstance(actor.module[1], ProbabilisticTensorDictModule)
    )


def distribution(
    actor: nn.Module, batch: TensorDictBase, *, next_step: bool = False
) -> Distribution:
    """The actor's action distribution at the batch's observations, or at the next ones."""
    if _is_pair(actor):
        network, head = actor.module
        out = network.module(*network_inputs(network, batch, next_step=next_step))
        out = out if isinstance(out, tuple) else (out,)
        # get_dist only looks its parameters up by key, which a dictionary does as well.
        return head.get_dist(dict(zip(network.out_keys, out, strict=True)))
    inputs = network_inputs(actor, batch, next_step=next_step)
    return actor.get_dist(TensorDict(dict(zip(actor.in_keys, inputs, strict=True)), batch.shape))
