"""What the losses share: networks held as plain submodules, read without TensorDict churn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec
from torchrl.objectives import LossModule, ValueEstimators
from torchrl.objectives.utils import dispatch_value_estimator
from torchrl.objectives.value import ValueEstimatorBase

from composerl.losses.functional import DISTANCES
from composerl.losses.reading import call_network, read

__all__ = ["LeanLoss", "action_box", "check_number", "check_whole", "independent_copies"]

REDUCTIONS = ("mean", "sum", "none")


class LeanLoss(LossModule):
    """A LossModule whose networks are ordinary submodules.

    TorchRL swaps functional parameters into a stateless copy of each network at every call, which
    costs 20 to 50 % of an update. Here ``loss.actor_network`` *is* the module that was passed in:
    it is called directly and its parameters are optimised in place. What TorchRL code expects to
    find still exists: ``<name>_params`` and ``target_<name>_params`` are views (TensorDicts of the
    very same tensors; several critics under "0", "1", ... instead of stacked), so ``SoftUpdate``
    and ``HardUpdate`` work unchanged. Move or cast a loss before an optimizer is built on it.

    Subclasses register networks by plain assignment, and call :meth:`_make_target` for those with
    a target copy. ``parameters()`` lists the trained networks only.
    """

    default_value_estimator = ValueEstimators.TD0
    SUPPORTED_VALUE_ESTIMATORS = (
        ValueEstimators.TD0,
        ValueEstimators.TD1,
        ValueEstimators.TDLambda,
    )
    _target_names: tuple[str, ...] = ()

    def __init__(self, reduction: str | None = None, loss_function: str = "l2") -> None:
        super().__init__()
        reduction = "mean" if reduction is None else reduction
        if reduction not in REDUCTIONS:
            raise ValueError(f"reduction must be one of {REDUCTIONS}, got {reduction!r}")
        if loss_function not in DISTANCES:
            raise ValueError(f"loss_function must be one of {DISTANCES}, got {loss_function!r}")
        self.reduction = reduction
        self.loss_function = loss_function
        self._in_keys: list[NestedKey] | None = None

    # ---- networks and their targets ------------------------------------------------------

    def _make_target(self, name: str) -> None:
        """Add ``target_<name>``, a copy of a network that no gradient reaches."""
        target = deepcopy(getattr(self, name)).requires_grad_(False)
        setattr(self, f"target_{name}", target)
        self._target_names = (*self._target_names, name)
        self._has_update_associated[name] = False

    @property
    def functional(self) -> bool:
        """False: the networks hold their own parameters."""
        return False

    def reset_parameters_recursive(self) -> None:
        """Initialise the networks anew, and their targets with them."""
        for name, network in super().named_children():
            # Parts before the whole, which may change what they did.
            for module in () if name.startswith("target_") else [*network.modules()][::-1]:
                if hasattr(module, "reset_parameters"):
                    module.reset_parameters()
        for name in self._target_names:
            getattr(self, f"target_{name}").load_state_dict(getattr(self, name).state_dict())

    def __getattr__(self, name: str) -> Any:
        # What forward looks up comes first: this runs a dozen times per update.
        for kind in ("_modules", "_buffers"):
            found = self.__dict__.get(kind, {}).get(name)
            if found is not None:
                return found
        if name.endswith("_params"):
            module = self._modules.get(name.removesuffix("_params"))
            if module is not None:
                return TensorDict.from_module(module)
        return super().__getattr__(name)

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """The submodules, and the target views: TorchRL's updaters look for them here."""
        yield from super().named_children()
        for name in self._target_names:
            yield f"target_{name}_params", getattr(self, f"target_{name}_params")

    def children(self) -> Iterator[nn.Module]:
        """The submodules alone, so that moves and casts touch each tensor once."""
        for _, module in super().named_children():
            yield module

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of the trained networks; the target copies are left out."""
        hidden = tuple(f"{prefix}{'.' * bool(prefix)}target_{name}." for name in self._target_names)
        for name, parameter in nn.Module.named_parameters(self, prefix, recurse, remove_duplicate):
            if not hidden or not name.startswith(hidden):
                yield name, parameter

    # ---- keys and the value estimator ----------------------------------------------------

    @property
    def in_keys(self) -> list[NestedKey]:
        """The entries that ``forward`` reads."""
        if self._in_keys is None:
            self._set_in_keys()
        return self._in_keys

    @in_keys.setter
    def in_keys(self, values: Sequence[NestedKey]) -> None:
        self._in_keys = list(values)

    def make_value_estimator(
        self, value_type: ValueEstimators | None = None, **hyperparams: Any
    ) -> LeanLoss:
        """Choose how targets are made (TD0 by default, ``gamma=0.99``); returns self."""
        if value_type is None:
            value_type = self.default_value_estimator
        if hyperparams.get("gamma", 0.0) is None:
            del hyperparams["gamma"]
        if isinstance(gamma := hyperparams.get("gamma"), (int, float)):
            check_number("gamma", gamma, 0, 1, ends="[]")
        if isinstance(value_type, ValueEstimatorBase) or (
            isinstance(value_type, type) and issubclass(value_type, ValueEstimatorBase)
        ):
            super().make_value_estimator(value_type, **hyperparams)
        else:
            # The losses evaluate the next value themselves: an estimator that held the network
            # would list its parameters twice.
            hyperparams.setdefault("value_network", None)
            dispatch_value_estimator(
                self, value_type, supported=self.SUPPORTED_VALUE_ESTIMATORS, **hyperparams
            )
        self._forward_value_estimator_keys()
        return self

    # ---- reading networks and batches ----------------------------------------------------

    @staticmethod
    def _value(
        network: nn.Module, batch: TensorDictBase, key: NestedKey, *, next_step: bool = False
    ) -> Tensor:
        """Output ``key`` of a value-like network, its trailing singleton removed."""
        out = call_network(network, batch, key, next_step=next_step)
        if out is None or out.shape != (*batch.batch_size, 1):
            shape = None if out is None else tuple(out.shape)
            raise ValueError(
                f"network output {key!r} must have shape {(*batch.batch_size, 1)}, got {shape}"
            )
        return out.squeeze(-1)

    def _target(self, batch: TensorDictBase, next_value: Tensor) -> Tensor:
        """What Q(s, a) is drawn to, ``(batch,)``: n-step and lambda by the value estimator."""
        keys = self.tensor_keys
        for key in (keys.reward, keys.done, keys.terminated):
            # The estimator would take a missing terminated for done, and stop at time limits.
            column = read(batch, ("next", key))
            if column.shape != (*batch.batch_size, 1):
                raise ValueError(
                    f"entry {('next', key)!r} must have shape {(*batch.batch_size, 1)}, "
                    f"got {tuple(column.shape)}"
                )
        target = self.value_estimator.value_estimate(batch, next_value=next_value.unsqueeze(-1))
        return target.squeeze(-1)

    def _mask(self, batch: TensorDictBase) -> Tensor | None:
        """Which rows count, ``(batch,)``, if the batch says so."""
        masks = [batch.get(key, None) for key in self._loss_mask_keys()]
        masks = [mask.reshape(batch.batch_size) for mask in masks if mask is not None]
        return torch.stack(masks).all(0) if masks else None

    def _reducer(
        self, batch: TensorDictBase, mask: Tensor | None
    ) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        """How rows become losses (with masks and priority weights) and metrics (masks only)."""
        weights = self._maybe_get_priority_weight(batch)
        if weights is not None:
            weights = weights.reshape(batch.batch_size)
        if mask is None and weights is None and self.reduction == "mean":
            return torch.mean, torch.mean  # the usual case, without the search for masks
        masked = None if mask is None else batch
        metric = "none" if self.reduction == "none" else "mean"
        return (
            partial(self._reduce_loss, tensordict=masked, weights=weights),
            partial(self._reduce_loss, tensordict=masked, reduction=metric),
        )


def check_number(name: str, value: float, low: float, high: float, *, ends: str = "()") -> float:
    """``value`` if it lies in the interval, else a ValueError; ``ends`` as in mathematics."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    above = number and (low <= value if ends[0] == "[" else low < value)
    below = number and (value <= high if ends[1] == "]" else value < high)
    if not (above and below):  # NaN fails every comparison and ends here too
        raise ValueError(f"{name} must be in {ends[0]}{low}, {high}{ends[1]}, got {value!r}")
    return value


def check_whole(name: str, value: int, least: int) -> int:
    """``value`` if it is an integer of at least ``least``, else a ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return value


def action_box(actor: nn.Module, spec: TensorSpec | None) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds of the actions, from a spec or the actor's own."""
    if spec is None:
        spec = getattr(actor, "spec", None)
    if isinstance(spec, Composite):
        spec = spec["action"] if "action" in spec.keys() else None  # noqa: SIM118
    space = getattr(spec, "space", None)
    if not hasattr(space, "low") or not torch.isfinite(space.high - space.low).all():
        raise ValueError(f"bounded actions are needed: pass a Bounded action_spec, got {spec}")
    return space.low.clone(), space.high.clone()


def independent_copies(network: nn.Module | Sequence[nn.Module], number: int) -> nn.ModuleList:
    """``number`` networks: the given list, or one network and re-initialised copies of it.

    Copies are initialised by PyTorch's defaults; pass a list to choose otherwise.

    Raises:
        ValueError: if a list of another length is given, or if a single network has parameters
            that ``reset_parameters`` does not reach, so that its copies would stay identical.
    """
    if number < 1:
        raise ValueError(f"num_qvalue_nets must be at least 1, got {number}")
    if isinstance(network, (list, tuple, nn.ModuleList)):
        if len({id(net) for net in network}) != len(network):
            raise ValueError("the same critic is in the list twice: pass independent networks")
        if len(network) != number:
            raise ValueError(f"num_qvalue_nets={number} needs as many networks, got {len(network)}")
        return nn.ModuleList(network)
    copies = [network]
    for _ in range(number - 1):
        copy = deepcopy(network)
        for module in copy.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
            elif any(True for _ in module.parameters(recurse=False)):
                raise ValueError(
                    f"{type(module).__name__} has no reset_parameters(), so its copies would be "
                    f"identical: pass a list of {number} networks"
                )
        copies.append(copy)
    return nn.ModuleList(copies)
