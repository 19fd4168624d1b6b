"""Reading batches: their entries, discrete actions, masks; what is not there is said by name."""

from collections.abc import Sequence

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

__all__ = ["action_index", "allowed", "blank", "read", "step_key"]


def read(batch: TensorDictBase, key: NestedKey, shape: Sequence[int] | None = None) -> Tensor:
    """An entry of the batch, or an error that says what is there.

    ``shape``, if given, is what must follow the batch's own: ``(1,)`` for a column.
    """
    value = batch.get(key, None)
    if value is None:
        raise KeyError(
            f"the batch has no entry {key!r}; it has {sorted(map(str, batch.keys(True)))}"
        )
    if shape is not None and value.shape != (*batch.batch_size, *shape):
        raise ValueError(
            f"entry {key!r} must have shape {(*batch.batch_size, *shape)}, got {tuple(value.shape)}"
        )
    return value


def step_key(key: NestedKey) -> tuple[str, ...]:
    """The key of the same entry at the next step."""
    return ("next", key) if isinstance(key, str) else ("next", *key)


def blank(batch: TensorDictBase, mask: Tensor) -> TensorDictBase:
    """A copy whose masked rows are zero: NaN in padding would reach every gradient as 0 * NaN."""

    def clean(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        rows = mask.reshape(*mask.shape, *[1] * (x.ndim - mask.ndim))
        return torch.where(rows, x, torch.zeros_like(x))

    return batch.apply(clean)


def action_index(action: Tensor, number: int, batch_size: torch.Size, key: NestedKey) -> Tensor:
    """Discrete actions as integers ``(batch,)``, from ``(batch,)``, ``(batch, 1)`` or one-hot."""
    if action.shape == batch_size and not action.is_floating_point():
        return action.long()
    if action.shape == (*batch_size, number) and number > 1:
        return (action.byte() if action.dtype == torch.bool else action).argmax(-1)
    if action.shape == (*batch_size, 1) and not action.is_floating_point():
        return action.squeeze(-1).long()
    raise ValueError(
        f"entry {key!r} must be integers of shape {tuple(batch_size)} or {(*batch_size, 1)}, or "
        f"one-hot of shape {(*batch_size, number)}; got {action.dtype} of shape "
        f"{tuple(action.shape)}"
    )


def allowed(values: Tensor, batch: TensorDictBase, key: NestedKey) -> Tensor:
    """Values ``(batch, actions)`` with minus infinity where the batch's mask forbids the action.

    Without a mask they are what they were, and so is a row that allows nothing: an episode is over
    there, and what follows it counts for nothing.
    """
    mask = batch.get(key, None)
    if mask is None:
        return values
    if mask.shape != values.shape or mask.dtype != torch.bool:
        raise ValueError(
            f"entry {key!r} must be bool of shape {tuple(values.shape)}, true where an action is "
            f"allowed; got {mask.dtype} of shape {tuple(mask.shape)}"
        )
    return values.masked_fill(mask.logical_not() & mask.any(-1, keepdim=True), -torch.inf)
