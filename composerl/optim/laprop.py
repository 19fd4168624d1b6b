"""LaProp, with gradients clipped tensor by tensor: the optimizer of DreamerV3."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["LaProp"]

#: Norm below which a tensor's own size does not count: what starts at zero shall move, too.
LEAST_NORM = 1e-3


class LaProp(Optimizer):
    r"""LaProp (Ziyin et al. 2020, https://arxiv.org/abs/2002.04839): normalise, then average.

    Where Adam divides an average of gradients by an average of their size, this averages what is
    already divided, so that a sudden large gradient moves no weight by more than the rate, however
    small ``eps`` is:

    .. math::
        g &\leftarrow g \, / \max(1, \|g\| / (c \max(10^{-3}, \|p\|))) \\
        v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
        m &\leftarrow \beta_1 m + (1 - \beta_1) \, g / (\sqrt{v / (1 - \beta_2^t)} + \epsilon) \\
        p &\leftarrow p - lr \, m / (1 - \beta_1^t)

    The first line is adaptive gradient clipping (Brock et al. 2021,
    https://arxiv.org/abs/2102.06171), for each tensor p as a whole: no part of a loss can take the
    others' share, as with one norm over all of them. Defaults are DreamerV3's (the authors' latest
    code has 0.999 for the second of ``betas``).

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        betas: shares of the past in averages of normalised gradients and of squares.
        eps: added to the root.
        clip: c, the largest norm of a gradient in units of its tensor's; None does not clip.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 4e-5,
        *,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-20,
        clip: float | None = 0.3,
    ) -> None:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be in [0, 1), got {betas}")
        if not eps >= 0:
            raise ValueError(f"eps must be a number >= 0, got {eps}")
        if clip is not None and not clip > 0:
            raise ValueError(f"clip must be positive or None, got {clip}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "clip": clip})
        for group in self.param_groups:
            if not 0 <= group["lr"] < float("inf"):
                raise ValueError(f"lr must be a number >= 0, got {group['lr']}")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        if closure is not None:
            raise ValueError("LaProp takes no closure")
        for group in self.param_groups:
            for params in self._by_age(group["params"]):
                self._step(params, group)

    def _by_age(self, params: list[Tensor]) -> list[list[Tensor]]:
        """Those with a gradient, apart by how often they have moved: mostly one list."""
        ages: dict[int, list[Tensor]] = {}
        for p in params:
            if p.grad is not None:
                ages.setdefault(int(self.state[p].get("step", 0)), []).append(p)
        return list(ages.values())

    def _step(self, params: list[Tensor], group: dict[str, Any]) -> None:
        for p in params:
            state = self.state[p]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
            state["step"] += 1
        steps = int(self.state[params[0]]["step"])
        means, squares = ([self.state[p][key] for p in params] for key in ("exp_avg", "exp_avg_sq"))
        (beta1, beta2) = group["betas"]
        grads: list[Tensor] = [p.grad for p in params if p.grad is not None]
        if group["clip"] is not None:
            limits = torch.stack(torch._foreach_norm(params)).clamp_min(LEAST_NORM) * group["clip"]
            sizes = torch.stack(torch._foreach_norm(grads))
            shrink = (limits / sizes).clamp_max(1.0)
            grads = list(torch._foreach_mul(grads, list(shrink.unbind())))
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        roots = list(torch._foreach_sqrt(squares))
        # Both sides times the root of the correction, which spares a pass over all weights.
        correction = (1 - beta2**steps) ** 0.5
        torch._foreach_add_(roots, group["eps"] * correction)
        normal = torch._foreach_div(grads, roots)
        torch._foreach_mul_(means, beta1)
        torch._foreach_add_(means, normal, alpha=(1 - beta1) * correction)
        torch._foreach_add_(params, means, alpha=-group["lr"] / (1 - beta1**steps))
