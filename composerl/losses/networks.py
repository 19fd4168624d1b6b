"""Losses whose networks are plain submodules, called without TensorDict churn."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from tensordict import TensorDict
from torch import nn
from torchrl.objectives import LossModule

__all__ = ["PlainNetworks"]


class PlainNetworks(LossModule):
    """A LossModule whose networks are ordinary submodules.

    TorchRL swaps functional parameters into a stateless copy of each network at every call, which
    costs 20 to 50 % of an update. Here ``loss.actor_network`` *is* the module that was passed in:
    it is called directly and its parameters are optimised in place. What TorchRL code expects to
    find still exists: ``<name>_params`` and ``target_<name>_params`` are views (TensorDicts of the
    very same tensors; several critics under "0", "1", ... instead of stacked), so ``SoftUpdate``
    and ``HardUpdate`` work unchanged. Move or cast a loss before an optimizer is built on it.

    Subclasses register networks by plain assignment, and call :meth:`make_target` for those with
    a target copy. ``parameters()`` lists the trained networks only, not those that a subclass
    names in ``_fixed_names`` because it merely asks them.
    """

    _target_names: tuple[str, ...] = ()
    _fixed_names: tuple[str, ...] = ()
    #: Those that the loss calls by its own protocol, not by in_keys.
    _unkeyed_names: tuple[str, ...] = ()

    def make_target(self, name: str, *, delayed: bool = True) -> None:
        """Add ``target_<name>``, a copy of a network that no gradient reaches.

        If it is not delayed, there is no copy: the name then leads to the network itself.
        """
        if not delayed:
            return
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
            kept = name.startswith("target_") or name in self._fixed_names
            for module in () if kept else [*network.modules()][::-1]:
                if hasattr(module, "reset_parameters"):
                    module.reset_parameters()
        for name in self._target_names:
            getattr(self, f"target_{name}").load_state_dict(getattr(self, name).state_dict())

    def __setattr__(self, name: str, value: Any) -> None:
        keyed = name.removeprefix("target_") not in self._unkeyed_names
        if keyed and name.endswith("_network") and isinstance(value, nn.Module):
            for part in value if isinstance(value, nn.ModuleList) else [value]:
                _require_keys(name, part)
        super().__setattr__(name, value)

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
        if name.startswith("target_") and name.removesuffix("_params")[7:] in self._modules:
            return getattr(self, name[7:])
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
        """Parameters of the trained networks; target copies and fixed ones are left out."""
        untrained = (*(f"target_{name}" for name in self._target_names), *self._fixed_names)
        hidden = tuple(f"{prefix}{'.' * bool(prefix)}{name}." for name in untrained)
        for name, parameter in nn.Module.named_parameters(self, prefix, recurse, remove_duplicate):
            if not hidden or not name.startswith(hidden):
                yield name, parameter


def _require_keys(name: str, network: nn.Module) -> None:
    """Refuse a plain module when the loss is made: what it reads and writes has no names."""
    if not hasattr(network, "in_keys"):
        kind = type(network).__name__
        example = "TensorDictModule(module, ['observation'], ['action'])"
        raise TypeError(
            f"{name} must say what it reads and writes, which a plain {kind} does not: wrap it in "
            f"tensordict.nn's TensorDictModule with its in_keys and out_keys, such as {example}"
        )
