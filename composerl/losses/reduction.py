"""From rows to losses: masks, priority weights, reductions."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from composerl._private import unchecked_tensordict
from composerl.losses.networks import PlainNetworks

__all__ = ["Reducing"]


class Reducing(PlainNetworks):
    """A loss that knows which rows count and how much, and what becomes of them."""

    tensor_keys: Any
    reduction: str
    scalar_output_mode: str | None = None

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
        result = TensorDict(out, shape) if each else unchecked_tensordict(out, shape)
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
