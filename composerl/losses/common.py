"""What the losses share: coefficients, keys, value estimators, and the way from rows to losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, dispatch
from torch import Tensor, nn
from torchrl.objectives import ValueEstimators
from torchrl.objectives.utils import dispatch_value_estimator
from torchrl.objectives.value import ValueEstimatorBase

from composerl.losses.arguments import check_number, further_options
from composerl.losses.functional import DISTANCES, distance
from composerl.losses.networks import PlainNetworks
from composerl.losses.reading import blank, call_network, frozen, inputs_of, read, step_key

__all__ = ["LeanLoss", "RowKeys", "TransitionKeys"]

REDUCTIONS = ("mean", "sum", "none")


@dataclass
class RowKeys:
    """The keys of every loss."""

    action: NestedKey = "action"
    priority_weight: NestedKey = "priority_weight"


@dataclass
class TransitionKeys(RowKeys):
    """The keys of a loss of transitions."""

    priority: NestedKey = "td_error"
    reward: NestedKey = "reward"
    done: NestedKey = "done"
    terminated: NestedKey = "terminated"


class LeanLoss(PlainNetworks):
    """What the losses here share; see :class:`PlainNetworks` for how they hold their networks.

    A subclass names its keys in ``_AcceptedKeys``, assigns its networks, makes buffers of its
    numbers by :meth:`coefficient`, lists what it reads in :meth:`_reads`, and writes the equations
    in :meth:`_rows`, row by row: masks, priorities and reductions are done here.
    """

    _AcceptedKeys: type[RowKeys] = RowKeys
    default_keys: type[RowKeys] = RowKeys
    tensor_keys: Any  # an _AcceptedKeys of the subclass
    default_value_estimator = ValueEstimators.TD0
    SUPPORTED_VALUE_ESTIMATORS: tuple[ValueEstimators, ...] = (
        ValueEstimators.TD0,
        ValueEstimators.TD1,
        ValueEstimators.TDLambda,
    )

    #: Options that TorchRL's loss of this name has besides those in the signature, with their
    #: defaults; they become attributes.
    further: ClassVar[Mapping[str, Any]] = {}
    separate_losses: bool = False
    scalar_output_mode: str | None = None

    def __init__(
        self,
        reduction: str | None = None,
        loss_function: str = "l2",
        further: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        options = further_options(type(self).__name__, self.further, further or {})
        for name, value in options.items():
            setattr(self, name, value)
        reduction = "mean" if reduction is None else reduction
        if reduction not in REDUCTIONS:
            raise ValueError(f"reduction must be one of {REDUCTIONS}, got {reduction!r}")
        if loss_function not in DISTANCES:
            raise ValueError(f"loss_function must be one of {DISTANCES}, got {loss_function!r}")
        self.reduction = reduction
        self.loss_function = loss_function
        self._in_keys: list[NestedKey] | None = None

    def coefficient(
        self, name: str, value: float, interval: str = "(0, inf)", *, symbol: str = ""
    ) -> None:
        """Keep a number of the interval as a buffer, which moves with the loss and is saved."""
        check_number(f"{name} ({symbol})" if symbol else name, value, interval)
        self.register_coeff_buffer(name, float(value))

    # ---- keys and the value estimator ----------------------------------------------------

    @property
    def in_keys(self) -> list[NestedKey]:
        """The entries that ``forward`` reads."""
        if self._in_keys is None:
            self._in_keys = list(dict.fromkeys(self._reads()))
        return self._in_keys

    @in_keys.setter
    def in_keys(self, values: Sequence[NestedKey]) -> None:
        self._in_keys = list(values)

    def _set_in_keys(self) -> None:
        self._in_keys = None  # listed anew when they are asked for: keys have other names now

    def _name_action(self, actor: nn.Module) -> None:
        """Read actions under the name that the actor gives them."""
        names: Sequence[NestedKey] = getattr(actor, "dist_sample_keys", [])
        if len(names) == 1:
            self.set_keys(action=names[0])

    def _reads(self) -> list[NestedKey]:
        """The entries that :meth:`_rows` reads; repetitions do not matter."""
        raise NotImplementedError

    def make_value_estimator(
        self, value_type: ValueEstimators | None = None, **hyperparams: Any
    ) -> LeanLoss:
        """Choose how targets are made (TD0 by default, ``gamma=0.99``); returns self."""
        if value_type is None:
            value_type = self.default_value_estimator
        if hyperparams.get("gamma", 0.0) is None:
            del hyperparams["gamma"]
        if isinstance(gamma := hyperparams.get("gamma"), (int, float)):
            check_number("gamma", gamma, "[0, 1]")
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

    def _transition_keys(
        self,
        now: Sequence[TensorDictModule],
        later: Sequence[TensorDictModule],
        columns: Sequence[str] = ("reward", "done", "terminated"),
    ) -> list[NestedKey]:
        """Action, columns of the next step, inputs of networks at s and of others at s'."""
        keys = self.tensor_keys
        following = [key for network in later for key in inputs_of(network) if key != keys.action]
        return [
            keys.action,
            *(("next", getattr(keys, name)) for name in columns),
            *(key for network in now for key in inputs_of(network)),
            *map(step_key, following),
        ]

    # ---- reading networks and batches ----------------------------------------------------

    def _apart(self, critic: nn.Module, *owners: nn.Module | None) -> AbstractContextManager[None]:
        """With ``separate_losses``, weights that others own too do not learn from the critic."""
        if not self.separate_losses:
            return nullcontext()
        owned = {id(p) for owner in owners if owner is not None for p in owner.parameters()}
        return frozen(p for p in critic.parameters() if id(p) in owned)

    @staticmethod
    def _value(
        network: TensorDictModule, batch: TensorDictBase, key: NestedKey, **options: Any
    ) -> Tensor:
        """Output ``key`` of a value-like network, its trailing singleton removed.

        The options are those of :func:`~composerl.losses.reading.call_network`.
        """
        out, shape = call_network(network, batch, key, **options), (*batch.batch_size, 1)
        if out.shape != shape:
            raise ValueError(
                f"network output {key!r} must have shape {shape}, got {tuple(out.shape)}"
            )
        return out.squeeze(-1)

    def _target(self, batch: TensorDictBase, next_value: Tensor) -> Tensor:
        """What Q(s, a) is drawn to, ``(batch,)``: n-step and lambda by the value estimator."""
        keys = self.tensor_keys
        for key in (keys.reward, keys.done, keys.terminated):
            # The estimator would take a missing terminated for done, and stop at time limits.
            read(batch, ("next", key), (1,))
        target = self.value_estimator.value_estimate(batch, next_value=next_value.unsqueeze(-1))
        return target.squeeze(-1)

    def _critic_rows(self, q: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Distance of the critics ``(critics, batch)`` to their target, and the priority."""
        rows = distance(q, target.expand_as(q), self.loss_function).sum(0)
        return {"loss_qvalue": rows, "priority": (q.detach() - target).square_().amax(0)}

    # ---- from rows to losses -------------------------------------------------------------

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Evaluate the losses on a batch; writes the priority into it if the loss has one."""
        mask = self._mask(tensordict)
        batch = tensordict if mask is None else blank(tensordict, mask)
        rows = self._rows(batch, mask)
        priority = rows.pop("priority", None)
        if priority is not None:
            priority = priority if mask is None else priority * mask
            tensordict.set(self.tensor_keys.priority, priority)
        return self._reduced(batch, mask, rows)

    def _rows(self, batch: TensorDictBase, mask: Tensor | None) -> dict[str, Tensor]:
        """The outputs before they are reduced, ``(batch,)`` each.

        Those named ``loss_*`` are minimised; ``priority`` goes into the batch; the others are
        metrics, which are averaged and detached; a metric may be one number for all rows. Rows
        that ``mask`` leaves out are zero in the batch, and do not count.
        """
        raise NotImplementedError

    def _reduced(
        self, batch: TensorDictBase, mask: Tensor | None, rows: dict[str, Tensor]
    ) -> TensorDict:
        """Losses with masks and priority weights, metrics with masks only."""
        weights = None
        if self.use_prioritized_weights in (True, "auto"):
            weights = batch.get(self.tensor_keys.priority_weight, None)
        if weights is not None:
            weights = weights.reshape(batch.batch_size)
        each = self.reduction == "none"
        shape = batch.batch_size if each else torch.Size([])
        # The usual case, without the search for masks.
        plain = mask is None and weights is None and self.reduction == "mean"
        masked = None if mask is None else batch
        out, scalars = {}, {}
        for key, value in rows.items():
            minimised = key.startswith("loss_")
            if not minimised and value.requires_grad:
                value = value.detach()
            if each and not minimised and self.scalar_output_mode:
                scalars[key] = value
            elif not minimised and not value.ndim:
                out[key] = value.expand(shape)
            elif plain:
                out[key] = value.mean()
            elif minimised:
                out[key] = self._reduce_loss(value, masked, weights=weights)
            else:
                out[key] = self._reduce_loss(value, masked, reduction="none" if each else "mean")
        result = TensorDict(out, shape)
        if self.scalar_output_mode == "non_tensor":
            for key, value in scalars.items():
                mean = self._reduce_loss(value, masked, reduction="mean") if value.ndim else value
                result.set_non_tensor(key, mean)
        return result

    def _mask(self, batch: TensorDictBase) -> Tensor | None:
        """Which rows count, ``(batch,)``, if the batch says so."""
        masks = [batch.get(key, None) for key in self._loss_mask_keys()]
        masks = [mask.reshape(batch.batch_size) for mask in masks if mask is not None]
        return torch.stack(masks).all(0) if masks else None
