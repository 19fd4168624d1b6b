"""Training a learned model until it stops getting better on data it does not train on."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from xxhash import xxh64_intdigest

from composerl.losses import DynamicsLoss

__all__ = ["DynamicsFit"]


@dataclass(eq=False, repr=False)
class DynamicsFit:
    """Fits an ensemble to transitions, each time from the weights that it has.

    Rows are split by a hash of their observation and action, so that one that is held out stays
    so in later fits: weights from before a fit have never been trained on what judges them. The
    normaliser is set to the training rows, of which each member gets a bootstrap of its own.
    Training ends after ``patience`` epochs in which no member's error on the holdout fell by
    ``min_gain``. Then every member goes back to its best weights, those from before the fit
    included, and the best members become the elites. What members share, as the bounds of the
    variance, stays as it is.

    All random numbers come from torch's global generator, so that ``state_dict`` (the update's,
    and the metrics) is all that an exact resume needs.

    Args:
        update: of a :class:`~composerl.losses.DynamicsLoss` with ``per_member=True``.

    Keyword Args:
        batch_size: rows in a batch of each member.
        holdout: share of the rows to judge by, in (0, 1).
        max_holdout: at most so many.
        patience: epochs without a gain before it ends.
        min_gain: what counts as a gain, relative to the member's error, in [0, 1).
        max_epochs: end after so many in any case.

    Attributes:
        metrics: of the last fit: ``model/`` and the update's metrics (means over the last epoch),
            ``holdout_mse`` (mean of the elites), ``epochs``, ``rows``. Empty before the first.
    """

    update: Any
    _: KW_ONLY
    batch_size: int = 256
    holdout: float = 0.2
    max_holdout: int = 5000
    patience: int = 5
    min_gain: float = 0.01
    max_epochs: int | None = None
    metrics: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        loss = self.update.loss
        if not isinstance(loss, DynamicsLoss) or not loss.per_member:
            raise ValueError("DynamicsFit needs the Update of a DynamicsLoss with per_member=True")
        if not 0 < self.holdout < 1:
            raise ValueError(f"holdout must be in (0, 1), got {self.holdout}")
        if not 0 <= self.min_gain < 1:
            raise ValueError(f"min_gain must be in [0, 1), got {self.min_gain}")
        for name in ("batch_size", "max_holdout", "patience", "max_epochs"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    def __call__(self, data: TensorDictBase) -> dict[str, float]:
        """Fit to these transitions, of any batch shape; returns the metrics."""
        loss, model = self.update.loss, self.update.loss.model
        train, judge = self._split(data.select(*loss.in_keys).reshape(-1))
        members = model.members
        model.set_normalizer(*loss.columns(train))
        bootstrap = torch.randint(len(train), (members, len(train)))

        best = loss.holdout_mse(judge)
        own = [p for p in model.parameters() if p.ndim == 3]  # one for each member
        reference, weights = best, [p.detach().clone() for p in own]
        epochs = stale = 0
        while stale < self.patience and epochs != self.max_epochs:
            shuffled = bootstrap.gather(1, torch.rand(members, len(train)).argsort(1))
            steps = [self.update(train[rows]) for rows in shuffled.split(self.batch_size, 1)]
            mse = loss.holdout_mse(judge)
            # A comparison is false for NaN: a member that diverges goes back to where it was.
            better, gained = mse < best, mse < reference * (1 - self.min_gain)
            best, reference = torch.where(better, mse, best), torch.where(gained, mse, reference)
            weights = [
                torch.where(better.reshape(-1, 1, 1), p.detach(), w)
                for p, w in zip(own, weights, strict=True)
            ]
            epochs, stale = epochs + 1, 0 if gained.any() else stale + 1
        with torch.no_grad():
            for p, w in zip(own, weights, strict=True):
                p.copy_(w)
        model.elites.copy_(best.argsort(stable=True)[: len(model.elites)])
        means: Any = torch.stack(steps).mean(0)  # a TensorDict, like the steps
        mse, rows = best[model.elites].mean(), len(train) + len(judge)
        found = {**means, "holdout_mse": mse, "epochs": epochs, "rows": rows}
        self.metrics = {f"model/{key}": float(value) for key, value in found.items()}
        return self.metrics

    def state_dict(self) -> dict[str, Any]:
        """The model, its normaliser, elites and optimizer, and the last fit's metrics."""
        return {"update": self.update.state_dict(), "metrics": dict(self.metrics)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.update.load_state_dict(state["update"])
        self.metrics = dict(state["metrics"])

    def _split(self, rows: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        held = min(int(len(rows) * self.holdout), self.max_holdout)
        if held < 1:
            raise ValueError(f"holdout={self.holdout} of {len(rows)} rows leaves none to judge by")
        observation, action, _ = self.update.loss.columns(rows)
        inputs = torch.cat([observation, action], -1).cpu().numpy()
        order = np.argsort([xxh64_intdigest(row.tobytes()) for row in inputs], kind="stable")
        return rows[torch.from_numpy(order[held:])], rows[torch.from_numpy(order[:held])]
