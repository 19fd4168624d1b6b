"""Training a learned model until it stops getting better on data it does not train on."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from composerl.losses import DynamicsLoss
from composerl.update import Update

__all__ = ["fit_dynamics"]


def fit_dynamics(
    update: Update,
    data: TensorDictBase,
    *,
    batch_size: int = 256,
    holdout: float = 0.2,
    max_holdout: int = 5000,
    patience: int = 5,
    min_gain: float = 0.01,
    max_epochs: int | None = None,
) -> dict[str, float]:
    """Fit an ensemble to transitions; it goes on from the weights that it has.

    Rows are split at random. The normaliser is set to the training rows, of which each member
    gets a bootstrap of its own. Training ends after ``patience`` epochs in which no member's
    error on the holdout fell by ``min_gain``. Then every member goes back to its best weights,
    those from before the fit included, and the best members become the elites.

    All random numbers come from torch's global generator, and nothing but ``update`` changes: a
    checkpoint before or after a fit is all that an exact resume needs.

    Args:
        update: of a :class:`~composerl.losses.DynamicsLoss` with ``per_member=True``.
        data: transitions, any batch shape.
        batch_size: rows in a batch of each member.
        holdout: share of the rows to judge by, in (0, 1).
        max_holdout: at most so many.
        patience: epochs without a gain before it ends.
        min_gain: what counts as a gain, relative to the member's error.
        max_epochs: end after so many in any case.

    Returns: the means of the last epoch's metrics, and ``holdout_mse`` (mean of the elites),
    ``epochs`` and ``rows``.
    """
    loss = update.loss
    if not isinstance(loss, DynamicsLoss) or not loss.per_member:
        raise ValueError("fit_dynamics needs the Update of a DynamicsLoss with per_member=True")
    if not 0 < holdout < 1:
        raise ValueError(f"holdout must be in (0, 1), got {holdout}")
    for name, value in (("batch_size", batch_size), ("patience", patience)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    model, rows = loss.model, data.select(*loss.in_keys).reshape(-1)
    held = min(int(len(rows) * holdout), max_holdout)
    if held < 1:
        raise ValueError(f"holdout={holdout} of {len(rows)} rows leaves none to judge by")
    order = torch.randperm(len(rows)).to(rows.device or "cpu")
    judge, train = rows[order[:held]], rows[order[held:]]
    keys, members = loss.tensor_keys, model.members
    model.set_normalizer(train.get(keys.observation), train.get(keys.action))
    bootstrap = torch.randint(len(train), (members, len(train)))

    best = loss.holdout_mse(judge)
    reference, weights = best, [p.detach().clone() for p in model.parameters()]
    epochs = stale = 0
    metrics: dict[str, float] = {}
    while stale < patience and (max_epochs is None or epochs < max_epochs):
        shuffled = bootstrap.gather(1, torch.rand(members, len(train)).argsort(1))
        steps = [update(train[index]) for index in shuffled.split(batch_size, 1)]
        metrics = {key: float(value) for key, value in torch.stack(steps).mean(0).items()}
        mse = loss.holdout_mse(judge)
        # A comparison is false for NaN: a member that diverges goes back to where it was.
        better, gained = mse < best, mse < reference * (1 - min_gain)
        best, reference = torch.where(better, mse, best), torch.where(gained, mse, reference)
        weights = [_choose(better, p, w) for p, w in zip(model.parameters(), weights, strict=True)]
        epochs, stale = epochs + 1, 0 if gained.any() else stale + 1
    with torch.no_grad():
        for p, w in zip(model.parameters(), weights, strict=True):
            p.copy_(w)
    model.elites.copy_(best.argsort(stable=True)[: len(model.elites)])
    metrics["holdout_mse"] = float(best[model.elites].mean())
    return metrics | {"epochs": float(epochs), "rows": float(len(rows))}


def _choose(members: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """The members' part of ``new`` where they are chosen, else that of ``old``."""
    return torch.where(members.reshape(-1, *[1] * (new.ndim - 1)), new.detach(), old)
