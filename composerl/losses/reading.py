"""Reading networks and batches: direct calls where a TensorDict would only cost time."""

from __future__ import annotations

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import Tensor, nn
from torch.distributions import Distribution

__all__ = ["blank", "call_network", "distribution", "read"]


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
    except RuntimeError as error:
        shapes = {k: tuple(x.shape) for k, x in zip(network.in_keys, inputs, strict=True)}
        raise ValueError(f"a network fails on inputs of shape {shapes}: {error}") from error


def network_inputs(
    network: nn.Module, batch: TensorDictBase, *, next_step: bool = False
) -> list[Tensor]:
    """The network's ``in_keys`` from the batch, or from its ``next`` entry."""
    if next_step:
        return [
            read(batch, ("next", key) if isinstance(key, str) else ("next", *key))
            for key in network.in_keys
        ]
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


def distribution(actor: nn.Module, batch: TensorDictBase) -> Distribution:
    """The actor's action distribution on the batch."""
    if (
        isinstance(actor, ProbabilisticTensorDictSequential)
        and len(actor.module) == 2
        and is_plain(actor.module[0])
        and isinstance(actor.module[1], ProbabilisticTensorDictModule)
    ):
        network, head = actor.module
        out = network.module(*network_inputs(network, batch))
        out = out if isinstance(out, tuple) else (out,)
        # get_dist only looks its parameters up by key, which a dictionary does as well.
        return head.get_dist(dict(zip(network.out_keys, out, strict=True)))
    return actor.get_dist(batch.select(*actor.in_keys))
