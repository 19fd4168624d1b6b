"""Calling networks: directly with tensors, where a TensorDict would only cost time."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import Tensor, nn
from torch.distributions import Distribution

from composerl.losses.reading import read, step_key

__all__ = [
    "as_pair",
    "call_network",
    "call_networks",
    "distribution",
    "evaluate",
    "frozen",
    "inputs_of",
    "inside",
    "network_inputs",
]


def network_inputs(
    network: TensorDictModule,
    batch: TensorDictBase,
    *,
    given: Mapping[NestedKey, Tensor] | None = None,
    lead: tuple[int, ...] = (),
    next_step: bool = False,
) -> list[Tensor]:
    """The network's ``in_keys``: see :func:`call_network`."""
    inputs = []
    for name in network.in_keys:
        if given is not None and name in given:
            inputs.append(given[name])
        else:
            value = read(batch, step_key(name) if next_step else name)
            inputs.append(value.expand(*lead, *value.shape) if lead else value)
    return inputs


def call_network(
    network: TensorDictModule,
    batch: TensorDictBase,
    key: NestedKey,
    *,
    given: Mapping[NestedKey, Tensor] | None = None,
    lead: tuple[int, ...] = (),
    next_step: bool = False,
    frozen: bool = False,
) -> Tensor:
    """Output ``key`` of a network on the batch, or on its ``next`` entry.

    Args:
        given: inputs that take the place of the batch's, ``(*lead, *batch, ...)``.
        lead: sizes of the dimensions that the given ones have before those of the batch; the
            others are repeated along them (as views).
        frozen: no gradient reaches the network's parameters, but those of the inputs flow.
    """
    (out,) = call_networks(
        [network], batch, key, given=given, lead=lead, next_step=next_step, frozen=frozen
    )
    return out


def call_networks(
    networks: Iterable[TensorDictModule],
    batch: TensorDictBase,
    key: NestedKey,
    *,
    given: Mapping[NestedKey, Tensor] | None = None,
    lead: tuple[int, ...] = (),
    next_step: bool = False,
    frozen: bool = False,
) -> list[Tensor]:
    """The same of several networks; the batch is read once for those with the same ``in_keys``."""
    names: Sequence[NestedKey] = ()
    inputs: list[Tensor] = []
    values = []
    for network in networks:
        if (own := network.in_keys) != names:
            names = own
            inputs = network_inputs(network, batch, given=given, lead=lead, next_step=next_step)
        plain = _is_plain(network)
        module = inside(network) if plain else network
        call = _without_parameters(module) if frozen else module
        if plain:
            out = evaluate(call, names, inputs)
            value = out[network.out_keys.index(key)] if isinstance(out, tuple) else out
        else:
            value = evaluate(_by_name(call, names, (*lead, *batch.batch_size)), names, inputs).get(
                key, None
            )
        if value is None:
            raise ValueError(f"a network must write {key!r}, it writes {list(network.out_keys)}")
        values.append(value)
    return values


def _by_name(
    call: Callable[..., Any], names: Sequence[NestedKey], shape: Sequence[int]
) -> Callable[..., Any]:
    """The call, of a TensorDict, as a function of its entries."""
    return lambda *inputs: call(TensorDict(dict(zip(names, inputs, strict=True)), shape))


def evaluate(
    function: Callable[..., Any], names: Sequence[NestedKey], inputs: Sequence[Tensor]
) -> Any:
    """The function of the inputs; misfits are refused by name and shape."""
    try:
        return function(*inputs)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        shapes = {name: tuple(x.shape) for name, x in zip(names, inputs, strict=True)}
        raise ValueError(f"a network fails on inputs of shape {shapes}: {error}") from error


def _without_parameters(module: nn.Module) -> Callable[..., Any]:
    if torch.compiler.is_compiling():
        tensors = {name: p.detach() for name, p in module.named_parameters()}
        return lambda *arguments: torch.func.functional_call(module, tensors, arguments)

    def call(*arguments: Any) -> Any:
        with frozen(_parameters_of(module)):
            return module(*arguments)

    return call


def _parameters_of(module: nn.Module) -> Iterator[nn.Parameter]:
    """``module.parameters()``, some perhaps twice, at a fifth of its time."""
    modules = [module]
    for one in modules:
        for p in one._parameters.values():
            if p is not None:
                yield p
        modules += [part for part in one._modules.values() if part is not None]


@contextmanager
def frozen(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Gradients pass through the modules of the parameters, but do not reach them.

    Cheaper than a functional call with detached parameters, but not for a compiled graph.
    """
    trained = [p for p in parameters if p.requires_grad]
    for p in trained:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in trained:
            p.requires_grad_(True)


def distribution(
    actor: ProbabilisticTensorDictSequential, batch: TensorDictBase, *, next_step: bool = False
) -> Distribution:
    """The actor's action distribution at the batch's observations, or at the next ones."""
    pair = as_pair(actor)
    if pair is not None:
        network, head = pair
        out = inside(network)(*network_inputs(network, batch, next_step=next_step))
        out = out if isinstance(out, tuple) else (out,)
        # get_dist only looks its parameters up by key, which a dictionary does as well.
        return head.get_dist(dict(zip(network.out_keys, out, strict=True)))
    keys = inputs_of(actor)
    values = [read(batch, step_key(key) if next_step else key) for key in keys]
    return actor.get_dist(TensorDict(dict(zip(keys, values, strict=True)), batch.shape))


def inside(network: nn.Module) -> Any:
    """``network.module``, without TensorDictModule's own way to its attributes."""
    return network._modules.get("module") or network.module


def inputs_of(network: TensorDictModule) -> list[NestedKey]:
    """What the network reads, less the group of parameters that it writes itself one by one."""
    groups = {key[0] for key in getattr(network, "out_keys", ()) if isinstance(key, tuple)}
    return [key for key in network.in_keys if key not in groups]


def as_pair(actor: nn.Module) -> tuple[TensorDictModule, ProbabilisticTensorDictModule] | None:
    """The actor's two parts, if it is a plain network and a distribution of its outputs alone."""
    if not isinstance(actor, ProbabilisticTensorDictSequential):
        return None
    parts = [*inside(actor)]
    if len(parts) != 2:
        return None
    network, head = parts
    if not _is_plain(network) or not isinstance(head, ProbabilisticTensorDictModule):
        return None
    # A mask of the actions, for example, comes from the batch.
    alone = head.in_keys == network.out_keys or {*head.in_keys} <= {*network.out_keys}
    return (network, head) if alone else None


def _is_plain(network: nn.Module) -> bool:
    """Whether calling ``network.module`` on the inputs is all that the network does."""
    return (
        isinstance(network, TensorDictModule)
        and type(network).forward is TensorDictModule.forward
        and network._kwargs is None
        and network.method is None
        and not network._forward_hooks
        and not network._forward_pre_hooks
    )
