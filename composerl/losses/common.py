"""RowLoss, which the losses are made of: coefficients, targets, and the way from rows to losses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModule, dispatch
from torch import Tensor, nn
from torchrl.objectives import ValueEstimators
from torchrl.objectives.utils import dispatch_value_estimator
from torchrl.objectives.value import GAE, TD0Estimator, ValueEstimatorBase, VTrace

from composerl.losses.arguments import check_number, further_options
from composerl.losses.calling import call_network, call_networks, frozen, inputs_of
from composerl.losses.functional import DISTANCES
from composerl.losses.keys import DiscreteKeys, RowKeys, TransitionKeys
from composerl.losses.pure import critic_loss
from composerl.losses.reading import blank, read, step_key
from composerl.losses.reduction import Reducing

__all__ = ["DiscreteKeys", "RowKeys", "RowLoss", "TransitionKeys"]

REDUCTIONS = ("mean", "sum", "none")


class RowLoss(Reducing):
    """The base of the losses here, and of yours: equations row by row; the rest is done for them.

    A subclass names its entries in ``_AcceptedKeys`` (``set_keys`` renames them) and its outputs in
    ``out_keys``; assigns its networks, which are trained in place; keeps its numbers by
    :meth:`coefficient`; asks for target copies by :meth:`make_target`; lists what it reads in
    :meth:`reads`, and writes its equations in :meth:`rows`. There, :meth:`value_of` is a network's
    V or Q, :meth:`td_target` what it is drawn to (TD0, n-step or lambda), and ``read``,
    ``call_network``, ``distribution`` and ``action_log_prob`` of :mod:`composerl.losses` read the
    rest. Reductions, masked rows, priority weights and priorities, detached metrics, calls with
    keyword tensors, moves, ``SoftUpdate`` and ``torch.compile`` follow;
    :func:`composerl.testing.check_loss` tells whether they do.

    Args:
        reduction: ``"mean"`` by default, ``"sum"`` or ``"none"``.
        loss_function: the distance in :meth:`critic_rows`.
        further: options that are in ``further`` of the class, as they were given.

    ``composerl new`` writes a whole one to start with, beside its recipe and its test.
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
            self._in_keys = list(dict.fromkeys(self.reads()))
        return self._in_keys

    @in_keys.setter
    def in_keys(self, values: Sequence[NestedKey]) -> None:
        self._in_keys = list(values)

    def _set_in_keys(self) -> None:
        self._in_keys = None  # listed anew when they are asked for: keys have other names now

    def name_action(self, actor: nn.Module) -> None:
        """Read actions under the name that the actor gives them."""
        names: Sequence[NestedKey] = getattr(actor, "dist_sample_keys", [])
        if len(names) == 1:
            self.set_keys(action=names[0])

    def reads(self) -> list[NestedKey]:
        """The entries that :meth:`rows` reads; repetitions do not matter."""
        raise NotImplementedError

    def make_value_estimator(
        self, value_type: ValueEstimators | None = None, **hyperparams: Any
    ) -> RowLoss:
        """Choose how targets are made (TD0 by default, ``gamma=0.99``); returns self."""
        name = type(self).__name__
        if self.default_value_estimator is None:
            raise NotImplementedError(f"{name} has no targets that a value estimator could make")
        if value_type is None:
            value_type = self.default_value_estimator
        if hyperparams.get("gamma", 0.0) is None:
            del hyperparams["gamma"]
        if isinstance(gamma := hyperparams.get("gamma"), (int, float)):
            check_number("gamma", gamma, "[0, 1]")
        kind = value_type if isinstance(value_type, type) else type(value_type)
        if issubclass(kind, ValueEstimatorBase):
            supported = ValueEstimators.GAE in self.SUPPORTED_VALUE_ESTIMATORS
            if issubclass(kind, (GAE, VTrace)) and not supported:
                raise NotImplementedError(
                    f"{name} needs targets of the next value, and {kind.__name__} makes advantages"
                )
            if hyperparams and kind is not value_type:
                raise TypeError(f"{kind.__name__} is made already and takes no {hyperparams}")
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

    def transition_keys(
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
    def value_of(
        network: TensorDictModule, batch: TensorDictBase, key: NestedKey, **options: Any
    ) -> Tensor:
        """Output ``key`` of a value-like network, its trailing singleton removed.

        The options are those of :func:`~composerl.losses.call_network`.
        """
        return _column(call_network(network, batch, key, **options), batch, key)

    @staticmethod
    def values_of(
        networks: Iterable[TensorDictModule], batch: TensorDictBase, key: NestedKey, **options: Any
    ) -> Tensor:
        """The same of several networks, ``(networks, batch)``."""
        values = call_networks(networks, batch, key, **options)
        return torch.stack([_column(value, batch, key) for value in values])

    def td_target(self, batch: TensorDictBase, next_value: Tensor) -> Tensor:
        """What Q(s, a) is drawn to, ``(batch,)``: n-step and lambda by the value estimator."""
        keys, estimator = self.tensor_keys, self.value_estimator
        # The estimator would take a missing terminated for done, and stop at time limits.
        reward, _, terminated = (
            read(batch, ("next", key), (1,)) for key in (keys.reward, keys.done, keys.terminated)
        )
        next_value = next_value.unsqueeze(-1)
        if type(estimator) is TD0Estimator and not estimator.average_rewards:
            # Its own equation, without the ways to its other cases, which take as long again.
            discount = self.discount(batch, reward) * terminated.logical_not()
            return (reward + discount * next_value).squeeze(-1)
        return estimator.value_estimate(batch, next_value=next_value).squeeze(-1)

    def discount(self, batch: TensorDictBase, reward: Tensor) -> Tensor:
        """What the value estimator multiplies the value of s' by, gamma to the n."""
        estimator = self.value_estimator
        gamma = estimator.gamma
        steps = batch.get(estimator.tensor_keys.steps_to_next_obs, None)
        return gamma if steps is None else gamma ** steps.reshape(reward.shape)

    def critic_rows(self, q: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Distance of the critics ``(critics, batch)`` to their target, and the priority."""
        return self._prioritized(critic_loss(q, target, self.loss_function))

    @staticmethod
    def _prioritized(rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """The rows of a pure function, whose ``td_error`` is the priority and nothing else."""
        rows["priority"] = rows.pop("td_error")
        return rows

    # ---- from rows to losses -------------------------------------------------------------

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Evaluate the losses on a batch; writes the priority into it if the loss has one."""
        mask = self._mask(tensordict)
        batch = tensordict if mask is None else blank(tensordict, mask)
        rows = self.rows(batch, mask)
        priority = rows.pop("priority", None)
        if priority is not None:
            priority = priority if mask is None else priority * mask
            tensordict.set(self.tensor_keys.priority, priority)
        return self._reduced(batch, mask, rows)

    def rows(self, batch: TensorDictBase, mask: Tensor | None) -> dict[str, Tensor]:
        """The outputs before they are reduced, ``(batch,)`` each.

        Those named ``loss_*`` are minimised; ``priority`` goes into the batch; the others are
        metrics, which are averaged and detached; a metric may be one number for all rows. Rows
        that ``mask`` leaves out are zero in the batch, and do not count.
        """
        raise NotImplementedError


def _column(out: Tensor, batch: TensorDictBase, key: NestedKey) -> Tensor:
    """What a value-like network gave, its trailing singleton removed."""
    shape = (*batch.batch_size, 1)
    if out.shape != shape:
        raise ValueError(f"network output {key!r} must have shape {shape}, got {tuple(out.shape)}")
    return out.squeeze(-1)
